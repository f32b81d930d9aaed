/*
 * life.c - lives of instances, and the scopes where their copies are counted.
 *
 * A scope is seen by readers while it has a view. Making a life visible, and
 * taking one out of sight, is writing views between the two halves of the
 * slot's stamp; what follows, emptying what nobody sees any more, is a matter
 * of memory only and may wait (space.c).
 *
 * Nothing here fails in the middle: what needs memory is got first, and taking
 * out of sight needs none.
 */
#include "index/writer.h"

#include "base/text.h"

#include <string.h>

/* Text of a scope, all together: more is no name of a tier or an owner. */
#define MAX_SCOPE_TEXT 4096u

/* What stands before arrays of pointers: they are objects of the pool, too. */
#define ARRAY_HEAD 16u

#define ALL_TIERS ((1u << KVE_TIERS) - 1)

/* ---- views ---- */

static _Atomic uint64_t *
view_at(struct kve_space *space, uint32_t id)
{
    _Atomic uint64_t *chunk = atomic_load_explicit(
        &space->views[id / KVE_VIEW_CHUNK], memory_order_relaxed);

    return &chunk[id % KVE_VIEW_CHUNK];
}

static void
set_view(struct kve_space *space, uint32_t id, uint64_t view)
{
    atomic_store_explicit(view_at(space, id), view, memory_order_release);
}

/* Is there a place for the view of this id? */
static bool
view_room(struct kve_space *space, uint32_t id)
{
    uint32_t at = id / KVE_VIEW_CHUNK;
    char *p;

    if (atomic_load_explicit(&space->views[at], memory_order_relaxed) != NULL)
        return true;
    /* The array begins behind a line of its own, for the object's head. */
    p = kve_fixed_alloc(space, 64 + KVE_VIEW_CHUNK * sizeof(uint64_t));
    if (p == NULL)
        return false;
    atomic_store_explicit(&space->views[at],
        (_Atomic uint64_t *)(void *)(p + 64), memory_order_release);
    return true;
}

static void
show_scope(struct kve_inst *inst, const struct kve_scope *scope)
{
    set_view(inst->space, scope->id,
        kve_view_make(inst->slot->index, scope->group, scope->tier));
}

/* ---- scopes ---- */

/* What is not said is the GPU. */
static struct kve_str
medium_of(struct kve_str medium)
{
    const struct kve_str none = { NULL, 0 };

    return medium.len == 3 && memcmp(medium.data, "GPU", 3) == 0 ? none
                                                                 : medium;
}

static bool
is_scope_of(const struct kve_scope *scope, const struct kve_event *event)
{
    return scope->group_idx.set == event->group_idx.set &&
        (!scope->group_idx.set ||
            scope->group_idx.value == event->group_idx.value) &&
        kve_str_same(medium_of(scope->medium), medium_of(event->medium)) &&
        kve_str_same(scope->locality, event->locality) &&
        kve_str_same(scope->ownership, event->ownership) &&
        scope->tier != KVE_TIER_BRIDGE;
}

static uint8_t
tier_of(const struct kve_event *event)
{
    static const struct kve_str remote = { "REMOTE", 6 };

    return (uint8_t)(kve_str_same(event->locality, remote)
            ? KVE_TIER_REMOTE
            : kve_medium_tier(event->medium));
}

static struct kve_scope **
array_of(void *object)
{
    return (struct kve_scope **)(void *)((char *)object + ARRAY_HEAD);
}

static void
free_array(struct kve_inst *inst)
{
    if (inst->scopes != NULL)
        kve_pool_free(inst->space->pool, (char *)inst->scopes - ARRAY_HEAD);
    inst->scopes = NULL;
}

/* Room for one more scope in the life's list. */
static bool
list_room(struct kve_inst *inst)
{
    uint32_t cap = inst->cap_scopes == 0 ? 2 : 2 * inst->cap_scopes;
    struct kve_scope **scopes;
    void *object;

    if (inst->n_scopes < inst->cap_scopes)
        return true;
    object = kve_fixed_alloc(inst->space, ARRAY_HEAD + cap * sizeof(scopes[0]));
    if (object == NULL)
        return false;
    scopes = array_of(object);
    if (inst->n_scopes != 0)
        memcpy(scopes, inst->scopes, inst->n_scopes * sizeof(scopes[0]));
    free_array(inst);
    inst->scopes = scopes;
    inst->cap_scopes = cap;
    return true;
}

/* An id for the scope, with a place for its view. */
static kve_status
name_scope(struct kve_space *space, struct kve_scope *scope)
{
    uint32_t id = kve_dir_add(&space->scopes, scope);

    if (id == 0)
        return KVE_E_NOMEM;
    if (id < KVE_VIEW_CHUNK * KVE_VIEW_CHUNKS && view_room(space, id)) {
        scope->id = id;
        set_view(space, id, 0);
        return KVE_OK;
    }
    kve_dir_free(&space->scopes, id);
    return id < KVE_VIEW_CHUNK * KVE_VIEW_CHUNKS ? KVE_E_NOMEM : KVE_E_LIMIT;
}

static kve_status
make_scope(struct kve_inst *inst, const struct kve_event *event, uint8_t tier,
    uint32_t group, struct kve_scope **ret_scope)
{
    size_t text =
        event->medium.len + event->locality.len + event->ownership.len;
    struct kve_scope *scope;
    kve_status status;
    char *at;

    if (text > MAX_SCOPE_TEXT)
        return KVE_E_LIMIT;
    if (!list_room(inst))
        return KVE_E_NOMEM;
    scope = kve_fixed_alloc(inst->space, sizeof(*scope) + text);
    if (scope == NULL)
        return KVE_E_NOMEM;
    at = (char *)(scope + 1);
    scope->inst = inst;
    scope->tier = tier;
    scope->group = group;
    scope->group_idx = event->group_idx;
    scope->medium = kve_str_keep(&at, event->medium);
    scope->locality = kve_str_keep(&at, event->locality);
    scope->ownership = kve_str_keep(&at, event->ownership);
    status = name_scope(inst->space, scope);
    if (status != KVE_OK) {
        kve_pool_free(inst->space->pool, scope);
        return status;
    }
    inst->scopes[inst->n_scopes++] = scope;
    /* Before anything can be held there. */
    kve_inst_shape(inst);
    if (inst->visible)
        show_scope(inst, scope);
    *ret_scope = scope;
    return KVE_OK;
}

static struct kve_scope *
find_scope(const struct kve_inst *inst, const struct kve_event *event)
{
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        if (is_scope_of(inst->scopes[i], event))
            return inst->scopes[i];
    return NULL;
}

static struct kve_scope *
find_bridge(const struct kve_inst *inst)
{
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        if (inst->scopes[i]->tier == KVE_TIER_BRIDGE)
            return inst->scopes[i];
    return NULL;
}

/* A scope for an event that has none: its group first. */
static kve_status
new_scope(struct kve_inst *inst, const struct kve_event *event,
    struct kve_scope **ret_scope)
{
    uint32_t most = inst->space->index->opts.max_scopes +
        (find_bridge(inst) != NULL ? 1 : 0);
    uint32_t group = KVE_NO_GROUP;

    if (inst->n_scopes >= most)
        return KVE_E_LIMIT;
    if (event->group_idx.set) {
        kve_status status = KVE_OK;

        group = kve_group_find(inst, event->group_idx.value);
        if (group == KVE_NO_GROUP)
            status = kve_group_note(inst, event);
        if (status != KVE_OK)
            return status;
        group = kve_group_find(inst, event->group_idx.value);
    }
    return make_scope(inst, event, tier_of(event), group, ret_scope);
}

struct kve_scope *
kve_scope_of(struct kve_inst *inst, const struct kve_event *event, bool make,
    kve_status *ret_status)
{
    struct kve_scope *scope = inst->last_scope;
    kve_status status = KVE_OK;

    if (scope != NULL && is_scope_of(scope, event))
        return scope;
    scope = find_scope(inst, event);
    if (scope == NULL)
        status = make ? new_scope(inst, event, &scope) : KVE_E_NOT_FOUND;
    if (scope == NULL)
        *ret_status = status;
    else
        inst->last_scope = scope;
    return scope;
}

struct kve_scope *
kve_scope_bridge(struct kve_inst *inst)
{
    static const struct kve_event nothing;
    struct kve_scope *scope = find_bridge(inst);

    if (scope == NULL)
        (void)make_scope(inst, &nothing, KVE_TIER_BRIDGE, KVE_NO_GROUP, &scope);
    return scope;
}

/* Out of sight: to be drained. */
static void
retire_scope(struct kve_scope *scope)
{
    struct kve_space *space = scope->inst->space;

    scope->retired = true;
    scope->next_retired = NULL;
    scope->inst->n_draining++;
    if (space->last_drain != NULL)
        space->last_drain->next_retired = scope;
    else
        space->drain = scope;
    space->last_drain = scope;
}

void
kve_scope_free(struct kve_scope *scope)
{
    struct kve_space *space = scope->inst->space;

    scope->inst->n_draining--;
    kve_pool_retire_id(space->pool, KVE_ID_SCOPE, scope->id);
    kve_pool_retire(space->pool, scope);
}

/* ---- lives ---- */

struct kve_inst *
kve_inst_create(struct kve_slot *slot, bool counts)
{
    struct kve_space *space =
        atomic_load_explicit(&slot->space, memory_order_relaxed);
    struct kve_inst *inst = kve_fixed_alloc(space, sizeof(*inst));

    if (inst == NULL)
        return NULL;
    inst->owner = kve_dir_add(&space->insts, inst);
    if (inst->owner == 0) {
        kve_pool_free(space->pool, inst);
        return NULL;
    }
    if (inst->owner >=
        atomic_load_explicit(&space->top_inst, memory_order_relaxed))
        atomic_store_explicit(
            &space->top_inst, inst->owner + 1, memory_order_release);
    kve_name_owner_init(&inst->names, inst->owner);
    inst->slot = slot;
    inst->space = space;
    inst->counts = counts;
    return inst;
}

void
kve_inst_free(struct kve_inst *inst)
{
    struct kve_space *space = inst->space;
    struct kve_groups *groups =
        atomic_load_explicit(&inst->groups, memory_order_relaxed);

    kve_name_owner_release(&space->names, &inst->names);
    if (groups != NULL)
        kve_pool_retire(space->pool, groups);
    free_array(inst);
    kve_dir_set(&space->insts, inst->owner, NULL);
    kve_pool_retire_id(space->pool, KVE_ID_INST, inst->owner);
    kve_pool_retire(space->pool, inst);
}

/*
 * The short way of a reader knows one scope on the GPU and adds up blocks. A
 * group asks for more where it does not need all of its blocks, where its
 * blocks have several sizes (its prefixes end at multiples of the last one),
 * or where it has no scope of its own: then it lacks everything.
 */
static bool
is_complex(const struct kve_inst *inst)
{
    const struct kve_groups *groups =
        atomic_load_explicit(&inst->groups, memory_order_relaxed);
    uint32_t n = groups == NULL
        ? 0
        : atomic_load_explicit(&groups->n, memory_order_relaxed);

    if (inst->complex || inst->n_scopes > 1 || n > 1 ||
        (n == 1 && inst->n_sizes > 1))
        return true;
    if (n == 1 &&
        atomic_load_explicit(&groups->info[0].need, memory_order_relaxed) !=
            KVE_NEED_ALL)
        return true;
    if (inst->n_scopes == 0)
        return false;
    return inst->scopes[0]->tier != KVE_TIER_GPU ||
        (n == 1 && inst->scopes[0]->group == KVE_NO_GROUP);
}

void
kve_inst_shape(struct kve_inst *inst)
{
    if (inst->visible && is_complex(inst))
        atomic_store_explicit(
            &inst->slot->shape, KVE_SHAPE_COMPLEX, memory_order_release);
}

static void
stamp(struct kve_slot *slot, memory_order order)
{
    atomic_store_explicit(&slot->stamp,
        atomic_load_explicit(&slot->stamp, memory_order_relaxed) + 1, order);
}

static void
hide(struct kve_inst *inst)
{
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        set_view(inst->space, inst->scopes[i]->id, 0);
}

void
kve_inst_show(struct kve_slot *slot, struct kve_inst *inst)
{
    struct kve_inst *old =
        atomic_load_explicit(&slot->inst, memory_order_relaxed);
    struct kve_space *space = inst != NULL ? inst->space : old->space;

    kve_space_gone(space, 1);
    stamp(slot, memory_order_relaxed);
    if (old != NULL)
        hide(old);
    atomic_store_explicit(&slot->inst, inst, memory_order_release);
    atomic_store_explicit(&slot->shape,
        inst != NULL && is_complex(inst) ? KVE_SHAPE_COMPLEX : 0,
        memory_order_release);
    if (inst != NULL) {
        inst->visible = true;
        for (uint32_t i = 0; i < inst->n_scopes; i++)
            show_scope(inst, inst->scopes[i]);
    }
    stamp(slot, memory_order_release);
    kve_space_gone(space, 1);
    if (old != NULL) {
        old->visible = false;
        kve_inst_retire(old);
    }
}

void
kve_inst_retire(struct kve_inst *inst)
{
    struct kve_space *space = inst->space;

    /* Its marks are a scope like others from now on. */
    kve_bridges_free(inst);
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        retire_scope(inst->scopes[i]);
    inst->n_scopes = 0;
    inst->last_scope = NULL;
    inst->retired = true;
    inst->slot = space->no_slot;
    kve_life_append(space, inst);
}

/* Which scopes go: of these tiers, and of this medium and this ownership
 * where they are given. Marks of skipped parts go with the blocks over them
 * (bridge.c). */
struct clearing {
    uint32_t tiers;
    const struct kve_str *medium;
    const struct kve_str *ownership;
};

static bool
is_cleared(const struct kve_scope *scope, const struct clearing *clearing)
{
    if (scope->tier == KVE_TIER_BRIDGE)
        return false;
    if (clearing->medium != NULL &&
        !kve_str_same(medium_of(scope->medium), medium_of(*clearing->medium)))
        return false;
    if (clearing->ownership != NULL &&
        !kve_str_same(scope->ownership, *clearing->ownership))
        return false;
    return (clearing->tiers >> scope->tier & 1) != 0;
}

static bool
is_cleared_whole(const struct kve_inst *inst, const struct clearing *clearing)
{
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        if (inst->scopes[i]->tier != KVE_TIER_BRIDGE &&
            !is_cleared(inst->scopes[i], clearing))
            return false;
    return true;
}

/* Scopes go to the grave and the life goes on. */
static void
clear_some(struct kve_inst *inst, const struct clearing *clearing)
{
    struct kve_space *space = inst->space;
    uint32_t all = inst->n_scopes;
    uint32_t n = 0;

    kve_stamp_begin(inst);
    for (uint32_t i = 0; i < inst->n_scopes; i++)
        if (is_cleared(inst->scopes[i], clearing))
            set_view(space, inst->scopes[i]->id, 0);
    kve_stamp_end(inst);
    /* Those that stay to the front; the others are behind them. */
    for (uint32_t i = 0; i < all; i++) {
        struct kve_scope *scope = inst->scopes[i];

        if (!is_cleared(scope, clearing)) {
            inst->scopes[i] = inst->scopes[n];
            inst->scopes[n++] = scope;
        }
    }
    inst->n_scopes = n;
    inst->last_scope = NULL;
    inst->last_block = 0;
    inst->changes++;
    kve_bridges_check(inst);
    for (uint32_t i = n; i < all; i++) {
        struct kve_scope *scope = inst->scopes[i];

        scope->inst = space->grave;
        /* Names of its own are found as long as they are there, so nothing
         * of what was cleared may stay. */
        while (inst->n_private > 0 && !kve_scope_drain(space, scope, SIZE_MAX))
            continue;
        retire_scope(scope);
    }
}

/* Another life that knows the groups of this one, or NULL: no memory. */
static struct kve_inst *
heir_of(struct kve_inst *inst)
{
    struct kve_inst *heir = kve_inst_create(inst->slot, inst->counts);

    if (heir == NULL)
        return NULL;
    atomic_store_explicit(&heir->groups,
        atomic_load_explicit(&inst->groups, memory_order_relaxed),
        memory_order_relaxed);
    heir->batches = inst->batches;
    memcpy(heir->sizes, inst->sizes, sizeof(heir->sizes));
    heir->n_sizes = inst->n_sizes;
    return heir;
}

/* Put another life in the place of one, visible or twin as that was. */
static void
replace(struct kve_inst *inst, struct kve_inst *fresh)
{
    struct kve_slot *slot = inst->slot;

    if (inst->visible) {
        kve_inst_show(slot, fresh);
    } else {
        slot->twin = fresh;
        kve_inst_retire(inst);
    }
}

static struct kve_inst *
clear(struct kve_inst *inst, const struct clearing *clearing)
{
    struct kve_inst *heir = NULL;

    if (inst->n_private > 0 && is_cleared_whole(inst, clearing))
        heir = heir_of(inst);
    if (heir == NULL) {
        clear_some(inst, clearing);
        return inst;
    }
    replace(inst, heir);
    /* Readers that still look at the old life start again. */
    atomic_store_explicit(&inst->groups, NULL, memory_order_release);
    return heir;
}

struct kve_inst *
kve_inst_clear_tiers(struct kve_inst *inst, uint32_t tiers)
{
    const struct clearing clearing = { tiers, NULL, NULL };

    return clear(inst, &clearing);
}

struct kve_inst *
kve_inst_clear_medium(
    struct kve_inst *inst, struct kve_str medium, struct kve_str ownership)
{
    const struct clearing clearing = { ALL_TIERS, &medium,
        ownership.len > 0 ? &ownership : NULL };

    return clear(inst, &clearing);
}

struct kve_inst *
kve_inst_clear_owner(struct kve_inst *inst, struct kve_str ownership)
{
    const struct clearing clearing = { ALL_TIERS, NULL, &ownership };

    return clear(inst, &clearing);
}

/* Empty a life where it stands: no memory for another one. */
static void
empty(struct kve_inst *inst)
{
    struct kve_groups *groups =
        atomic_load_explicit(&inst->groups, memory_order_relaxed);

    kve_stamp_begin(inst);
    hide(inst);
    atomic_store_explicit(&inst->groups, NULL, memory_order_release);
    if (inst->visible)
        atomic_store_explicit(&inst->slot->shape, 0, memory_order_release);
    kve_stamp_end(inst);
    if (groups != NULL)
        kve_pool_retire(inst->space->pool, groups);
    kve_bridges_free(inst);
    for (uint32_t i = 0; i < inst->n_scopes; i++) {
        struct kve_scope *scope = inst->scopes[i];

        while (!kve_scope_drain(inst->space, scope, SIZE_MAX))
            continue;
        inst->n_draining++; /* kve_scope_free() takes it off */
        kve_scope_free(scope);
    }
    inst->n_scopes = 0;
    inst->last_scope = NULL;
    inst->last_block = 0;
    inst->changes++;
    inst->n_sizes = 0;
}

struct kve_inst *
kve_inst_renew(struct kve_inst *inst)
{
    struct kve_inst *fresh = kve_inst_create(inst->slot, inst->counts);

    if (fresh == NULL) {
        empty(inst);
        return inst;
    }
    fresh->batches = inst->batches;
    replace(inst, fresh);
    return fresh;
}
