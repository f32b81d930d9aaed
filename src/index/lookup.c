/*
 * lookup.c - by engine hashes: how much of a chain of hashes instances hold,
 * and who holds a single block.
 *
 * A hash is a name. Under it there is at most one block that all instances
 * share and one for each life that means something else by it (names.h), so
 * each hash is a look-up or two, and one for each life that has names of its
 * own. Where a block is, its granule says: run, vector, place, in three loads;
 * they are checked against the run's own list of granules before they are
 * used, and believed when no run was cut meanwhile (space.moves).
 *
 * Hashes that follow one another in a run are one step, so the records are
 * gone through once for a chain, not for each block.
 */
#include "index/query.h"
#include "index/writer.h"

#include <string.h>

/* Hashes whose places in the table are fetched together. */
#define BATCH 16u

/* ------------------------------------------------------------------ */
/* Where a block is. */

static bool
read_place(
    const struct kve_space *space, uint32_t block, struct kve_place *ret_place)
{
    const struct kve_page *page = kve_page_of(&space->names, block);
    const struct kve_granule_home *home;
    uint32_t slot = block % KVE_GRANULE;
    struct kve_run *run;
    uint32_t place;
    uint32_t vec;
    uint32_t phase;

    if (page == NULL)
        return false;
    home = &page->homes[block % KVE_PAGE_BLOCKS / KVE_GRANULE];
    place = atomic_load_explicit(&home->place, memory_order_acquire);
    vec = atomic_load_explicit(&home->vec, memory_order_acquire);
    KVE_READER_TURN();
    run = kve_run_get(
        space, atomic_load_explicit(&home->run, memory_order_acquire));
    if (run == NULL || vec >= run->cap_vecs || place >= run->n_granules ||
        atomic_load_explicit(&kve_run_granules(run, vec)[place],
            memory_order_acquire) != block - slot)
        return false;
    phase = atomic_load_explicit(
        &kve_run_vecs(run)[vec].phase, memory_order_relaxed);
    if (place * KVE_GRANULE + slot < phase)
        return false;
    *ret_place =
        (struct kve_place){ run, vec, place * KVE_GRANULE + slot - phase };
    return true;
}

/* Put the block of hash number i on the way. The step before it is continued
 * where it goes on there. */
static enum kve_walk
add_place(struct kve_ask *ask, const struct kve_found *found, uint32_t i)
{
    kve_index_reader *reader = ask->reader;
    const struct kve_place *place = &found->place;
    struct kve_private *private = &reader->privates[found->private];
    uint32_t *last = found->mixed ? &private->mixed : &private->step;
    struct kve_step *step = *last == KVE_NONE ? NULL : &reader->steps[*last];

    if (step != NULL && step->run == place->run && step->vec == place->vec &&
        step->pos + step->n == place->pos && step->start + step->n == i) {
        step->n++;
        return KVE_WALK_DONE;
    }
    if (!KVE_ROOM(reader, steps, cap_steps, reader->n_steps + 1))
        return KVE_WALK_NOMEM;
    *last = (uint32_t)reader->n_steps++;
    reader->steps[*last] = (struct kve_step){ .run = place->run,
        .up = KVE_NONE,
        .start = i,
        .pos = place->pos,
        .n = 1,
        .size = 1,
        .vec = place->vec,
        .mixed = found->mixed };
    return KVE_WALK_DONE;
}

/* ------------------------------------------------------------------ */
/* A chain of hashes. */

/* The other form of a hash in bytes: its last 8 as an integer. */
static bool
other_form(const struct kve_ask *ask, const struct kve_hash *hash,
    struct kve_hash *ret_hash)
{
    uint64_t value = 0;

    if (ask->index->opts.no_mixed_forms || hash->bytes == NULL || hash->len < 8)
        return false;
    for (size_t i = hash->len - 8; i < hash->len; i++)
        value = value << 8 | hash->bytes[i];
    *ret_hash = (struct kve_hash){ NULL, { value } };
    return true;
}

/* Lives that have names of their own. Readers do not wait for writers here
 * either: all lives are looked at, which costs a load each. */
static enum kve_walk
find_privates(struct kve_ask *ask)
{
    kve_index_reader *reader = ask->reader;
    const struct kve_space *space = ask->space;
    uint32_t top = atomic_load_explicit(&space->top_inst, memory_order_acquire);

    if (!KVE_ROOM(reader, privates, cap_privates, 1))
        return KVE_WALK_NOMEM;
    /* The first one stands for what all share. */
    reader->privates[0] = (struct kve_private){ 0, KVE_NONE, KVE_NONE };
    reader->n_privates = 1;
    for (uint32_t id = 1; id < top; id++) {
        const struct kve_inst *inst = kve_dir_get(&space->insts, id);

        if (inst == NULL ||
            atomic_load_explicit(&inst->n_private, memory_order_relaxed) == 0)
            continue;
        if (!KVE_ROOM(reader, privates, cap_privates, reader->n_privates + 1))
            return KVE_WALK_NOMEM;
        reader->privates[reader->n_privates++] =
            (struct kve_private){ id, KVE_NONE, KVE_NONE };
    }
    return KVE_WALK_DONE;
}

/* Fetch the table's places of the next hashes. */
static void
look_ahead(const struct kve_ask *ask, size_t from, uint64_t *keys)
{
    const struct kve_names *names = &ask->space->names;
    size_t n = ask->query->n_hashes - from;

    if (n > BATCH)
        n = BATCH;
    for (size_t i = 0; i < n; i++) {
        keys[i] = kve_name_key(names, &ask->query->hashes[from + i], 0);
        kve_table_prefetch(&names->table, keys[i]);
    }
    for (size_t i = 0; i < n; i++)
        kve_name_prefetch(names, keys[i]);
}

/* Blocks that anybody means by a hash in this form. false: a name was just
 * being moved. */
static bool
find_form(
    struct kve_ask *ask, uint64_t key, const struct kve_hash *hash, bool mixed)
{
    kve_index_reader *reader = ask->reader;
    const struct kve_names *names = &ask->space->names;

    for (size_t p = 0; p < reader->n_privates; p++) {
        struct kve_found *found = &reader->found[reader->n_found];
        uint32_t owner = reader->privates[p].owner;
        uint32_t block = kve_name_find(names,
            p == 0 ? key : kve_name_key(names, hash, owner), hash, owner);

        if (block == KVE_NO_BLOCK)
            continue;
        KVE_READER_TURN();
        if (!read_place(ask->space, block, &found->place))
            return false;
        found->private = (uint32_t)p;
        found->mixed = mixed;
        reader->n_found++;
    }
    return true;
}

/*
 * All blocks that anybody means by a hash. While runs are cut and names become
 * shared, blocks change their ids; so this is done again when moves tells of
 * it.
 */
static enum kve_walk
find_hash(struct kve_ask *ask, uint64_t key, const struct kve_hash *hash)
{
    kve_index_reader *reader = ask->reader;
    const struct kve_space *space = ask->space;
    struct kve_hash other;
    bool both = other_form(ask, hash, &other);
    uint64_t other_key = both ? kve_name_key(&space->names, &other, 0) : 0;

    KVE_READER_TURN();
    if (!KVE_ROOM(reader, found, cap_found, 2 * reader->n_privates))
        return KVE_WALK_NOMEM;
    for (unsigned try = 0; try < KVE_TRIES; try++) {
        uint32_t moves =
            atomic_load_explicit(&space->moves, memory_order_acquire);

        reader->n_found = 0;
        if ((moves & 1) == 0 && find_form(ask, key, hash, false) &&
            (!both || find_form(ask, other_key, &other, true)) &&
            atomic_load_explicit(&space->moves, memory_order_relaxed) == moves)
            return KVE_WALK_DONE;
        kve_reader_pause(try);
    }
    return KVE_WALK_AGAIN;
}

static enum kve_walk
add_steps(struct kve_ask *ask)
{
    const struct kve_index_query *query = ask->query;
    kve_index_reader *reader = ask->reader;
    uint64_t keys[BATCH];

    for (size_t i = 0; i < query->n_hashes; i++) {
        enum kve_walk walk;

        if (i % BATCH == 0)
            look_ahead(ask, i, keys);
        walk = find_hash(ask, keys[i % BATCH], &query->hashes[i]);
        if (walk != KVE_WALK_DONE)
            return walk;
        if (reader->n_found == 0 && !ask->thorough)
            break;
        for (size_t f = 0; f < reader->n_found; f++) {
            walk = add_place(ask, &reader->found[f], (uint32_t)i);
            if (walk != KVE_WALK_DONE)
                return walk;
        }
    }
    return KVE_WALK_DONE;
}

enum kve_walk
kve_hashes_gather(struct kve_ask *ask, bool discover)
{
    enum kve_walk walk = find_privates(ask);

    if (walk == KVE_WALK_DONE)
        walk = add_steps(ask);
    /* Whoever does not hold the first hash has no row. */
    for (uint32_t i = 0; walk == KVE_WALK_DONE && i < ask->reader->n_steps; i++)
        walk =
            kve_step_hits(ask, i, discover && ask->reader->steps[i].start == 0);
    return walk;
}

/* Does a hit hold the block at p of its run? */
static bool
holds(const struct kve_run *run, const struct kve_hit *hit, uint32_t p)
{
    return (kve_rec_word(run, hit->rec, hit->scope, p / 64) >> (p % 64) & 1) !=
        0;
}

/* ------------------------------------------------------------------ */
/* Numbers of a row. */

static size_t
hash_words(const struct kve_ask *ask)
{
    return ask->query->n_hashes / 64 + 1;
}

/* Mark what a hit holds: in its tier, and (not mixed) as known in this form;
 * or (mixed) only where it is not known in the other. */
static void
mark_hashes(const struct kve_ask *ask, const struct kve_hit *hit)
{
    const kve_index_reader *reader = ask->reader;
    const struct kve_step *step = &reader->steps[hit->step];
    uint64_t *known = reader->words;
    uint64_t *tier = known + (hit->tier + 1) * hash_words(ask);

    for (uint32_t k = 0; k < step->n; k++) {
        uint32_t i = step->start + k;
        uint64_t bit = UINT64_C(1) << (i % 64);

        if (!holds(step->run, hit, step->pos + k) ||
            (step->mixed && (known[i / 64] & bit) != 0))
            continue;
        tier[i / 64] |= bit;
        if (!step->mixed)
            known[i / 64] |= bit;
    }
}

static enum kve_walk
number_hashes(struct kve_ask *ask, struct kve_row *row, uint32_t tiers,
    uint32_t *ret_tokens)
{
    const uint64_t *bits = ask->reader->words;
    size_t words = hash_words(ask);
    uint64_t n = 0;

    (void)row;
    for (size_t w = 0; w < words; w++) {
        uint64_t held = 0;

        for (uint32_t t = 0; t < KVE_TIERS; t++)
            if ((tiers >> t & 1) != 0)
                held |= bits[(t + 1) * words + w];
        if (held != UINT64_MAX) {
            n += (unsigned)__builtin_ctzll(~held);
            break;
        }
        n += 64;
    }
    if (n > 0 && n == ask->query->n_hashes && ask->query->recompute_last)
        n--;
    n *= ask->block_size;
    *ret_tokens = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    return KVE_WALK_DONE;
}

enum kve_walk
kve_hashes_numbers(
    struct kve_ask *ask, struct kve_row *row, struct kve_numbers *numbers)
{
    kve_index_reader *reader = ask->reader;
    size_t n = hash_words(ask) * (KVE_TIERS + 1);

    if (!KVE_ROOM(reader, words, cap_words, n))
        return KVE_WALK_NOMEM;
    memset(reader->words, 0, n * sizeof(*reader->words));
    for (unsigned mixed = 0; mixed < 2; mixed++) {
        for (uint32_t i = row->first_hit; i != KVE_NONE;
             i = reader->hits[i].next) {
            const struct kve_hit *hit = &reader->hits[i];

            if (hit->tier < KVE_TIERS &&
                reader->steps[hit->step].mixed == (mixed != 0))
                mark_hashes(ask, hit);
        }
    }
    return kve_row_numbers(ask, row, number_hashes, numbers);
}

uint32_t
kve_hashes_last(const struct kve_ask *ask, uint32_t tiers)
{
    const uint64_t *bits = ask->reader->words;
    size_t words = hash_words(ask);

    for (size_t w = words; w-- > 0;) {
        uint64_t held = 0;

        for (uint32_t t = 0; t < KVE_TIERS; t++)
            if ((tiers >> t & 1) != 0)
                held |= bits[(t + 1) * words + w];
        if (held != 0)
            return (uint32_t)(w * 64 + 64 - (unsigned)__builtin_clzll(held));
    }
    return 0;
}

/* ------------------------------------------------------------------ */
/* One block. */

struct look {
    struct kve_ask ask;
    struct kve_index_holder *holders;
    size_t cap;
    size_t n;
};

/* Tokens before a run, and whether it stands at a root. false: a run on the
 * way up is gone. */
static bool
read_depth(const struct kve_space *space, const struct kve_run *run,
    uint32_t *ret_tokens, bool *ret_placed)
{
    uint32_t parent = atomic_load_explicit(&run->parent, memory_order_acquire);
    uint32_t tokens = 0;

    while ((parent & KVE_PARENT_KIND) == KVE_PARENT_RUN) {
        run = kve_run_get(space, KVE_PARENT_ID(parent));
        if (run == NULL)
            return false;
        tokens += atomic_load_explicit(&run->n, memory_order_acquire) *
            run->block_size;
        parent = atomic_load_explicit(&run->parent, memory_order_acquire);
    }
    *ret_tokens = tokens;
    *ret_placed = (parent & KVE_PARENT_KIND) == KVE_PARENT_ROOT;
    return true;
}

static struct kve_int
group_number(const struct kve_row *row, uint32_t group)
{
    struct kve_inst *inst =
        atomic_load_explicit(&row->slot->inst, memory_order_acquire);
    const struct kve_groups *groups = inst == NULL
        ? NULL
        : atomic_load_explicit(&inst->groups, memory_order_acquire);

    if (group == KVE_NO_GROUP || groups == NULL ||
        group >= atomic_load_explicit(&groups->n, memory_order_acquire))
        return (struct kve_int){ 0, false };
    return (struct kve_int){ groups->info[group].group, true };
}

/* Copies of a block that a record holds. */
static uint32_t
read_copies(const struct kve_row *row, const struct kve_run *run, uint32_t rec,
    uint32_t p)
{
    const struct kve_aux *aux =
        atomic_load_explicit(&kve_run_recs(run)[rec].aux, memory_order_acquire);
    uint32_t n;

    if (aux == NULL || p >= aux->n ||
        atomic_load_explicit(&row->slot->counting, memory_order_relaxed) ==
            KVE_COUNTING_SET)
        return 1;
    n = kve_aux_count(aux, p);
    return n > 0 ? n : 1;
}

static bool
put_holder(
    struct look *look, const struct kve_row *row, const struct kve_hit *hit)
{
    const struct kve_step *step = &look->ask.reader->steps[hit->step];
    const struct kve_run *run = step->run;
    struct kve_index_holder *holder = &look->holders[look->n];
    struct kve_index_holder room;
    uint32_t tokens;

    if (look->n++ >= look->cap)
        holder = &room;
    *holder = (struct kve_index_holder){ .instance = row->handle,
        .tier = hit->tier,
        .copies = read_copies(row, run, hit->rec, step->pos),
        .group = group_number(row, hit->group) };
    if ((atomic_load_explicit(&run->flags, memory_order_relaxed) &
            KVE_RUN_LOOSE) != 0)
        return true;
    holder->taught = true;
    holder->block_size = run->block_size;
    holder->content = kve_run_contents(run)[step->pos];
    if (!read_depth(look->ask.space, run, &tokens, &holder->placed))
        return false;
    holder->end = tokens + (step->pos + 1) * run->block_size;
    return true;
}

/* Scopes of a row that hold the block, by one form of its hash. */
static bool
put_form(struct look *look, const struct kve_row *row, bool mixed)
{
    const kve_index_reader *reader = look->ask.reader;

    for (uint32_t i = row->first_hit; i != KVE_NONE; i = reader->hits[i].next) {
        const struct kve_hit *hit = &reader->hits[i];
        const struct kve_step *step = &reader->steps[hit->step];

        if (step->mixed == mixed && hit->tier < KVE_TIERS &&
            holds(step->run, hit, step->pos) && !put_holder(look, row, hit))
            return false;
    }
    return true;
}

/* All holders, as they are now. false: something changed meanwhile. */
static bool
put_holders(struct look *look)
{
    kve_index_reader *reader = look->ask.reader;
    bool good = true;

    look->n = 0;
    for (size_t i = 0; i < reader->n_rows; i++) {
        const struct kve_row *row = &reader->rows[i];
        size_t had = look->n;

        good &= put_form(look, row, false);
        if (look->n == had)
            good &= put_form(look, row, true);
        good &= kve_stamp_stays(row->slot, row->stamp);
    }
    return good;
}

/* One try: the rows first, then, with their stamps, what they hold. */
static enum kve_walk
look_once(struct look *look)
{
    struct kve_ask *ask = &look->ask;
    kve_index_reader *reader = ask->reader;
    enum kve_walk walk;

    kve_reader_begin(reader);
    walk = kve_hashes_gather(ask, true);
    if (walk != KVE_WALK_DONE)
        return walk;
    for (size_t i = 0; i < reader->n_rows; i++) {
        struct kve_row *row = &reader->rows[i];

        row->stamp = kve_stamp_read(row->slot);
        row->handle =
            atomic_load_explicit(&row->slot->handle, memory_order_acquire);
        row->first_hit = KVE_NONE;
    }
    reader->n_steps = 0;
    reader->n_hits = 0;
    walk = kve_hashes_gather(ask, false);
    if (walk != KVE_WALK_DONE)
        return walk;
    return put_holders(look) ? KVE_WALK_DONE : KVE_WALK_AGAIN;
}

size_t
kve_index_block(kve_index_reader *reader, kve_namespace ns,
    const struct kve_hash *hash, struct kve_index_holder *holders, size_t cap)
{
    kve_index *index = reader->index;
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct look look = { .holders = holders, .cap = cap };
    enum kve_walk walk = KVE_WALK_AGAIN;

    if (ns == 0 ||
        ns > atomic_load_explicit(&index->n_spaces, memory_order_acquire))
        return 0;
    query.hashes = hash;
    query.n_hashes = 1;
    look.ask = (struct kve_ask){ .reader = reader,
        .index = index,
        .space =
            atomic_load_explicit(&index->spaces[ns - 1], memory_order_acquire),
        .query = &query,
        .kind = KVE_ASK_HASHES,
        .block_size = 1 };
    kve_epoch_enter(&index->mem, reader->epoch);
    for (unsigned try = 0; walk == KVE_WALK_AGAIN && try < KVE_TRIES; try++) {
        if (try > 0)
            kve_reader_pause(try);
        walk = look_once(&look);
    }
    kve_epoch_leave(reader->epoch);
    return walk == KVE_WALK_NOMEM ? 0 : look.n;
}
