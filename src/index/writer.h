/*
 * writer.h - what the one writer of a namespace does to runs.
 *
 * All of it runs under the namespace's lock. The order of reading:
 *
 *     run.c     runs as objects: make, grow, find; vectors of hashes
 *     record.c  records: who holds blocks of a run
 *     cut.c     a run becomes two where chains part; join.c: the opposite
 *     finish.c  what is left of a run when blocks went
 *     hold.c    copies: add, remove, lead and bits
 *     name.c    hashes of blocks: which block an instance means, naming new
 *               ones, blocks that die
 *     store.c   a store: from its parent along the chain
 *     wait.c    parents that are taught later; joining what waited for them
 *     loose.c   blocks that are known by hash only
 *     remove.c  removals; the end of a batch
 *     apply.c   events of a batch, one after another; the public functions
 *     restore.c what a dump said, given back
 *     evict.c   forgetting to stay below a limit; draining lives that are over
 *
 * A run's object may be replaced by everything that takes a kve_run_id, so
 * pointers are fetched again after such a call.
 *
 * No step fails in its middle: what needs memory is got before anything is
 * changed. Where that is impossible the step gives up residency (too little is
 * said, and counted), never structure.
 */
#ifndef KVE_INDEX_WRITER_H
#define KVE_INDEX_WRITER_H

#include "index/run.h"

/* What the writer reads of a run: nobody else writes it. */
static inline uint32_t
kve_run_n(const struct kve_run *run)
{
    return atomic_load_explicit(&run->n, memory_order_relaxed);
}

static inline uint32_t
kve_run_n_recs(const struct kve_run *run)
{
    return atomic_load_explicit(&run->n_recs, memory_order_relaxed);
}

static inline uint32_t
kve_run_parent(const struct kve_run *run)
{
    return atomic_load_explicit(&run->parent, memory_order_relaxed);
}

static inline uint64_t
kve_run_hot(const struct kve_run *run, uint32_t rec)
{
    return atomic_load_explicit(&run->hot[rec], memory_order_relaxed);
}

static inline struct kve_aux *
kve_run_aux(const struct kve_run *run, uint32_t rec)
{
    return atomic_load_explicit(
        &kve_run_recs(run)[rec].aux, memory_order_relaxed);
}

/* A growing list of numbers, in memory that counts. */
struct kve_ids {
    struct kve_mem_shared *mem;
    uint32_t *ids;
    size_t n;
    size_t cap;
};
bool kve_ids_add(struct kve_ids *list, uint32_t id);
void kve_ids_release(struct kve_ids *list);

/* Blocks, as granules with a bit for each: pairs (first block of a granule,
 * mask) in a list. The same block may be in it twice. */
static inline bool
kve_marks_add(struct kve_ids *marks, uint32_t granule, uint32_t mask)
{
    if (marks->n > 0 && marks->ids[marks->n - 2] == granule) {
        marks->ids[marks->n - 1] |= mask;
        return true;
    }
    if (!kve_ids_add(marks, granule))
        return false;
    if (kve_ids_add(marks, mask))
        return true;
    marks->n--;
    return false;
}

static inline bool
kve_marks_add_block(struct kve_ids *marks, uint32_t block)
{
    return kve_marks_add(
        marks, block & ~(KVE_GRANULE - 1), 1u << block % KVE_GRANULE);
}

/* What a batch leaves for its end, and scratch. */
struct kve_apply {
    struct kve_inst *inst; /* whose batch it is; NULL: none is running */
    struct kve_ids dead;   /* marks: blocks that nobody may hold any more */
    struct kve_ids idle;   /* runs with records that may be empty */
    /* Marks: blocks the instance lost in this batch: it knows them to the end.
     * A set in lost_set, built when it is first asked. */
    struct kve_ids lost;
    uint32_t *lost_set;
    size_t lost_cap;  /* of the set, a power of two; 0: not built */
    size_t lost_seen; /* of lost: how many are in the set */
    uint64_t *keys;   /* of the hashes of the event at hand */
    size_t cap_keys;
    uint64_t *dynamo;
    size_t cap_dynamo;
    struct kve_ids work; /* of kve_wait_join */
    struct kve_index_applied done;
};

/* Where the next block of a chain goes: behind position pos of run, or, run
 * 0, as a child of parent. */
struct kve_spot {
    uint32_t run;
    uint32_t pos;
    uint32_t parent;
};

/* ---- run.c ---- */

/* What a new run is to have room for. */
struct kve_run_shape {
    uint32_t cap;
    uint32_t cap_recs;
    uint32_t cap_vecs;
};

/* A run behind parent, without blocks, not yet found by its first content
 * (kve_run_link()). NULL: no memory. */
struct kve_run *kve_run_create(struct kve_space *space, uint32_t block_size,
    uint32_t flags, const struct kve_run_shape *shape);
/* Put it behind parent; it has its first content. false: no memory. */
bool kve_run_link(
    struct kve_space *space, struct kve_run *run, uint32_t parent);
/* A run that readers never found: free it. */
void kve_run_discard(struct kve_space *space, struct kve_run *run);
/* From the parent it has to another one; false: no memory. */
bool kve_run_relink(
    struct kve_space *space, struct kve_run *run, uint32_t parent);
/* Take it from its parent (who may be freed, when nothing is left of it). */
void kve_run_unlink(struct kve_space *space, struct kve_run *run);
/* Another object for the run with at least this room; NULL: no memory, and
 * nothing changed. */
struct kve_run *kve_run_reserve(
    struct kve_space *space, struct kve_run *run, struct kve_run_shape shape);
/* Cut before position at (0 < at < n). Returns the front; the tail keeps the
 * id. NULL: no memory, and nothing changed. */
struct kve_run *kve_run_cut(struct kve_space *space, uint32_t run, uint32_t at);
/* Cut behind the spot, which names the same block afterwards, the last one of
 * the run that is returned. NULL: no memory; the spot is as it was. */
struct kve_run *kve_spot_cut(struct kve_space *space, struct kve_spot *at);
/* The child of parent that begins with this content, or NULL. */
struct kve_run *kve_run_child(const struct kve_space *space, uint32_t parent,
    uint32_t block_size, uint64_t content);
/* A run whose blocks went elsewhere goes at once, if it can: what else waits
 * behind the same parent is found without passing it. */
void kve_run_moved_out(struct kve_space *space, uint32_t id);
/* Take away empty records, unused vectors, dead blocks at the end, and the
 * run itself when nothing is left of it and behind it; then the same for what
 * it stood behind. Returns the run that stayed, or 0. */
uint32_t kve_run_finish(struct kve_space *space, uint32_t run);
/* Join the run with what stands behind it, where that is one run and joining
 * takes little. Not while anything else is going on: ids of runs die. */
void kve_run_join(struct kve_space *space, uint32_t run);
static inline uint32_t
kve_run_tag(const struct kve_run *run)
{
    return KVE_PARENT_RUN | run->obj.id;
}

/* The record of (scope, vec), or any of the scope with vec KVE_NO_VEC - 1
 * (KVE_ANY_VEC); -1: none. */
#define KVE_ANY_VEC 0xfffeu
int64_t kve_rec_find(const struct kve_run *run, uint32_t scope, uint32_t vec);
/* Make one; -1: no memory. The run's object may be another one after it. */
int64_t kve_rec_add(struct kve_space *space, uint32_t run,
    struct kve_scope *scope, uint32_t vec);

/* A vector without blocks; -1: no memory. May replace the run's object. */
int64_t kve_vec_add(struct kve_space *space, uint32_t run, uint32_t owner,
    enum kve_name_form form, uint32_t phase);

/* The block at position p of a vector: its id, or 0 when it has none. */
static inline uint32_t
kve_run_block(const struct kve_run *run, uint32_t v, uint32_t p)
{
    uint32_t at = p + kve_run_vecs(run)[v].phase;
    uint32_t g = at / KVE_GRANULE;
    uint32_t s = at % KVE_GRANULE;

    if ((kve_run_live(run, v)[g] >> s & 1) == 0)
        return KVE_NO_BLOCK;
    return atomic_load_explicit(
               &kve_run_granules(run, v)[g], memory_order_relaxed) +
        s;
}

/* ---- bridge.c, while chains are joined ---- */

/* Take all marks of skipped parts away, and put them where the blocks over
 * them are then. Without memory they are lost: too little is said. */
struct kve_lifted *kve_bridges_lift(struct kve_inst *inst, uint32_t *ret_n);
void kve_bridges_lay(
    struct kve_inst *inst, struct kve_lifted *lifted, uint32_t n);

/* ---- hold.c ---- */

/* Add copies of blocks p..p+k-1, which have names in the record's vector (or
 * none, for bridges). false: no memory, and nothing changed. */
bool kve_hold_add(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t p, uint32_t k, uint32_t copies);
/* Copies the record has of the block at p; 0: not held. */
uint32_t kve_hold_copies(const struct kve_run *run, uint32_t rec, uint32_t p);
/* Leave only n copies of it; 0: it goes. Says so in apply's lists. Without
 * memory for a hole everything behind p goes too (counted as evicted). */
void kve_hold_set(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t p, uint32_t n);
/* A life that nobody sees becomes one of sets: what it holds it holds once. */
void kve_hold_fold(struct kve_inst *inst);
/* Take one copy (in an instance of sets: all) of each of the blocks lo..hi-1,
 * which the record holds. Says so in apply's lists as kve_hold_set() does. */
void kve_hold_take(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t lo, uint32_t hi);
/* Does any record of this vector hold p? And which of these blocks of granule
 * g? */
bool kve_hold_any(const struct kve_run *run, uint32_t vec, uint32_t p);
uint32_t kve_hold_mask(
    const struct kve_run *run, uint32_t vec, uint32_t g, uint32_t of);
/* One behind the last block the record holds. */
uint32_t kve_hold_end(const struct kve_run *run, uint32_t rec);
/* Aux objects. */
struct kve_aux *kve_aux_create(
    struct kve_space *space, uint32_t run, uint32_t n, uint32_t width);
uint32_t kve_aux_count(const struct kve_aux *aux, uint32_t p);
void kve_aux_count_set(struct kve_aux *aux, uint32_t p, uint32_t count);
/* Bits of the record as if it had an aux: word w. */
uint64_t kve_hold_word(const struct kve_run *run, uint32_t rec, uint32_t w);

/* Say where a granule's blocks are. */
void kve_home_set(struct kve_space *space, uint32_t granule, uint32_t run,
    uint32_t place, uint32_t vec);

/* ---- name.c ---- */

/* The pages of an owner: shared (0) or a life's. */
struct kve_name_owner *kve_name_owner_of(
    struct kve_space *space, uint32_t owner);

/* The block a life means by a hash, with the hash's shared key; 0: unknown to
 * it. Also blocks it lost in the running batch. */
uint32_t kve_known(
    struct kve_inst *inst, const struct kve_hash *hash, uint64_t key);
/* The same by this very name only. */
uint32_t kve_known_as(
    struct kve_inst *inst, const struct kve_hash *hash, uint64_t key);
/* Does the life hold this block in any scope (or lost it in this batch)? */
bool kve_knows(struct kve_inst *inst, uint32_t block);
/* Does it hold it now? */
bool kve_holds(struct kve_inst *inst, const struct kve_place *place);

/* Give the block at p of run a name: a block of a vector that inst may use,
 * found or made. Returns the vector, -1: no memory. May replace the object. */
int64_t kve_name_block(struct kve_inst *inst, uint32_t run, uint32_t p,
    const struct kve_hash *hash, uint64_t key);
/* Enter a name for p in vec, whose place is empty. false: no memory. The
 * run's object stays. */
bool kve_name_place(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t p, const struct kve_hash *hash, uint64_t key);
/* The same for k blocks from p on, as long as their places are empty and no
 * block of the vector's owner has the hash; keys are those of that owner.
 * Returns how many. */
uint32_t kve_name_place_row(struct kve_space *space, struct kve_run *run,
    uint32_t vec, uint32_t p, const struct kve_hash *hashes,
    const uint64_t *keys, uint32_t k);
/* The block loses its name; nobody holds it. And several of a granule. */
void kve_name_kill(
    struct kve_space *space, struct kve_run *run, uint32_t vec, uint32_t p);
void kve_name_kill_mask(struct kve_space *space, struct kve_run *run,
    uint32_t vec, uint32_t g, uint32_t mask);
/* The keys of a granule's blocks by slot, their buckets on the way; and the
 * same as before with those. */
void kve_name_fetch(struct kve_space *space, uint32_t granule, uint32_t mask,
    uint64_t ret_keys[KVE_GRANULE]);
void kve_name_kill_fetched(struct kve_space *space, struct kve_run *run,
    uint32_t vec, uint32_t g, uint32_t mask, const uint64_t keys[KVE_GRANULE]);
/* A block has another id now. */
void kve_block_moved(struct kve_space *space, uint32_t from, uint32_t to);

/* ---- bridge.c ---- */

/* Blocks of a skipped part that a life may pass over, for as long as it holds
 * the block that was stored over them. over: that block; n blocks before it.
 * false: no memory, or too many. */
bool kve_bridge_add(
    struct kve_inst *inst, const struct kve_hash *over, uint32_t n);
/* The life, which has bridges, may hold the block no longer; it has another
 * id. */
void kve_bridge_gone(struct kve_inst *inst, const struct kve_place *place);
/* The i-th of them: how many blocks, and what was stored over them. 0: there
 * are no more. */
uint32_t kve_bridge_at(
    const struct kve_inst *inst, uint32_t i, struct kve_hash *ret_over);
void kve_bridge_moved(struct kve_space *space, uint32_t from, uint32_t to);

/* ---- apply.c ---- */

/* Scratch for n keys, n Dynamo hashes; false: no memory. */
bool kve_apply_keys(struct kve_space *space, size_t n);
bool kve_apply_dynamo(struct kve_space *space, size_t n);

/* ---- store.c, wait.c, loose.c, remove.c ---- */

kve_status kve_store(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_event *event, const struct kve_event_content *content);
/* One block: behind *at, with this name and content, copies for scope. */
kve_status kve_store_block(struct kve_inst *inst, struct kve_scope *scope,
    struct kve_spot *at, uint32_t block_size, uint64_t content,
    const uint64_t *dynamo, const struct kve_hash *hash, uint32_t copies);
/* A root or a wait that was made for a store, and then nothing was stored
 * behind it. */
void kve_store_leave(struct kve_inst *inst, const struct kve_spot *start);
/* What a dump said of a run (restore.c): its contents behind *at, which stands
 * at their end afterwards, and that is the end of a run. It stays so until the
 * end of the batch: nothing but kve_store_*() of these four is called. false:
 * no memory. */
bool kve_store_run(struct kve_space *space, struct kve_spot *at,
    const struct kve_index_run *run);
/* Along k of its contents, which are there. */
bool kve_store_pass(struct kve_space *space, struct kve_spot *at,
    const struct kve_index_run *run, uint32_t from, uint32_t k);
/* The same, and they are held under these hashes. KVE_E_INVAL: one of them has
 * another place. */
kve_status kve_store_held(struct kve_inst *inst, struct kve_scope *scope,
    struct kve_spot *at, const struct kve_index_run *run, uint32_t from,
    uint32_t k, const struct kve_hash *hashes, uint32_t copies);
/* Hash-only blocks. */
kve_status kve_store_loose(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_hash *hash, uint32_t copies);
/* Is run id the run of the spot, or one it stands behind? */
bool kve_spot_behind(
    const struct kve_space *space, const struct kve_spot *at, uint32_t id);

/* A hash was taught: what waited for it joins the chain behind its block. */
void kve_wait_heal(struct kve_inst *inst, const struct kve_hash *hash);
/* A run that waited begins behind *at instead, which names the same place
 * afterwards. false: no memory. */
bool kve_wait_join(struct kve_inst *inst, uint32_t run, struct kve_spot *at);

/* A hash-only block: made, with copies for scope. */
kve_status kve_loose_add(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_hash *hash, uint32_t copies);

/* Runs of hash-only blocks that have room: a list. */
void kve_loose_list(struct kve_space *space, struct kve_run *run);
void kve_loose_unlist(struct kve_space *space, struct kve_run *run);

kve_status kve_remove(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_event *event);
/* End of a batch: bury the dead, forget what was lost. */
void kve_apply_finish(struct kve_space *space);
/* Forget what was lost. */
void kve_apply_forget(struct kve_space *space);

/* ---- evict.c ---- */

/* Room for so many bytes below the limit, between two events; false: too
 * little. */
bool kve_make_room(struct kve_space *space, size_t bytes);

#endif
