/*
 * text.h - texts somewhere else, compared and kept.
 */
#ifndef KVE_BASE_TEXT_H
#define KVE_BASE_TEXT_H

#include <kvevents/event.h>

#include <string.h>

/* Equal, where absent and empty are one. */
static inline bool
kve_str_same(struct kve_str a, struct kve_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Copy a text to *at, which moves behind it. An empty one becomes absent. */
static inline struct kve_str
kve_str_keep(char **at, struct kve_str text)
{
    struct kve_str kept = { NULL, 0 };

    if (text.len == 0)
        return kept;
    memcpy(*at, text.data, text.len);
    kept.data = *at;
    kept.len = text.len;
    *at += text.len;
    return kept;
}

#endif
