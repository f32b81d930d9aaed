/*
 * names.c - names of the subscriber's enums, and its options without macros.
 */
#include <kvevents/subscriber.h>

#include <string.h>

const char *
kve_state_str(unsigned state)
{
    switch (state) {
#define X(name, number, text, help) \
    case KVE_STATE_##name:          \
        return text;
        KVE_STATE_MAP(X)
#undef X
    }
    return "?";
}

const char *
kve_reason_str(unsigned reason)
{
    switch (reason) {
#define X(name, number, text, help) \
    case KVE_REASON_##name:         \
        return text;
        KVE_REASON_MAP(X)
#undef X
    }
    return "?";
}

const char *
kve_notice_str(unsigned type)
{
    switch (type) {
#define X(name, number, text, help) \
    case KVE_NOTICE_##name:         \
        return text;
        KVE_NOTICE_MAP(X)
#undef X
    }
    return "?";
}

void
kve_source_opts_init(struct kve_source_opts *opts)
{
    memset(opts, 0, sizeof(*opts));
    opts->struct_size = sizeof(*opts);
}

void
kve_sub_opts_init(struct kve_sub_opts *opts)
{
    memset(opts, 0, sizeof(*opts));
    opts->struct_size = sizeof(*opts);
}
