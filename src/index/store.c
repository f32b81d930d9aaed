/*
 * store.c - a store: from its parent along the chain.
 *
 * A cursor stands behind the last block. What the event says next is compared
 * with what is there: contents of the run it stands in, or of a child found by
 * the next content. Three things can be met:
 *
 *   the same contents   other instances, or this one, hold them: their names
 *                       are compared, a vector at a time, and copies added;
 *   another content     the run is cut there and a child begins;
 *   the end             contents are added to the run, or begin a child; the
 *                       blocks get names.
 *
 * Blocks whose hash the instance knows from elsewhere keep their place; the
 * cursor goes there (conflict).
 */
#include "index/writer.h"

#include "hash/dynamo.h"

#include <string.h>

/* Blocks that are looked at together where each may have to be stored on its
 * own. */
#define SLOW_ROW 64u

#define VECS_GROW 64u

/* A store on its way. */
struct store {
    struct kve_space *space;
    struct kve_inst *inst;
    struct kve_scope *scope;
    const struct kve_hash *hashes;
    const uint64_t *contents;
    const uint64_t *dynamo; /* NULL: contents say it */
    uint32_t n;
    uint32_t i; /* done */
    uint32_t block_size;
    uint32_t copies;
    struct kve_spot at;
    bool joining;  /* what is stored was known already: nothing waits for it */
    bool conflict; /* a block kept another place */
    /* What is stored was dumped: no hash has two places, and runs do not grow
     * behind those that were given back. */
    bool exact;
};

static uint64_t
key_of(const struct store *s, uint32_t i)
{
    return kve_name_key(&s->space->names, &s->hashes[i], 0);
}

/* The block that the life means by the event's next hash. What is joined has
 * the name it is said by. */
static uint32_t
known(const struct store *s)
{
    const struct kve_hash *hash = &s->hashes[s->i];

    return s->joining ? kve_known_as(s->inst, hash, key_of(s, s->i))
                      : kve_known(s->inst, hash, key_of(s, s->i));
}

/* How many of the event's next contents stand at p of the run. */
static uint32_t
same_contents(const struct store *s, const struct kve_run *run, uint32_t p)
{
    const uint64_t *have = kve_run_contents(run) + p;
    const uint64_t *want = s->contents + s->i;
    uint32_t most = kve_run_n(run) - p;
    uint32_t k = 0;

    if (most > s->n - s->i)
        most = s->n - s->i;
    if (most > SLOW_ROW && s->inst != NULL && s->inst->n_private > 0)
        most = SLOW_ROW;
    if (run->block_size != s->block_size)
        return 0;
    while (k < most && have[k] == want[k])
        k++;
    return k;
}

/* How many of k blocks from p have the event's next hashes as names. */
static uint32_t
same_names(const struct store *s, const struct kve_run *run, uint32_t vec,
    uint32_t p, uint32_t k)
{
    const struct kve_vec *v = &kve_run_vecs(run)[vec];
    uint32_t done = 0;

    while (done < k) {
        uint32_t slot = (p + done + v->phase) % KVE_GRANULE;
        uint32_t g = (p + done + v->phase) / KVE_GRANULE;
        uint32_t most = KVE_GRANULE - slot;
        uint32_t live = ~((uint32_t)kve_run_live(run, vec)[g] >> slot);
        uint32_t match;

        most = most < k - done ? most : k - done;
        match = (uint32_t)__builtin_ctz(live | 1u << most);
        if (match > 0)
            match = (uint32_t)kve_name_match(&s->space->names,
                kve_run_block(run, vec, p + done), s->hashes + s->i + done,
                match);
        done += match;
        if (match < most)
            break;
    }
    return done;
}

/* Copies for k blocks from p, which have names in vec. */
static kve_status
hold(struct store *s, uint32_t id, uint32_t vec, uint32_t p, uint32_t k)
{
    struct kve_run *run = kve_run_at(s->space, id);
    int64_t rec = kve_rec_find(run, s->scope->id, vec);
    uint64_t had = s->scope->copies;

    if (rec < 0)
        rec = kve_rec_add(s->space, id, s->scope, vec);
    run = kve_run_at(s->space, id);
    if (rec < 0 ||
        !kve_hold_add(s->space, run, (uint32_t)rec, p, k, s->copies)) {
        /* Names that nobody holds go again at the end of the batch; without
         * memory for the list, when the run is trimmed. */
        for (uint32_t i = 0; i < k; i++)
            kve_marks_add_block(
                &s->space->apply->dead, kve_run_block(run, vec, p + i));
        kve_ids_add(&s->space->apply->idle, id);
        return KVE_E_NOMEM;
    }
    if (vec != KVE_NO_VEC)
        s->inst->forms |= 1u << kve_run_vecs(run)[vec].form;
    run->flags = (run->flags | KVE_RUN_TOUCHED) & ~KVE_RUN_MOVED;
    s->space->apply->done.stored += s->scope->copies - had;
    s->at = (struct kve_spot){ id, p + k - 1, 0 };
    return KVE_OK;
}

/* The name an instance has for a block that it knows: what the event says, or
 * an integer where the event says bytes that end in it. */
static struct kve_hash
own_name(
    const struct kve_space *space, uint32_t block, const struct kve_hash *said)
{
    struct kve_hash own = *said;

    if (block != KVE_NO_BLOCK && said->bytes != NULL &&
        kve_page_of(&space->names, block)->form == KVE_NAME_INT)
        own = kve_name_get(&space->names, block);
    return own;
}

/* Others may wait for the hash as it was said, or as the instance calls it. */
static void
heal_name(struct store *s, const struct kve_hash *said)
{
    struct kve_hash own = own_name(s->space,
        kve_known(s->inst, said, kve_name_key(&s->space->names, said, 0)),
        said);

    kve_wait_heal(s->inst, said);
    if (own.bytes != said->bytes)
        kve_wait_heal(s->inst, &own);
}

/* What was just taught may be what others waited for. Joining them may cut
 * runs, so the cursor is found again. */
static void
heal(struct store *s, uint32_t from, uint32_t to)
{
    struct kve_place place;
    uint32_t block;

    if (s->joining || s->inst->n_waits == 0)
        return;
    for (uint32_t i = from; i < to && s->inst->n_waits > 0; i++)
        heal_name(s, &s->hashes[i]);
    block = kve_known(s->inst, &s->hashes[to - 1], key_of(s, to - 1));
    place = kve_place_of(s->space, block);
    s->at = (struct kve_spot){ place.run->obj.id, place.pos, 0 };
}

/* Chains of more runs than that are not looked through to their beginning. */
#define DEEP 8192u

bool
kve_spot_behind(
    const struct kve_space *space, const struct kve_spot *at, uint32_t id)
{
    uint32_t run = at->run;

    /* What does not wait stands behind nothing that does. */
    if (run != 0 && (kve_run_at(space, run)->flags & KVE_RUN_WAITING) == 0)
        return run == id;
    for (uint32_t i = 0; run != 0 && run != id; i++) {
        uint32_t parent = kve_run_parent(kve_run_at(space, run));

        run = (parent & KVE_PARENT_KIND) == KVE_PARENT_RUN
            ? KVE_PARENT_ID(parent)
            : 0;
        if (i == DEEP)
            return true;
    }
    return run != 0;
}

/* ---- a hash that is known from elsewhere ---- */

/* A chain that waits for its parent, and the event names another: it goes
 * behind the cursor. */
static bool
rejoin(struct store *s, const struct kve_place *place)
{
    struct kve_run *run = place->run;
    uint32_t parent = kve_run_parent(run);

    if (place->pos != 0 || (parent & KVE_PARENT_KIND) != KVE_PARENT_WAIT ||
        kve_run_contents(run)[0] != s->contents[s->i] ||
        run->block_size != s->block_size ||
        (s->at.run == 0 &&
            (s->at.parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT) ||
        kve_spot_behind(s->space, &s->at, run->obj.id))
        return false;
    return kve_wait_join(s->inst, run->obj.id, &s->at);
}

/* A hash-only block is taught: its copies, by scope, wait for a place. */
struct moved_copies {
    struct kve_scope *scope;
    uint32_t copies;
};

/* Take them from the loose block; returns how many scopes, -1: no memory. */
static int
loose_take(
    struct store *s, const struct kve_place *place, struct moved_copies **ret)
{
    struct kve_inst *inst = s->inst;
    struct moved_copies *moved =
        kve_pool_alloc(s->space->pool, inst->n_scopes * sizeof(*moved));
    int n = 0;

    if (moved == NULL)
        return -1;
    for (uint32_t i = 0; i < inst->n_scopes; i++) {
        int64_t rec = kve_rec_find(place->run, inst->scopes[i]->id, place->vec);
        uint32_t copies = rec < 0
            ? 0
            : kve_hold_copies(place->run, (uint32_t)rec, place->pos);

        if (copies == 0)
            continue;
        moved[n++] = (struct moved_copies){ inst->scopes[i], copies };
        kve_hold_set(s->space, place->run, (uint32_t)rec, place->pos, 0);
    }
    /* The name is needed at once. */
    if (kve_run_block(place->run, place->vec, place->pos) != KVE_NO_BLOCK)
        kve_name_kill(s->space, place->run, place->vec, place->pos);
    kve_ids_add(&s->space->apply->idle, place->run->obj.id);
    *ret = moved;
    return n;
}

/* ---- one block whose content stands at p of run id ---- */

static kve_status
name_and_hold(
    struct store *s, const struct kve_hash *hash, uint32_t id, uint32_t p)
{
    int64_t vec = kve_name_block(
        s->inst, id, p, hash, kve_name_key(&s->space->names, hash, 0));

    if (vec < 0) {
        kve_ids_add(&s->space->apply->idle, id);
        return KVE_E_NOMEM;
    }
    return hold(s, id, (uint32_t)vec, p, 1);
}

/* The block was hash-only: what was held moves with it, under the name that it
 * had (an integer, where the event says bytes that end in it). */
static kve_status
teach(struct store *s, uint32_t id, uint32_t p, uint32_t block,
    const struct kve_place *place)
{
    struct kve_hash hash = own_name(s->space, block, &s->hashes[s->i]);
    struct moved_copies *moved = NULL;
    struct kve_scope *scope = s->scope;
    uint32_t copies = s->copies;
    uint64_t stored = s->space->apply->done.stored;
    int n = loose_take(s, place, &moved);
    kve_status status = n < 0 ? KVE_E_NOMEM : KVE_OK;

    for (int i = 0; i < n && status == KVE_OK; i++) {
        s->scope = moved[i].scope;
        s->copies = moved[i].copies;
        status = name_and_hold(s, &hash, id, p);
    }
    s->scope = scope;
    s->copies = copies;
    s->space->apply->done.stored = stored;
    if (status == KVE_OK)
        status = name_and_hold(s, &hash, id, p);
    if (moved != NULL)
        kve_pool_free(s->space->pool, moved);
    kve_index_count(s->inst, KVE_COUNTER_INDEX_TAUGHT, 1);
    return status;
}

/* The next block of the event; its content stands at p of run id. */
static kve_status
store_here(struct store *s, uint32_t id, uint32_t p)
{
    uint32_t block = known(s);
    struct kve_place place = { NULL, 0, 0 };
    kve_status status;

    if (block != KVE_NO_BLOCK)
        place = kve_place_of(s->space, block);
    if (place.run == NULL) {
        status = name_and_hold(s, &s->hashes[s->i], id, p);
    } else if (place.run->obj.id == id && place.pos == p) {
        status = hold(s, id, place.vec, p, 1);
    } else if (s->exact) {
        status = KVE_E_INVAL;
    } else if ((place.run->flags & KVE_RUN_LOOSE) != 0) {
        status = teach(s, id, p, block, &place);
    } else if (rejoin(s, &place)) {
        return KVE_OK; /* looked for again: it is behind the cursor now */
    } else {
        kve_index_count(s->inst, KVE_COUNTER_INDEX_CONFLICTS, 1);
        s->conflict = true;
        kve_ids_add(&s->space->apply->idle, id);
        status = hold(s, place.run->obj.id, place.vec, place.pos, 1);
    }
    if (status == KVE_OK) {
        s->i++;
        heal(s, s->i - 1, s->i);
    }
    return status;
}

static uint32_t
held_already(const struct kve_run *run, uint32_t rec, uint32_t p, uint32_t k)
{
    uint32_t n = 0;

    while (n < k && kve_rec_holds(run, rec, p + n))
        n++;
    return n;
}

/* May the event's hashes be known by their last 8 bytes? */
static bool
may_be_mixed(const struct store *s)
{
    return !s->joining && s->hashes[s->i].bytes != NULL &&
        (s->inst->forms & 1u << KVE_NAME_INT) != 0 &&
        s->space->index->opts.no_mixed_forms == 0;
}

/* Names for as many of k new blocks as nobody has used, in a vector of this
 * life; returns how many. */
static uint32_t
name_fresh(
    struct store *s, struct kve_run *run, uint32_t vec, uint32_t p, uint32_t k)
{
    const struct kve_names *names = &s->space->names;
    const struct kve_vec *v = &kve_run_vecs(run)[vec];
    uint64_t *keys = s->space->apply->keys;
    uint32_t done = 0;

    if (v->owner == 0)
        return kve_name_place_row(
            s->space, run, vec, p, &s->hashes[s->i], keys, k);
    while (done < k) {
        const struct kve_hash *hash = &s->hashes[s->i + done];
        uint64_t key = kve_name_key(names, hash, v->owner);

        if (kve_name_find(names, keys[done], hash, 0) != KVE_NO_BLOCK ||
            kve_name_place_row(s->space, run, vec, p + done, hash, &key, 1) ==
                0)
            break;
        done++;
    }
    return done;
}

/* A vector for new names at p of the run; -1: no memory. */
static int64_t
fresh_vec(struct store *s, uint32_t id, uint32_t p)
{
    struct kve_run *run = kve_run_at(s->space, id);
    int64_t rec = kve_rec_find(run, s->scope->id, KVE_ANY_VEC);
    uint32_t owner = (run->flags & KVE_RUN_WAITING) != 0 ? s->inst->owner : 0;
    enum kve_name_form form = kve_name_form_of(&s->hashes[s->i]);

    if (rec >= 0 && kve_run_recs(run)[rec].vec != KVE_NO_VEC &&
        kve_run_vecs(run)[kve_run_recs(run)[rec].vec].owner == owner)
        return kve_run_recs(run)[rec].vec;
    for (uint32_t v = 0; v < run->n_vecs; v++)
        if ((kve_run_vecs(run)[v].n_recs > 0 ||
                kve_run_vecs(run)[v].live > 0) &&
            kve_run_vecs(run)[v].owner == owner &&
            kve_run_vecs(run)[v].form == form &&
            kve_run_block(run, v, p) == KVE_NO_BLOCK)
            return v;
    return kve_vec_add(s->space, id, owner, form, 0);
}

static bool
keys_prepare(struct store *s, uint32_t k)
{
    struct kve_apply *apply = s->space->apply;

    if (!kve_apply_keys(s->space, k))
        return false;
    for (uint32_t i = 0; i < k; i++) {
        apply->keys[i] = key_of(s, s->i + i);
        kve_table_prefetch(&s->space->names.table, apply->keys[i]);
        kve_table_prefetch_head(&s->space->names.table, apply->keys[i]);
    }
    return true;
}

/* The next k contents stand from p of the run on, and have no names yet; the
 * keys of their hashes are prepared. */
static kve_status
store_names(struct store *s, uint32_t id, uint32_t p, uint32_t k)
{
    uint32_t done = 0;
    int64_t vec = -1;
    kve_status status;

    if (s->inst->n_private == 0 && !may_be_mixed(s)) {
        vec = fresh_vec(s, id, p);
        if (vec >= 0)
            done = name_fresh(s, kve_run_at(s->space, id), (uint32_t)vec, p, k);
    }
    /* Hashes that are known keep their places, so contents may stay unused;
     * the end of the batch takes them away. */
    if (done < k)
        kve_ids_add(&s->space->apply->idle, id);
    if (done == 0)
        return store_here(s, id, p);
    status = hold(s, id, (uint32_t)vec, p, done);
    if (status == KVE_OK) {
        s->i += done;
        heal(s, s->i - done, s->i);
    }
    return status;
}

/* The same of contents that were given back. */
static kve_status
store_exact(struct store *s, uint32_t id, uint32_t p, uint32_t k)
{
    return keys_prepare(s, k) ? store_names(s, id, p, k) : KVE_E_NOMEM;
}

/* k blocks whose contents stand from p of the run on. */
static kve_status
store_along(struct store *s, struct kve_run *run, uint32_t p, uint32_t k)
{
    int64_t rec = kve_rec_find(run, s->scope->id, KVE_ANY_VEC);
    uint32_t vec = rec < 0 ? 0 : kve_run_recs(run)[rec].vec;
    uint32_t same;
    kve_status status;

    if (rec < 0) {
        /* Somebody else's names, if they are ours too. */
        uint32_t block = known(s);

        if (block == KVE_NO_BLOCK)
            block = kve_name_find(
                &s->space->names, key_of(s, s->i), &s->hashes[s->i], 0);
        struct kve_place place = block == KVE_NO_BLOCK
            ? (struct kve_place){ NULL, 0, 0 }
            : kve_place_of(s->space, block);

        if (s->exact && place.run == NULL)
            return store_exact(s, run->obj.id, p, k);
        if (place.run != run || place.pos != p)
            return store_here(s, run->obj.id, p);
        vec = place.vec;
    }
    if (vec == KVE_NO_VEC)
        return store_here(s, run->obj.id, p);
    if (s->exact && kve_run_block(run, vec, p) == KVE_NO_BLOCK)
        return store_exact(s, run->obj.id, p, k);
    same = same_names(s, run, vec, p, k);
    /* A hash of these may have a place of its own elsewhere: only what is held
     * here already surely has not. */
    if (s->inst->n_private > 0 || may_be_mixed(s))
        same = rec < 0 ? 0 : held_already(run, (uint32_t)rec, p, same);
    if (same == 0)
        return store_here(s, run->obj.id, p);
    status = hold(s, run->obj.id, vec, p, same);
    if (status == KVE_OK) {
        s->i += same;
        heal(s, s->i - same, s->i);
    }
    return status;
}

/* ---- contents that are not there ---- */

static bool
can_grow(const struct store *s, const struct kve_run *run)
{
    /* With very many vectors a larger object would be copied for a block. */
    return !s->exact && run->n_children == 0 &&
        run->block_size == s->block_size && run->n_vecs <= VECS_GROW &&
        kve_run_n(run) < KVE_RUN_MAX &&
        ((run->flags & KVE_RUN_DYNAMO) != 0) == (s->dynamo != NULL);
}

/* Room for k more contents, in an object whose end no reader saw. */
static struct kve_run *
grow(struct kve_space *space, struct kve_run *run, uint32_t k)
{
    uint32_t n = kve_run_n(run);
    struct kve_run_shape shape = { run->cap, run->cap_recs, run->cap_vecs };

    if (n + k <= run->cap && n >= run->high)
        return run;
    if (n + k > run->cap)
        shape.cap = n + (k > n / 8 ? k : n / 8);
    return kve_run_reserve(space, run, shape);
}

static void
write_contents(const struct store *s, struct kve_run *run, uint32_t k)
{
    uint32_t n = kve_run_n(run);

    memcpy((uint64_t *)(uintptr_t)kve_run_contents(run) + n, s->contents + s->i,
        k * sizeof(uint64_t));
    if (s->dynamo != NULL)
        memcpy((uint64_t *)(uintptr_t)kve_run_dynamo(run) + n, s->dynamo + s->i,
            k * sizeof(uint64_t));
    run->high = n + k;
    atomic_store_explicit(&run->n, n + k, memory_order_release);
}

/* The next k contents as a run behind the cursor; *ret_p: where they begin. */
static struct kve_run *
add_contents(struct store *s, uint32_t k, uint32_t *ret_p)
{
    struct kve_run *run =
        s->at.run != 0 ? kve_run_at(s->space, s->at.run) : NULL;
    struct kve_run_shape shape = { k, 1, 1 };
    uint32_t parent = run != NULL ? kve_run_tag(run) : s->at.parent;
    uint32_t flags = s->dynamo != NULL ? KVE_RUN_DYNAMO : 0;

    if (run != NULL && can_grow(s, run)) {
        *ret_p = kve_run_n(run);
        run = grow(s->space, run, k);
        if (run != NULL)
            write_contents(s, run, k);
        return run;
    }
    if ((run != NULL && (run->flags & KVE_RUN_WAITING) != 0) ||
        (run == NULL && (parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT))
        flags |= KVE_RUN_WAITING;
    run = kve_run_create(s->space, s->block_size, flags, &shape);
    if (run == NULL)
        return NULL;
    write_contents(s, run, k);
    *ret_p = 0;
    if (kve_run_link(s->space, run, parent))
        return run;
    kve_run_discard(s->space, run);
    return NULL;
}

/* Nothing stands behind the cursor: the rest of the event is new, as far as
 * its hashes are. */
static kve_status
store_new(struct store *s)
{
    uint32_t k = s->n - s->i;
    struct kve_run *run;
    uint32_t p;

    if (k > KVE_RUN_MAX)
        k = KVE_RUN_MAX;
    run = s->at.run != 0 ? kve_run_at(s->space, s->at.run) : NULL;
    if (run != NULL && can_grow(s, run) && k > KVE_RUN_MAX - kve_run_n(run))
        k = KVE_RUN_MAX - kve_run_n(run);
    if (!keys_prepare(s, k) || (run = add_contents(s, k, &p)) == NULL)
        return KVE_E_NOMEM;
    return store_names(s, run->obj.id, p, k);
}

/* ---- along the chain ---- */

static kve_status
store_step(struct store *s)
{
    struct kve_run *run =
        s->at.run != 0 ? kve_run_at(s->space, s->at.run) : NULL;
    uint32_t parent = s->at.parent;
    uint32_t p = 0;

    if (run != NULL && s->at.pos + 1 < kve_run_n(run)) {
        uint32_t k = same_contents(s, run, s->at.pos + 1);

        if (k > 0)
            return store_along(s, run, s->at.pos + 1, k);
        return kve_spot_cut(s->space, &s->at) != NULL ? KVE_OK : KVE_E_NOMEM;
    }
    /* Most chains grow where nothing stands behind them. */
    if (run != NULL && run->n_children == 0)
        return store_new(s);
    if (run != NULL)
        parent = kve_run_tag(run);
    run = kve_run_child(s->space, parent, s->block_size, s->contents[s->i]);
    if (run != NULL)
        return store_along(s, run, p, same_contents(s, run, p));
    return store_new(s);
}

static kve_status
store_run(struct store *s)
{
    kve_status status = KVE_OK;

    while (s->i < s->n && status == KVE_OK)
        status = store_step(s);
    return status;
}

kve_status
kve_store_block(struct kve_inst *inst, struct kve_scope *scope,
    struct kve_spot *at, uint32_t block_size, uint64_t content,
    const uint64_t *dynamo, const struct kve_hash *hash, uint32_t copies)
{
    struct store s = { inst->space, inst, scope, hash, &content, dynamo, 1, 0,
        block_size, copies, *at, true, false, false };
    kve_status status = store_run(&s);

    if (status == KVE_OK)
        *at = s.at;
    return status;
}

/* Contents behind *at, whether or not they are there; nobody holds them, and
 * they go at the end of the batch unless something behind them is held. */
static bool
store_contents(struct store *s)
{
    struct kve_space *space = s->space;

    while (s->i < s->n) {
        struct kve_run *run =
            s->at.run != 0 ? kve_run_at(space, s->at.run) : NULL;
        uint32_t p = s->at.pos + 1;
        uint32_t k = s->n - s->i;

        if (run != NULL && p < kve_run_n(run) &&
            (k = same_contents(s, run, p)) == 0) {
            if (kve_spot_cut(space, &s->at) == NULL)
                return false;
            continue;
        }
        if (run == NULL || p == kve_run_n(run)) {
            struct kve_run *child = kve_run_child(space,
                run != NULL ? kve_run_tag(run) : s->at.parent, s->block_size,
                s->contents[s->i]);

            run = child;
            p = 0;
            if (run == NULL &&
                (run = add_contents(
                     s, k < KVE_RUN_MAX ? k : KVE_RUN_MAX, &p)) == NULL)
                return false;
            kve_ids_add(&space->apply->idle, run->obj.id);
            k = same_contents(s, run, p);
        }
        s->i += k;
        s->at = (struct kve_spot){ run->obj.id, p + k - 1, 0 };
    }
    return true;
}

/* ---- the event ---- */

static struct kve_spot
behind_block(const struct kve_place *place)
{
    return (struct kve_spot){ place->run->obj.id, place->pos, 0 };
}

/* Is it still the id of a block? What it was at home in may be another run. */
static bool
is_alive(const struct kve_space *space, uint32_t block)
{
    struct kve_place place = { NULL, 0, 0 };

    if (block != KVE_NO_BLOCK)
        place = kve_place_of(space, block);
    return place.run != NULL && place.pos < kve_run_n(place.run) &&
        kve_run_block(place.run, place.vec, place.pos) == block;
}

/* Where a hash the life knows stands; hash-only ones stand nowhere. */
static bool
find_parent(
    struct kve_inst *inst, const struct kve_hash *hash, struct kve_spot *ret)
{
    struct kve_space *space = inst->space;
    uint32_t block = inst->last_block;
    struct kve_place place;

    if (!is_alive(space, block) || !kve_name_is(&space->names, block, hash) ||
        !kve_knows(inst, block))
        block = kve_known(inst, hash, kve_name_key(&space->names, hash, 0));
    if (block == KVE_NO_BLOCK)
        return false;
    place = kve_place_of(space, block);
    if (place.run == NULL || (place.run->flags & KVE_RUN_LOOSE) != 0)
        return false;
    *ret = behind_block(&place);
    return true;
}

static bool
behind_root(struct kve_inst *inst, const struct kve_event_content *content,
    struct kve_spot *ret)
{
    struct kve_root *root =
        kve_root_of(inst->space, content->lora, content->salt, true);

    if (root == NULL)
        return false;
    *ret = (struct kve_spot){ 0, 0, KVE_PARENT_ROOT | root->id };
    return true;
}

/* Where the part begins that the event skipped: behind a block, or at the
 * root when it names none. */
static bool
find_skipped(struct kve_inst *inst, const struct kve_event *event,
    const struct kve_event_content *content, struct kve_spot *ret)
{
    if (content->n_skipped == 0)
        return false;
    return event->has_skipped_parent
        ? find_parent(inst, &event->skipped_parent, ret)
        : behind_root(inst, content, ret);
}

static kve_status
store_skipped(struct kve_space *space, struct kve_spot *at, uint32_t block_size,
    const struct kve_event_content *content)
{
    struct store s = { space, NULL, NULL, NULL, content->skipped, NULL,
        (uint32_t)content->n_skipped, 0, block_size, 1, *at, true, false,
        false };
    bool ok = store_contents(&s);

    *at = s.at;
    return ok ? KVE_OK : KVE_E_NOMEM;
}

/* Where the event's first block goes. */
static kve_status
find_start(struct kve_inst *inst, const struct kve_event *event,
    const struct kve_event_content *content, struct kve_spot *ret,
    bool *ret_bridge)
{
    struct kve_space *space = inst->space;

    *ret_bridge = false;
    if (event->has_parent) {
        struct kve_wait *wait;
        struct kve_hash hash;

        if (find_parent(inst, &event->parent, ret))
            return KVE_OK;
        if (find_skipped(inst, event, content, ret)) {
            *ret_bridge = true;
            return store_skipped(space, ret, event->block_size, content);
        }
        hash = own_name(space,
            kve_known(inst, &event->parent,
                kve_name_key(&space->names, &event->parent, 0)),
            &event->parent);
        wait = kve_wait_of(inst, &hash, true);
        if (wait == NULL)
            return KVE_E_NOMEM;
        *ret = (struct kve_spot){ 0, 0, KVE_PARENT_WAIT | wait->id };
    } else if (!behind_root(inst, content, ret)) {
        return KVE_E_NOMEM;
    }
    return KVE_OK;
}

/* The root of the chain the cursor stands in; NULL: it waits. */
static const struct kve_root *
root_of(const struct kve_space *space, const struct kve_spot *at)
{
    uint32_t parent = at->parent;

    if (at->run != 0)
        parent = KVE_PARENT_RUN | at->run;
    while ((parent & KVE_PARENT_KIND) == KVE_PARENT_RUN)
        parent = kve_run_parent(kve_run_at(space, KVE_PARENT_ID(parent)));
    return (parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT
        ? kve_dir_get(&space->roots, KVE_PARENT_ID(parent))
        : NULL;
}

/* Dynamo's hashes of the event's blocks, where they are not the contents;
 * NULL: they are, or nobody can say. */
static const uint64_t *
dynamo_of(struct kve_inst *inst, const struct kve_spot *at,
    const struct kve_event *event, const struct kve_event_content *content)
{
    struct kve_space *space = inst->space;
    struct kve_apply *apply = space->apply;
    const struct kve_run *run =
        at->run != 0 ? kve_run_at(space, at->run) : NULL;
    const struct kve_root *root;

    if (event->n_tokens == 0 ||
        (run != NULL && (run->flags & KVE_RUN_DYNAMO) == 0 && !content->images))
        return NULL;
    root = root_of(space, at);
    if (root == NULL || root->unhashed || (!root->seeded && !content->images))
        return NULL;
    if (!kve_apply_dynamo(space, event->n_hashes))
        return NULL;
    kve_dynamo_blocks(event, root->seed, apply->dynamo);
    return apply->dynamo;
}

/* A store that teaches nothing: copies of what is known, by hash only else. */
static kve_status
store_residency(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_event *event)
{
    struct store s = { inst->space, inst, scope, event->hashes, NULL, NULL,
        (uint32_t)event->n_hashes, 0, 0, 1, { 0, 0, 0 }, false, false, false };
    kve_status status = KVE_OK;

    for (; s.i < s.n && status == KVE_OK; s.i++) {
        uint32_t block = kve_known(inst, &event->hashes[s.i], key_of(&s, s.i));

        if (block != KVE_NO_BLOCK) {
            struct kve_place place = kve_place_of(inst->space, block);

            status = hold(&s, place.run->obj.id, place.vec, place.pos, 1);
        } else {
            status = kve_loose_add(inst, scope, &event->hashes[s.i], 1);
        }
    }
    return status;
}

/* The next store of the chain begins where this one ended. */
static void
note_end(struct kve_inst *inst, const struct store *s)
{
    const struct kve_run *run =
        s->at.run != 0 ? kve_run_at(s->space, s->at.run) : NULL;
    int64_t rec =
        run != NULL ? kve_rec_find(run, s->scope->id, KVE_ANY_VEC) : -1;
    uint32_t vec = rec >= 0 ? kve_run_recs(run)[rec].vec : KVE_NO_VEC;

    if (vec != KVE_NO_VEC)
        inst->last_block = kve_run_block(run, vec, s->at.pos);
}

void
kve_store_leave(struct kve_inst *inst, const struct kve_spot *start)
{
    struct kve_space *space = inst->space;
    uint32_t id = KVE_PARENT_ID(start->parent);

    if (start->run != 0)
        return;
    if ((start->parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT) {
        struct kve_root *root = kve_dir_get(&space->roots, id);

        if (root != NULL && root->n_children == 0)
            kve_root_free(space, root);
    } else if ((start->parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT) {
        struct kve_wait *wait = kve_dir_get(&space->waits, id);

        if (wait != NULL && wait->owner == inst->owner && wait->n_children == 0)
            kve_wait_free(inst, wait);
    }
}

kve_status
kve_store(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_event *event, const struct kve_event_content *content)
{
    struct store s = { inst->space, inst, scope, event->hashes, content->hashes,
        NULL, (uint32_t)event->n_hashes, 0, event->block_size, 1, { 0, 0, 0 },
        false, false, false };
    struct kve_spot start;
    bool bridge;
    kve_status status;

    if (!content->complete)
        return store_residency(inst, scope, event);
    status = find_start(inst, event, content, &s.at, &bridge);
    start = s.at;
    if (status != KVE_OK)
        goto out;
    if (s.at.run == 0 && (s.at.parent & KVE_PARENT_KIND) == KVE_PARENT_WAIT)
        kve_index_count(inst, KVE_COUNTER_INDEX_WAITING, s.n);
    s.dynamo = dynamo_of(inst, &s.at, event, content);
    if (bridge) {
        s.n = 1;
        status = store_run(&s);
        if (status == KVE_OK && !s.conflict)
            status = kve_bridge_add(
                         inst, event->hashes, (uint32_t)content->n_skipped)
                ? KVE_OK
                : KVE_E_NOMEM;
        s.n = (uint32_t)event->n_hashes;
    }
    if (status == KVE_OK)
        status = store_run(&s);
    note_end(inst, &s);
out:
    kve_store_leave(inst, &start);
    return status;
}

/* ---- what was dumped ---- */

bool
kve_store_run(struct kve_space *space, struct kve_spot *at,
    const struct kve_index_run *run)
{
    struct store s = { space, NULL, NULL, NULL, run->contents, run->dynamo,
        (uint32_t)run->n_blocks, 0, run->block_size, 1, *at, true, false,
        true };
    struct kve_run *end;

    if (!store_contents(&s))
        return false;
    *at = s.at;
    end = kve_run_at(space, at->run);
    return at->pos + 1 == kve_run_n(end) || kve_spot_cut(space, at) != NULL;
}

bool
kve_store_pass(struct kve_space *space, struct kve_spot *at,
    const struct kve_index_run *run, uint32_t from, uint32_t k)
{
    struct store s = { space, NULL, NULL, NULL, run->contents + from, NULL, k,
        0, run->block_size, 1, *at, true, false, true };
    bool ok = store_contents(&s);

    *at = s.at;
    return ok;
}

kve_status
kve_store_held(struct kve_inst *inst, struct kve_scope *scope,
    struct kve_spot *at, const struct kve_index_run *run, uint32_t from,
    uint32_t k, const struct kve_hash *hashes, uint32_t copies)
{
    struct store s = { inst->space, inst, scope, hashes, run->contents + from,
        NULL, k, 0, run->block_size, copies, *at, true, false, true };
    kve_status status = store_run(&s);

    *at = s.at;
    return status;
}

kve_status
kve_store_loose(struct kve_inst *inst, struct kve_scope *scope,
    const struct kve_hash *hash, uint32_t copies)
{
    struct store s = { inst->space, inst, scope, hash, NULL, NULL, 1, 0, 0,
        copies, { 0, 0, 0 }, true, false, true };
    uint32_t block = known(&s);
    struct kve_place place;

    if (block == KVE_NO_BLOCK)
        return kve_loose_add(inst, scope, hash, copies);
    place = kve_place_of(inst->space, block);
    if ((place.run->flags & KVE_RUN_LOOSE) == 0)
        return KVE_E_INVAL;
    return hold(&s, place.run->obj.id, place.vec, place.pos, 1);
}
