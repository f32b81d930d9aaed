/*
 * target.h - what a file or a name says: a list of sources, as plain texts.
 *
 * A target of a file becomes one struct kve_target for each of its ranks, with
 * everything filled in that the file and the template say; so two lists can be
 * compared text by text, and what a source was added with is what it is known
 * by.
 */
#ifndef KVE_DISCOVER_TARGET_H
#define KVE_DISCOVER_TARGET_H

#include <kvevents/discover.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One source. Strings are in one piece of memory behind it; "" where there is
 * none. */
struct kve_target {
    const char *model;
    const char *tenant;
    const char *worker;
    const char *topic;
    const char *endpoint;
    const char *replay_endpoint;
    const char *snapshot_endpoint;
    uint32_t rank;
    uint32_t block_size;
};

struct kve_targets {
    struct kve_target **items;
    size_t n;
    size_t cap;
    size_t max; /* targets are refused beyond; 0: no limit */
};

void kve_targets_release(struct kve_targets *targets);

/* The template, its strings copied; one piece of memory. */
struct kve_discover_spec *kve_discover_spec_copy(
    const struct kve_discover_spec *spec);
/* Frees a copy, its secret key wiped. NULL is nothing. */
void kve_discover_spec_free(struct kve_discover_spec *copy);

/* What may stand beside a target; NULL or 0: as the template says. */
struct kve_labels {
    const char *model;
    const char *tenant;
    const char *worker;
    const char *topic;
    uint32_t ranks;
    uint32_t replay_port;
    uint32_t snapshot_port;
    uint32_t block_size;
    bool has_rank;
    uint32_t rank;
};

/*
 * Add the sources of one target: "HOST:PORT", HOST a name, an address or
 * [an IPv6 address]. Returns KVE_OK, KVE_E_INVAL (no such form, a port that can
 * not be, or a wildcard), KVE_E_LIMIT or KVE_E_NOMEM.
 */
kve_status kve_targets_add(struct kve_targets *targets, const char *target,
    const struct kve_labels *labels, const struct kve_discover_spec *spec,
    struct kve_error *err);

/*
 * Read the JSON of a file. Returns KVE_OK; KVE_E_MALFORMED (no JSON) or
 * KVE_E_SCHEMA (no such list): err says where; KVE_E_LIMIT or KVE_E_NOMEM.
 * Nothing is left in targets on failure.
 */
kve_status kve_targets_read(struct kve_targets *targets, const char *text,
    size_t len, const struct kve_discover_spec *spec, struct kve_error *err);

/* The same worker and rank; and whether all the rest is the same, too. */
bool kve_target_is(const struct kve_target *a, const struct kve_target *b);
bool kve_target_same(const struct kve_target *a, const struct kve_target *b);

#endif
