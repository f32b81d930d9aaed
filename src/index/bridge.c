/*
 * bridge.c - parts of a chain that a store skipped.
 *
 * Some engines store a block behind blocks they never announced, and say what
 * was skipped. Those blocks are not held, but no wall either: a match may pass
 * over them, as long as the block that was stored over them is held. They are
 * marked by copies of a scope of the tier KVE_TIER_BRIDGE, which has no names.
 */
#include "index/writer.h"

#include "base/alloc.h"

#include <string.h>

#define BRIDGES_MAX 16384u
#define LIFTED_MAX 4096u /* marks */

struct kve_bridge {
    uint32_t over; /* block */
    uint32_t n;    /* blocks before it */
};

struct kve_bridges {
    struct kve_bridge *list;
    uint32_t n;
    uint32_t cap;
    bool may_wait; /* some may be in chains that wait */
};

void
kve_bridges_free(struct kve_inst *inst)
{
    struct kve_bridges *bridges = inst->bridges;

    if (bridges == NULL)
        return;
    inst->space->n_bridges -= bridges->n;
    kve_mem_discharge(&inst->space->index->mem,
        sizeof(*bridges) + bridges->cap * sizeof(bridges->list[0]));
    kve_mem_free(bridges->list);
    kve_mem_free(bridges);
    inst->bridges = NULL;
}

static bool
bridges_reserve(struct kve_inst *inst)
{
    struct kve_mem_shared *mem = &inst->space->index->mem;
    struct kve_bridges *bridges = inst->bridges;
    struct kve_bridge *list;
    uint32_t cap;

    if (bridges == NULL) {
        if (!kve_mem_charge(mem, sizeof(*bridges)))
            return false;
        inst->bridges = bridges = kve_mem_zalloc(1, sizeof(*bridges));
        if (bridges == NULL) {
            kve_mem_discharge(mem, sizeof(*bridges));
            return false;
        }
    }
    if (bridges->n < bridges->cap)
        return true;
    cap = bridges->cap == 0 ? 16 : bridges->cap * 2;
    list = cap > BRIDGES_MAX ? NULL
                             : kve_charged_array(mem, bridges->list,
                                   bridges->cap, cap, sizeof(*list));
    if (list == NULL)
        return false;
    bridges->list = list;
    bridges->cap = cap;
    return true;
}

/* One step towards the root; false: there is none. */
static bool
step_back(const struct kve_space *space, struct kve_spot *at)
{
    uint32_t parent;

    if (at->pos > 0) {
        at->pos--;
        return true;
    }
    parent = kve_run_parent(kve_run_at(space, at->run));
    if ((parent & KVE_PARENT_KIND) != KVE_PARENT_RUN)
        return false;
    at->run = KVE_PARENT_ID(parent);
    at->pos = kve_run_n(kve_run_at(space, at->run)) - 1;
    return true;
}

/* Mark n blocks before the spot, or take the marks away; returns how many. */
static uint32_t
mark(struct kve_inst *inst, struct kve_scope *scope, struct kve_spot at,
    uint32_t n, bool add)
{
    struct kve_space *space = inst->space;
    uint32_t done = 0;

    for (; done < n && step_back(space, &at); done++) {
        struct kve_run *run = kve_run_at(space, at.run);
        int64_t rec = kve_rec_find(run, scope->id, KVE_NO_VEC);

        if (add && rec < 0)
            rec = kve_rec_add(space, at.run, scope, KVE_NO_VEC);
        run = kve_run_at(space, at.run);
        if (add) {
            if (rec < 0 ||
                !kve_hold_add(space, run, (uint32_t)rec, at.pos, 1, 1))
                break;
        } else if (rec >= 0) {
            uint32_t copies = kve_hold_copies(run, (uint32_t)rec, at.pos);

            if (copies > 0)
                kve_hold_set(space, run, (uint32_t)rec, at.pos, copies - 1);
        }
    }
    return done;
}

static bool
bridge_add(struct kve_inst *inst, uint32_t block, uint32_t n)
{
    struct kve_space *space = inst->space;
    struct kve_scope *scope = kve_scope_bridge(inst);
    struct kve_place place = { NULL, 0, 0 };
    struct kve_spot over;
    uint32_t done;

    if (block != KVE_NO_BLOCK)
        place = kve_place_of(space, block);
    if (scope == NULL || place.run == NULL || !kve_holds(inst, &place) ||
        !bridges_reserve(inst))
        return false;
    over = (struct kve_spot){ place.run->obj.id, place.pos, 0 };
    done = mark(inst, scope, over, n, true);
    if (done < n) {
        mark(inst, scope, over, done, false);
        return false;
    }
    inst->bridges->list[inst->bridges->n++] = (struct kve_bridge){ block, n };
    inst->bridges->may_wait |=
        (kve_run_at(space, over.run)->flags & KVE_RUN_WAITING) != 0;
    space->n_bridges++;
    return true;
}

bool
kve_bridge_add(struct kve_inst *inst, const struct kve_hash *over, uint32_t n)
{
    uint32_t block =
        kve_known(inst, over, kve_name_key(&inst->space->names, over, 0));

    if (!bridge_add(inst, block, n))
        return false;
    kve_index_count(inst, KVE_COUNTER_INDEX_BRIDGED, n);
    return true;
}

/* The life holds the block no longer: what was passable because of it is not
 * any more. */
void
kve_bridge_gone(struct kve_inst *inst, const struct kve_place *place)
{
    struct kve_bridges *bridges = inst->bridges;
    struct kve_space *space = inst->space;
    uint32_t block = kve_run_block(place->run, place->vec, place->pos);
    struct kve_spot at = { place->run->obj.id, place->pos, 0 };

    for (uint32_t i = 0; i < bridges->n;) {
        struct kve_bridge bridge = bridges->list[i];

        if (bridge.over != block) {
            i++;
            continue;
        }
        bridges->list[i] = bridges->list[--bridges->n];
        space->n_bridges--;
        mark(inst, kve_scope_bridge(inst), at, bridge.n, false);
    }
}

uint32_t
kve_bridge_at(
    const struct kve_inst *inst, uint32_t i, struct kve_hash *ret_over)
{
    const struct kve_bridges *bridges = inst->bridges;

    if (bridges == NULL || i >= bridges->n)
        return 0;
    *ret_over = kve_name_get(&inst->space->names, bridges->list[i].over);
    return bridges->list[i].n;
}

void
kve_bridges_check(struct kve_inst *inst)
{
    struct kve_bridges *bridges = inst->bridges;
    uint32_t i = 0;

    while (bridges != NULL && i < bridges->n) {
        struct kve_place place =
            kve_place_of(inst->space, bridges->list[i].over);
        uint32_t before = bridges->n;

        if (place.run != NULL && !kve_holds(inst, &place))
            kve_bridge_gone(inst, &place);
        if (bridges->n == before)
            i++;
    }
}

void
kve_bridge_moved(struct kve_space *space, uint32_t from, uint32_t to)
{
    uint32_t top = atomic_load_explicit(&space->top_inst, memory_order_relaxed);

    if (space->n_bridges == 0)
        return;
    for (uint32_t id = 1; id < top; id++) {
        struct kve_inst *inst = kve_dir_get(&space->insts, id);

        for (uint32_t i = 0;
             inst != NULL && inst->bridges != NULL && i < inst->bridges->n; i++)
            if (inst->bridges->list[i].over == from)
                inst->bridges->list[i].over = to;
    }
}

/* ---- while chains are joined ---- */

struct kve_lifted {
    struct kve_hash hash; /* bytes are behind the array */
    uint32_t n;
};

/* Those of blocks in chains that wait go to the end of the list: others stay
 * where they are. Returns how many come before them. */
static uint32_t
bridges_part(const struct kve_space *space, struct kve_bridges *bridges)
{
    uint32_t n = bridges->n;

    for (uint32_t i = 0; i < n;) {
        struct kve_bridge bridge = bridges->list[i];
        struct kve_place place = kve_place_of(space, bridge.over);

        if (place.run == NULL || (place.run->flags & KVE_RUN_WAITING) == 0) {
            i++;
            continue;
        }
        bridges->list[i] = bridges->list[--n];
        bridges->list[n] = bridge;
    }
    return n;
}

/* A copy of the bridges from the first on, by the names of their blocks. */
static struct kve_lifted *
bridges_copy(
    const struct kve_names *names, const struct kve_bridge *list, uint32_t n)
{
    size_t size = n * sizeof(struct kve_lifted);
    struct kve_lifted *lifted;
    uint8_t *bytes;

    for (uint32_t i = 0; i < n; i++) {
        struct kve_hash hash = kve_name_get(names, list[i].over);

        size += hash.bytes != NULL ? hash.len : 0;
    }
    lifted = kve_mem_alloc(size);
    if (lifted == NULL)
        return NULL;
    bytes = (uint8_t *)(lifted + n);
    for (uint32_t i = 0; i < n; i++) {
        struct kve_hash hash = kve_name_get(names, list[i].over);

        if (hash.bytes != NULL) {
            memcpy(bytes, hash.bytes, hash.len);
            hash.bytes = bytes;
            bytes += hash.len;
        }
        lifted[i] = (struct kve_lifted){ hash, list[i].n };
    }
    return lifted;
}

/* Very many marks are not laid again: a chain that is joined would be more
 * work than all that was stored since the last one. */
struct kve_lifted *
kve_bridges_lift(struct kve_inst *inst, uint32_t *ret_n)
{
    struct kve_bridges *bridges = inst->bridges;
    struct kve_space *space = inst->space;
    struct kve_lifted *lifted = NULL;
    uint64_t marks = 0;
    uint32_t first;

    *ret_n = 0;
    if (bridges == NULL || !bridges->may_wait)
        return NULL;
    bridges->may_wait = false;
    first = bridges_part(space, bridges);
    if (first == bridges->n)
        return NULL;
    for (uint32_t i = first; i < bridges->n; i++)
        marks += bridges->list[i].n;
    if (marks <= LIFTED_MAX)
        lifted = bridges_copy(
            &space->names, bridges->list + first, bridges->n - first);
    *ret_n = bridges->n - first;
    for (uint32_t i = first; i < bridges->n; i++) {
        struct kve_place place = kve_place_of(space, bridges->list[i].over);
        struct kve_spot at = { place.run->obj.id, place.pos, 0 };

        mark(inst, kve_scope_bridge(inst), at, bridges->list[i].n, false);
    }
    space->n_bridges -= bridges->n - first;
    bridges->n = first;
    return lifted;
}

void
kve_bridges_lay(struct kve_inst *inst, struct kve_lifted *lifted, uint32_t n)
{
    for (uint32_t i = 0; lifted != NULL && i < n; i++) {
        uint32_t block = kve_known_as(inst, &lifted[i].hash,
            kve_name_key(&inst->space->names, &lifted[i].hash, 0));

        (void)bridge_add(inst, block, lifted[i].n);
    }
    kve_mem_free(lifted);
}
