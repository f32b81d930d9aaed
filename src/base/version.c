/*
 * version.c - see kvevents/version.h.
 */
#include <kvevents/version.h>

const char *
kve_version(void)
{
    return KVE_VERSION_STRING;
}
