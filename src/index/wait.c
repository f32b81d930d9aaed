/*
 * wait.c - parents that are taught after their children.
 *
 * A chain whose first block has a parent the life does not know hangs on a
 * kve_wait. When the parent is taught, the chain's runs go behind its block:
 * as they are where nothing like them stands there, which is one look-up a
 * run; else block by block into what stands there. The work is a list, not a
 * recursion, and a chain is never put behind itself.
 */
#include "index/writer.h"

#include "base/alloc.h"

#include <string.h>

/* ---- from waiting to placed ---- */

/* A run's blocks do not wait any more. */
static void
unmark(struct kve_space *space, struct kve_run *run)
{
    uint32_t n = kve_run_n_recs(run);

    if ((run->flags & KVE_RUN_WAITING) == 0)
        return;
    run->flags &= ~KVE_RUN_WAITING;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t hot = kve_run_hot(run, i);
        struct kve_scope *scope;

        if (hot == 0)
            continue;
        scope = kve_dir_get(&space->scopes, KVE_HOT_SCOPE(hot));
        if (scope->tier == KVE_TIER_BRIDGE)
            continue;
        scope->waiting -= kve_run_recs(run)[i].held;
        kve_index_count(
            scope->inst, KVE_COUNTER_INDEX_HEALED, kve_run_recs(run)[i].held);
    }
}

/* The run and everything behind it: a walk along the lists of children. */
static void
unmark_tree(struct kve_space *space, uint32_t top)
{
    uint32_t id = top;

    while (id != 0) {
        struct kve_run *run = kve_run_at(space, id);

        unmark(space, run);
        if (run->first_child != 0) {
            id = run->first_child;
            continue;
        }
        while (id != top && run->next == 0) {
            id = KVE_PARENT_ID(kve_run_parent(run));
            run = kve_run_at(space, id);
        }
        id = id == top ? 0 : run->next;
    }
}

static bool
is_waiting(const struct kve_space *space, uint32_t parent)
{
    if ((parent & KVE_PARENT_KIND) == KVE_PARENT_RUN)
        return (kve_run_at(space, KVE_PARENT_ID(parent))->flags &
                   KVE_RUN_WAITING) != 0;
    return (parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT;
}

/* ---- joining runs of equal contents ---- */

/* The copies of one block, and its name, taken from where it waited. */
struct taken {
    struct kve_hash hash;
    uint8_t bytes[64];
    uint8_t *long_bytes; /* of names that do not fit */
    uint32_t n;
    uint32_t scopes[16];
    uint32_t copies[16];
};

static bool
copy_name(struct kve_space *space, struct taken *taken, uint32_t block)
{
    uint8_t *to = taken->bytes;

    taken->hash = kve_name_get(&space->names, block);
    taken->long_bytes = NULL;
    if (taken->hash.bytes == NULL)
        return true;
    if (taken->hash.len > sizeof(taken->bytes)) {
        to = kve_mem_alloc(taken->hash.len);
        if (to == NULL)
            return false;
        taken->long_bytes = to;
    }
    memcpy(to, taken->hash.bytes, taken->hash.len);
    taken->hash.bytes = to;
    return true;
}

/* Take a block of a vector: at most 16 scopes at a time. */
static void
take_block(struct kve_space *space, uint32_t id, uint32_t vec, uint32_t p,
    struct taken *taken)
{
    struct kve_run *run = kve_run_at(space, id);
    uint32_t n = kve_run_n_recs(run);

    taken->n = 0;
    for (uint32_t i = 0; i < n && taken->n < 16; i++) {
        uint64_t hot = kve_run_hot(run, i);
        uint32_t copies;

        if (hot == 0 || kve_run_recs(run)[i].vec != vec ||
            (copies = kve_hold_copies(run, i, p)) == 0)
            continue;
        taken->scopes[taken->n] = KVE_HOT_SCOPE(hot);
        taken->copies[taken->n++] = copies;
        kve_hold_set(space, run, i, p, 0);
    }
    if (kve_run_block(run, vec, p) != KVE_NO_BLOCK &&
        !kve_hold_any(run, vec, p))
        kve_name_kill(space, run, vec, p);
}

/* A block that the life lost in this batch keeps its name to the end of it, at
 * the same position of other. */
static void
move_lost(struct kve_inst *inst, const struct kve_hash *hash, uint32_t other,
    uint32_t p)
{
    struct kve_space *space = inst->space;
    int64_t vec = kve_name_block(
        inst, other, p, hash, kve_name_key(&space->names, hash, 0));
    uint32_t block;

    if (vec < 0)
        return;
    block = kve_run_block(kve_run_at(space, other), (uint32_t)vec, p);
    kve_marks_add_block(&space->apply->lost, block);
    kve_marks_add_block(&space->apply->dead, block);
}

/* A block of the waiting run goes behind *at. */
static void
move_block(struct kve_inst *inst, uint32_t id, uint32_t vec, uint32_t p,
    uint32_t other, struct kve_spot *at)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = kve_run_at(space, id);
    uint64_t content = kve_run_contents(run)[p];
    uint32_t size = run->block_size;
    uint32_t block = kve_run_block(run, vec, p);
    struct kve_spot end = *at;
    struct taken taken;
    bool known = block != KVE_NO_BLOCK && kve_knows(inst, block);

    if (block == KVE_NO_BLOCK || !copy_name(space, &taken, block))
        return;
    do {
        take_block(space, id, vec, p, &taken);
        if (taken.n == 0 && known)
            move_lost(inst, &taken.hash, other, p);
        known = false;
        for (uint32_t i = 0; i < taken.n; i++) {
            struct kve_scope *scope =
                kve_dir_get(&space->scopes, taken.scopes[i]);
            struct kve_spot spot = *at;
            uint64_t stored = space->apply->done.stored;

            if (kve_store_block(inst, scope, &spot, size, content, NULL,
                    &taken.hash, taken.copies[i]) == KVE_OK) {
                space->apply->done.stored = stored;
                if ((kve_run_at(space, spot.run)->flags & KVE_RUN_WAITING) == 0)
                    kve_index_count(scope->inst, KVE_COUNTER_INDEX_HEALED, 1);
                end = spot;
            } else {
                kve_index_count(
                    scope->inst, KVE_COUNTER_INDEX_EVICTED, taken.copies[i]);
            }
        }
    } while (taken.n == 16);
    kve_mem_free(taken.long_bytes);
    *at = end;
}

static uint32_t
common(const struct kve_run *a, const struct kve_run *b)
{
    uint32_t n = kve_run_n(a);
    uint32_t m = kve_run_n(b);
    uint32_t k = 0;

    n = n < m ? n : m;
    while (k < n && kve_run_contents(a)[k] == kve_run_contents(b)[k])
        k++;
    return k;
}

/* Every block of the waiting run stands in other from its start on: move what
 * is held. */
static void
move_blocks(struct kve_inst *inst, uint32_t id, uint32_t other)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = kve_run_at(space, id);
    uint32_t n = kve_run_n(run);
    uint32_t n_vecs = run->n_vecs;

    for (uint32_t p = 0; p < n; p++) {
        for (uint32_t v = 0; v < n_vecs; v++) {
            uint32_t parent = kve_run_parent(kve_run_at(space, other));
            struct kve_spot at = { other, p - 1, 0 };

            if (p == 0)
                at = (parent & KVE_PARENT_KIND) == KVE_PARENT_RUN
                    ? (struct kve_spot){ KVE_PARENT_ID(parent),
                          kve_run_n(kve_run_at(space, KVE_PARENT_ID(parent))) -
                              1,
                          0 }
                    : (struct kve_spot){ 0, 0, parent };
            move_block(inst, id, v, p, other, &at);
        }
    }
    kve_run_at(space, id)->flags |= KVE_RUN_MOVED;
    kve_ids_add(&space->apply->idle, id);
}

/* Children of a run that was moved are to go behind parent. */
static bool
push_children(struct kve_space *space, uint32_t id, uint32_t parent)
{
    struct kve_ids *work = &space->apply->work;
    uint32_t child = kve_run_at(space, id)->first_child;

    for (; child != 0; child = kve_run_at(space, child)->next) {
        if (!kve_ids_add(work, child))
            return false;
        if (!kve_ids_add(work, parent)) {
            work->n--;
            return false;
        }
    }
    return true;
}

/* One run to go behind parent, where other begins with the same content. */
static bool
merge(struct kve_inst *inst, uint32_t id, uint32_t other)
{
    struct kve_space *space = inst->space;
    uint32_t k = common(kve_run_at(space, id), kve_run_at(space, other));
    struct kve_run *front;

    /* Both end where they stop being equal. */
    if (k < kve_run_n(kve_run_at(space, id))) {
        front = kve_run_cut(space, id, k);
        if (front == NULL)
            return false;
        id = front->obj.id;
    }
    if (k < kve_run_n(kve_run_at(space, other))) {
        front = kve_run_cut(space, other, k);
        if (front == NULL)
            return false;
        other = front->obj.id;
    }
    if (!push_children(space, id, KVE_PARENT_RUN | other))
        return false;
    move_blocks(inst, id, other);
    return true;
}

static bool
join_one(struct kve_inst *inst, uint32_t id, uint32_t parent)
{
    struct kve_space *space = inst->space;
    struct kve_run *run = kve_run_at(space, id);
    struct kve_run *other =
        kve_run_child(space, parent, run->block_size, kve_run_contents(run)[0]);

    if (other == run)
        return true;
    if (other != NULL)
        return merge(inst, id, other->obj.id);
    if (!kve_run_relink(space, run, parent))
        return false;
    if (!is_waiting(space, parent))
        unmark_tree(space, id);
    return true;
}

static bool
join(struct kve_inst *inst, uint32_t id, struct kve_spot *at)
{
    struct kve_space *space = inst->space;
    struct kve_ids *work = &space->apply->work;
    uint32_t parent = at->parent;
    bool ok;

    if (at->run != 0) {
        const struct kve_run *run = kve_run_at(space, at->run);

        if (at->pos + 1 < kve_run_n(run)) {
            if (kve_spot_cut(space, at) == NULL)
                return false;
        }
        parent = KVE_PARENT_RUN | at->run;
    }
    work->n = 0;
    ok = join_one(inst, id, parent);
    while (work->n >= 2) {
        uint32_t next = work->ids[work->n - 2];
        uint32_t behind = work->ids[work->n - 1];

        work->n -= 2;
        if (!join_one(inst, next, behind))
            ok = false;
    }
    return ok;
}

/* Does a run with the same content stand behind the spot already? */
static bool
will_merge(
    const struct kve_space *space, uint32_t id, const struct kve_spot *at)
{
    const struct kve_run *run = kve_run_at(space, id);
    const struct kve_run *to = at->run != 0 ? kve_run_at(space, at->run) : NULL;
    uint64_t content = kve_run_contents(run)[0];

    if (to != NULL && at->pos + 1 < kve_run_n(to))
        return to->block_size == run->block_size &&
            kve_run_contents(to)[at->pos + 1] == content;
    return kve_run_child(space, to != NULL ? kve_run_tag(to) : at->parent,
               run->block_size, content) != NULL;
}

bool
kve_wait_join(struct kve_inst *inst, uint32_t id, struct kve_spot *at)
{
    struct kve_ids *idle = &inst->space->apply->idle;
    struct kve_lifted *lifted = NULL;
    size_t before = idle->n;
    uint32_t n = 0;
    bool ok;

    /* Blocks of runs that are merged change their places, and the marks
     * between them; a run that keeps its blocks keeps its marks. */
    if (will_merge(inst->space, id, at))
        lifted = kve_bridges_lift(inst, &n);
    ok = join(inst, id, at);
    if (lifted != NULL)
        kve_bridges_lay(inst, lifted, n);
    /* Children first. */
    for (size_t i = idle->n; i-- > before;)
        kve_run_moved_out(inst->space, idle->ids[i]);
    return ok;
}

/* The next chain to go behind the block that hash names; 0: none. Chains that
 * the block stands behind itself stay: else they had no beginning. */
static uint32_t
next_waiting(
    struct kve_inst *inst, const struct kve_hash *hash, struct kve_spot *ret_at)
{
    struct kve_space *space = inst->space;
    struct kve_wait *wait = kve_wait_of(inst, hash, false);
    struct kve_place place = { NULL, 0, 0 };
    uint32_t block;
    uint32_t id;

    if (wait == NULL)
        return 0;
    block = kve_known(inst, hash, kve_name_key(&space->names, hash, 0));
    if (block != KVE_NO_BLOCK)
        place = kve_place_of(space, block);
    if (place.run == NULL || (place.run->flags & KVE_RUN_LOOSE) != 0)
        return 0;
    *ret_at = (struct kve_spot){ place.run->obj.id, place.pos, 0 };
    id = wait->first_child;
    while (id != 0 &&
        ((kve_run_get(space, id)->flags & KVE_RUN_MOVED) != 0 ||
            kve_spot_behind(space, ret_at, id)))
        id = kve_run_get(space, id)->next;
    return id;
}

void
kve_wait_heal(struct kve_inst *inst, const struct kve_hash *hash)
{
    struct kve_spot at;
    uint32_t id;

    /* Found anew each time: joining cuts runs, and a cut leaves the name with
     * the tail. */
    while ((id = next_waiting(inst, hash, &at)) != 0 &&
        kve_wait_join(inst, id, &at))
        continue;
}
