/*
 * unit.c - what one file or name said, in the ingest.
 */
#include "discover/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct kve_unit_held {
    struct kve_target *target;
    kve_ingest_id id;  /* 0: refused */
    bool told;         /* that it was refused */
    bool said;         /* by the list that is being looked at */
    int64_t leaves_ns; /* KVE_NEVER: it is said */
};

void
kve_unit_log(const struct kve_unit_world *world, enum kve_log_level level,
    const char *fmt, ...)
{
    char line[512];
    va_list args;

    if (world->opts.log == NULL)
        return;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    world->opts.log(world->opts.log_ctx, level, line);
}

bool
kve_unit_init(struct kve_unit *unit, const struct kve_unit_world *world,
    const struct kve_discover_spec *spec, const char *name, uint32_t origin)
{
    memset(unit, 0, sizeof(*unit));
    unit->world = world;
    unit->spec = spec;
    unit->origin = origin;
    unit->name = kve_mem_strdup(name);
    return unit->name != NULL;
}

void
kve_unit_release(struct kve_unit *unit)
{
    for (size_t i = 0; i < unit->n_held; i++)
        kve_mem_free(unit->held[i].target);
    kve_mem_free(unit->held);
    kve_mem_free(unit->name);
    memset(unit, 0, sizeof(*unit));
}

/* "" is no endpoint. */
static const char *
or_null(const char *text)
{
    return *text != '\0' ? text : NULL;
}

/* Ask the ingest for it; a refusal is said once. */
static void
hold(const struct kve_unit *unit, struct kve_unit_held *held)
{
    const struct kve_target *target = held->target;
    struct kve_ingest_spec spec = unit->spec->source;
    struct kve_error err = { .status = KVE_OK };
    kve_ingest_id id = 0;
    kve_status status;

    spec.model = target->model;
    spec.tenant = target->tenant;
    spec.worker = target->worker;
    spec.rank = target->rank;
    spec.block_size = target->block_size;
    spec.origin = unit->origin;
    spec.found_in = unit->name;
    spec.source.endpoint = target->endpoint;
    spec.source.replay_endpoint = or_null(target->replay_endpoint);
    spec.source.snapshot_endpoint = or_null(target->snapshot_endpoint);
    spec.source.topic = target->topic;
    /* Ports are those of the rank already. */
    memset(&spec.source.rank, 0, sizeof(spec.source.rank));
    status = kve_ingest_add(unit->world->ingest, &spec, &id, &err);
    if (status == KVE_OK) {
        held->id = id;
        held->told = false;
        return;
    }
    held->id = 0;
    if (!held->told)
        kve_unit_log(unit->world, KVE_LOG_WARNING,
            "%s: worker %s rank %u at %s is not followed: %.160s", unit->name,
            target->worker, (unsigned)target->rank, target->endpoint,
            status == KVE_E_IN_USE
                ? "there is a source of this worker and rank already"
                : err.detail);
    held->told = true;
}

static void
let_go(const struct kve_unit *unit, struct kve_unit_held *held)
{
    if (held->id != 0)
        (void)kve_ingest_remove(unit->world->ingest, held->id, NULL);
    held->id = 0;
    kve_mem_free(held->target);
    held->target = NULL;
}

static bool
held_grow(struct kve_unit *unit)
{
    size_t cap = unit->cap_held == 0 ? 16 : unit->cap_held * 2;
    struct kve_unit_held *held;

    if (unit->n_held < unit->cap_held)
        return true;
    held = kve_mem_array(unit->held, cap, sizeof(*held));
    if (held == NULL)
        return false;
    unit->held = held;
    unit->cap_held = cap;
    return true;
}

static struct kve_unit_held *
find(struct kve_unit *unit, const struct kve_target *target)
{
    for (size_t i = 0; i < unit->n_held; i++)
        if (kve_target_is(unit->held[i].target, target))
            return &unit->held[i];
    return NULL;
}

/* Takes the target over. */
static void
say_one(struct kve_unit *unit, struct kve_target *target)
{
    struct kve_unit_held *held = find(unit, target);

    if (held != NULL && held->said) {
        kve_unit_log(unit->world, KVE_LOG_WARNING,
            "%s: names worker %s rank %u twice; the first one counts",
            unit->name, target->worker, (unsigned)target->rank);
        kve_mem_free(target);
        return;
    }
    if (held == NULL) {
        if (!held_grow(unit)) {
            kve_unit_log(unit->world, KVE_LOG_ERROR,
                "%s: out of memory; worker %s rank %u is not followed",
                unit->name, target->worker, (unsigned)target->rank);
            kve_mem_free(target);
            return;
        }
        held = &unit->held[unit->n_held++];
        memset(held, 0, sizeof(*held));
        held->target = target;
    } else if (kve_target_same(held->target, target)) {
        kve_mem_free(target);
    } else {
        let_go(unit, held);
        held->target = target;
    }
    held->said = true;
    held->leaves_ns = KVE_NEVER;
    if (held->id == 0)
        hold(unit, held);
}

void
kve_unit_say(struct kve_unit *unit, struct kve_targets *targets, int64_t now_ns)
{
    uint32_t grace = unit->world->opts.grace_ms;

    for (size_t i = 0; i < unit->n_held; i++)
        unit->held[i].said = false;
    for (size_t i = 0; i < targets->n; i++) {
        say_one(unit, targets->items[i]);
        targets->items[i] = NULL;
    }
    kve_targets_release(targets);
    for (size_t i = 0; i < unit->n_held; i++) {
        struct kve_unit_held *held = &unit->held[i];

        if (held->said || held->leaves_ns != KVE_NEVER)
            continue;
        held->leaves_ns =
            now_ns + (grace == KVE_NONE ? 0 : (int64_t)grace * KVE_MS);
        kve_unit_log(unit->world, KVE_LOG_INFO,
            "%s: worker %s rank %u is not named any more", unit->name,
            held->target->worker, (unsigned)held->target->rank);
    }
}

int64_t
kve_unit_expire(struct kve_unit *unit, int64_t now_ns)
{
    int64_t next = KVE_NEVER;
    size_t n = 0;

    for (size_t i = 0; i < unit->n_held; i++) {
        struct kve_unit_held *held = &unit->held[i];

        if (held->leaves_ns <= now_ns) {
            let_go(unit, held);
            continue;
        }
        if (held->leaves_ns < next)
            next = held->leaves_ns;
        /* Who has its worker and rank may have left. */
        if (held->id == 0)
            hold(unit, held);
        unit->held[n++] = *held;
    }
    unit->n_held = n;
    return next;
}
