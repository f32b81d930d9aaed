/*
 * version.h - which library this is.
 *
 * The numbers follow semantic versioning of the API. A program compares the
 * macros it was built with to kve_version() to see what it runs with.
 */
#ifndef KVEVENTS_VERSION_H
#define KVEVENTS_VERSION_H

#include <kvevents/export.h>

#define KVE_VERSION_MAJOR 0
#define KVE_VERSION_MINOR 1
#define KVE_VERSION_PATCH 0

#define KVE_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* "major.minor.patch" of the library in use; never NULL. Any thread. */
KVE_API const char *kve_version(void);

/*
 * The version of the ZeroMQ library in use, "4.3.4" for instance; never NULL.
 * Any thread.
 */
KVE_API const char *kve_zmq_version(void);

#ifdef __cplusplus
}
#endif

#endif
