/*
 * residency.c - see residency.h: batches, clears, the whole.
 */
#include "publish/residency.h"

#include "publish/blocks.h"
#include "publish/teach.h"

#include "base/alloc.h"

#include <string.h>

/* Scratch that is larger than this is given back. */
#define KEEP_IDS 65536

void
kve_residency_init(struct kve_residency *r, uint64_t max_blocks, bool clear_all)
{
    memset(r, 0, sizeof(*r));
    r->free = KVE_NO_ID;
    r->max_blocks = max_blocks;
    r->clear_all = clear_all;
}

/* Nothing is in the cache. */
static void
empty(struct kve_residency *r)
{
    kve_blocks_release(r);
    kve_teach_release(r);
    kve_intern_release(&r->scopes);
    kve_intern_release(&r->attrs);
    r->n_lacking = 0;
}

void
kve_residency_release(struct kve_residency *r)
{
    empty(r);
    kve_mem_free(r->ids);
    kve_buffer_release(&r->text);
    kve_residency_init(r, r->max_blocks, r->clear_all);
}

void
kve_residency_lose(struct kve_residency *r)
{
    empty(r);
    r->lost = true;
}

size_t
kve_residency_memory(const struct kve_residency *r)
{
    size_t slots = r->mask == 0 ? 0 : (size_t)r->mask + 1;
    size_t bytes =
        r->cap_blocks * sizeof(*r->blocks) + slots * 2 * sizeof(uint32_t);

    for (const struct kve_origin *o = r->origins; o != NULL; o = o->next)
        bytes +=
            sizeof(*o) + o->n * sizeof(uint32_t) * (1 + (size_t)o->block_size);
    return bytes;
}

/* ---- stores and removals ---- */

static bool
ids_have_room(struct kve_residency *r, size_t n)
{
    uint32_t *ids;

    if (n <= r->cap_ids)
        return true;
    r->no_memory = true;
    ids = kve_mem_array(r->ids, n, sizeof(*ids));
    if (ids == NULL)
        return false;
    r->ids = ids;
    r->cap_ids = n;
    return true;
}

static bool
add_all(struct kve_residency *r, const struct kve_event *ev, uint32_t scope)
{
    for (size_t i = 0; i < ev->n_hashes; i++) {
        r->ids[i] = kve_blocks_get(r, &ev->hashes[i]);
        if (r->ids[i] == KVE_NO_ID || !kve_blocks_add(r, r->ids[i], scope))
            return false;
    }
    return true;
}

/* false: it could not be counted, and some of it was. */
static bool
apply_stored(struct kve_residency *r, const struct kve_event *ev)
{
    uint32_t scope;
    bool ok;

    if (ev->n_hashes == 0)
        return true;
    if (!ids_have_room(r, ev->n_hashes))
        return false;
    scope = kve_teach_scope(r, ev);
    if (scope == KVE_NO_ID)
        return false;
    ok = add_all(r, ev, scope);
    if (ok)
        kve_teach(r, ev, r->ids, scope);
    kve_residency_scope_unref(r, scope);
    return ok;
}

static bool
apply_removed(struct kve_residency *r, const struct kve_event *ev)
{
    uint32_t scope = kve_teach_scope(r, ev);

    if (scope == KVE_NO_ID)
        return false;
    for (size_t i = 0; i < ev->n_hashes; i++) {
        uint32_t id = kve_blocks_find(r, &ev->hashes[i]);

        if (id == KVE_NO_ID || !kve_blocks_take(r, id, scope))
            r->below++;
        else
            kve_blocks_give_up(r, id);
    }
    kve_residency_scope_unref(r, scope);
    return true;
}

/* ---- clears ---- */

static bool
same_text(struct kve_str a, struct kve_str b)
{
    return (a.data == NULL) == (b.data == NULL) && a.len == b.len &&
        (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Absent, "" and "GPU" are one. */
static bool
same_medium(struct kve_str a, struct kve_str b)
{
    static const struct kve_str gpu = { "GPU", 3 };

    return same_text(a.len == 0 ? gpu : a, b.len == 0 ? gpu : b);
}

/* Whether a clear empties a scope. */
static bool
is_cleared(const struct kve_residency *r, const struct kve_event *clear,
    uint32_t scope)
{
    struct kve_event of;

    memset(&of, 0, sizeof(of));
    kve_residency_scope(r, scope, &of);
    if (clear->type == KVE_EVENT_TIER_CLEARED &&
        !same_medium(clear->medium, of.medium))
        return false;
    if (clear->ownership.data != NULL)
        return same_text(clear->ownership, of.ownership);
    return clear->type == KVE_EVENT_TIER_CLEARED || r->clear_all ||
        kve_medium_tier(of.medium) == KVE_TIER_GPU;
}

/* A clear after which nothing is left, whatever was there. */
static bool
clears_everything(const struct kve_residency *r, const struct kve_event *ev)
{
    return ev->type == KVE_EVENT_CLEARED && ev->ownership.data == NULL &&
        r->clear_all;
}

static void
apply_cleared(struct kve_residency *r, const struct kve_event *ev)
{
    bool all = true;

    for (uint32_t i = 0; i < r->scopes.n; i++) {
        if (r->scopes.entry[i].refs == 0)
            continue;
        r->scopes.entry[i].marked = is_cleared(r, ev, i);
        all &= r->scopes.entry[i].marked;
    }
    if (all) {
        empty(r);
        return;
    }
    for (uint32_t id = 0; id < r->n_blocks; id++)
        if (r->blocks[id].used) {
            kve_blocks_take_marked(r, id);
            kve_blocks_give_up(r, id);
        }
}

/* ---- batches ---- */

static bool
apply_event(struct kve_residency *r, const struct kve_event *ev)
{
    switch (ev->type) {
    case KVE_EVENT_STORED:
        return apply_stored(r, ev);
    case KVE_EVENT_REMOVED:
        return apply_removed(r, ev);
    default:
        apply_cleared(r, ev);
        return true;
    }
}

/* The place of the last event that could not be read and that may have said
 * something, or -1. An unknown type says nothing about residency. */
static int64_t
last_fault(const kve_batch *batch)
{
    const struct kve_batch_info *info = kve_batch_get_info(batch);
    const struct kve_fault *fault;
    int64_t last = -1;
    size_t i;

    for (i = 0; (fault = kve_batch_fault(batch, i)) != NULL; i++)
        if (fault->reason != KVE_FAULT_UNKNOWN_TAG)
            last = (int64_t)fault->index;
    return i < info->n_faults ? INT64_MAX : last;
}

bool
kve_residency_apply(
    struct kve_residency *r, kve_batch *batch, kve_status status)
{
    const struct kve_event *ev;
    int64_t cleared_at = -1;
    bool was_lost = r->lost;
    bool ok = true;

    r->no_memory = status == KVE_E_NOMEM;
    while (ok && (ev = kve_batch_next(batch)) != NULL) {
        if (clears_everything(r, ev)) {
            empty(r);
            r->lost = false;
            cleared_at = (int64_t)ev->index;
        } else if (!r->lost) {
            ok = apply_event(r, ev);
        }
    }
    if (r->cap_ids > KEEP_IDS) {
        kve_mem_free(r->ids);
        r->ids = NULL;
        r->cap_ids = 0;
    }
    ok = ok && status == KVE_OK && last_fault(batch) <= cleared_at;
    if (ok) {
        kve_blocks_compact(r);
        return true;
    }
    kve_residency_lose(r);
    return was_lost && cleared_at < 0;
}
