/*
 * unit.h - one file or name, and the sources that it brought.
 *
 * A unit is told what is said now (a list of targets) and makes the ingest
 * agree with it:
 *
 *     said and held        nothing
 *     said and not held    add
 *     said otherwise       remove, then add: it starts empty
 *     held and not said    it has until the grace time is over; then remove
 *     refused              another has this worker and rank: asked again now
 *                          and then
 */
#ifndef KVE_DISCOVER_UNIT_H
#define KVE_DISCOVER_UNIT_H

#include "discover/target.h"

#include <stdint.h>

/* What all units of a discovery share. */
struct kve_unit_world {
    kve_ingest *ingest;
    struct kve_discover_opts opts; /* with defaults filled in */
};

struct kve_unit {
    const struct kve_unit_world *world;
    const struct kve_discover_spec *spec; /* borrowed */
    char *name;                           /* of the file, or of the name */
    uint32_t origin;                      /* enum kve_origin */
    struct kve_unit_held *held;
    size_t n_held;
    size_t cap_held;
};

/* false: no memory. */
bool kve_unit_init(struct kve_unit *unit, const struct kve_unit_world *world,
    const struct kve_discover_spec *spec, const char *name, uint32_t origin);

/* Its sources stay in the ingest. */
void kve_unit_release(struct kve_unit *unit);

/* This is what is said now; the targets are taken over. */
void kve_unit_say(
    struct kve_unit *unit, struct kve_targets *targets, int64_t now_ns);

/* Remove what has been gone for long enough, and ask again for what was
 * refused. Returns when something else has been gone for long enough, or
 * KVE_NEVER. */
int64_t kve_unit_expire(struct kve_unit *unit, int64_t now_ns);

/* One line about it to the log. */
void kve_unit_log(const struct kve_unit_world *world, enum kve_log_level level,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
