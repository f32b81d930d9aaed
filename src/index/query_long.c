/*
 * query_long.c - instances that take the long way.
 *
 * The question is walked again for all of them together: stamps first, then
 * everything of the prompt that is in the tree of runs (branches of several
 * block sizes, too) as a list of steps, and for each instance the list of its
 * records in them, as hits. Then each instance is computed alone from its
 * hits, and settled when its stamp stayed. The others are tried again, at most
 * KVE_TRIES times; what does not settle is the smallest that was seen.
 *
 *     steps   root - [run 1: 64 blocks] - [run 2: 12 blocks]
 *                  \ [run 3: 16 blocks of 64]
 *     hits    instance 5: (step 0, GPU) (step 0, CPU) (step 1, GPU)
 *
 * Without groups a match is the longest path of which every block is held, in
 * any of the tiers that are counted; with groups see query_groups.c.
 *
 * Bridges are blocks that a store skipped: they are no wall, and no end.
 */
#include "index/walk.h"

#include <string.h>

/* ------------------------------------------------------------------ */
/* Steps and hits. */

static enum kve_walk
add_hit(struct kve_ask *ask, struct kve_row *row, uint32_t step, uint32_t rec,
    uint32_t scope, uint64_t view)
{
    kve_index_reader *reader = ask->reader;
    uint32_t at = (uint32_t)reader->n_hits;

    if (!KVE_ROOM(reader, hits, cap_hits, reader->n_hits + 1))
        return KVE_WALK_NOMEM;
    reader->n_hits++;
    reader->hits[at] = (struct kve_hit){ .step = step,
        .rec = rec,
        .scope = scope,
        .next = KVE_NONE,
        .group = (uint16_t)KVE_VIEW_GROUP(view),
        .tier = (uint8_t)KVE_VIEW_TIER(view) };
    if (row->first_hit == KVE_NONE)
        row->first_hit = at;
    else
        reader->hits[row->last_hit].next = at;
    row->last_hit = at;
    return KVE_WALK_DONE;
}

enum kve_walk
kve_step_hits(struct kve_ask *ask, uint32_t step, bool make)
{
    const struct kve_step *s = &ask->reader->steps[step];
    const struct kve_run *run = s->run;
    uint32_t n = atomic_load_explicit(&run->n_recs, memory_order_acquire);
    bool nomem = false;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t scope = KVE_HOT_SCOPE(
            atomic_load_explicit(&run->hot[i], memory_order_acquire));
        struct kve_row *row;
        uint64_t view;
        enum kve_walk walk;

        if (scope == 0 ||
            (ask->kind == KVE_ASK_HASHES &&
                atomic_load_explicit(
                    &kve_run_recs(run)[i].vec, memory_order_relaxed) != s->vec))
            continue;
        KVE_READER_TURN();
        view = kve_view_of(ask->space, scope);
        if (view == 0)
            continue;
        row = kve_ask_row(ask, view, make, KVE_ROW_LONG, &nomem);
        if (row == NULL) {
            if (nomem)
                return KVE_WALK_NOMEM;
            continue;
        }
        if ((row->flags & (KVE_ROW_LONG | KVE_ROW_SETTLED)) != KVE_ROW_LONG)
            continue;
        walk = add_hit(ask, row, step, i, scope, view);
        if (walk != KVE_WALK_DONE)
            return walk;
    }
    return KVE_WALK_DONE;
}

/* Put a run on the way: behind step up, from this token on. */
static enum kve_walk
add_step(struct kve_ask *ask, const struct kve_run *run, uint32_t up,
    uint32_t start, uint32_t stream, uint32_t at, bool make)
{
    kve_index_reader *reader = ask->reader;
    uint32_t n = atomic_load_explicit(&run->n, memory_order_acquire);
    struct kve_step *step;
    uint32_t match;

    KVE_READER_TURN();
    if (!kve_run_match(ask, run, n, &reader->streams[stream], at,
            ask->kind == KVE_ASK_DYNAMO, &match) ||
        !KVE_ROOM(reader, steps, cap_steps, reader->n_steps + 1))
        return KVE_WALK_NOMEM;
    step = &reader->steps[reader->n_steps++];
    *step = (struct kve_step){ .run = run,
        .up = up,
        .start = start,
        .n = match,
        .size = run->block_size,
        .stream = stream,
        .at = at,
        .whole = match == n };
    return kve_step_hits(ask, (uint32_t)reader->n_steps - 1, make);
}

/* All runs that begin with a hash behind a step (KVE_NONE: the root). */
static enum kve_walk
add_children(struct kve_ask *ask, struct kve_descent *d, uint32_t up,
    uint32_t start, uint32_t stream, uint32_t at, bool make)
{
    const struct kve_run *run;
    enum kve_walk walk;

    kve_descent_begin(ask->space, d);
    KVE_READER_TURN();
    while ((run = kve_descent_next(ask->space, d)) != NULL) {
        walk = add_step(ask, run, up, start, stream, at, make);
        if (walk != KVE_WALK_DONE)
            return walk;
        if (!d->dynamo)
            return KVE_WALK_DONE; /* only Dynamo's may be ambiguous */
    }
    return kve_descent_sure(ask->space, d) ? KVE_WALK_DONE : KVE_WALK_AGAIN;
}

/* Look for runs of one size behind a step. */
static enum kve_walk
descend(struct kve_ask *ask, uint32_t up, uint32_t size, bool make)
{
    kve_index_reader *reader = ask->reader;
    const struct kve_step *s = up == KVE_NONE ? NULL : &reader->steps[up];
    uint32_t start = s == NULL ? 0 : s->start + s->n * s->size;
    struct kve_descent d = { .parent = s == NULL
            ? KVE_PARENT_ROOT | ask->root->id
            : KVE_PARENT_RUN | s->run->obj.id,
        .size = size,
        .plain = ask->kind == KVE_ASK_DYNAMO };
    uint32_t at;
    uint32_t stream = kve_ask_stream(ask, size, start, &at);
    enum kve_walk walk;

    if (stream == KVE_NONE)
        return KVE_WALK_NOMEM;
    if (at >= reader->streams[stream].total)
        return KVE_WALK_DONE;
    if (!kve_stream_need(ask, &reader->streams[stream], (size_t)at + 1))
        return KVE_WALK_NOMEM;
    d.hash = kve_stream_hashes(&reader->streams[stream])[at];
    walk = add_children(ask, &d, up, start, stream, at, make);
    if (walk != KVE_WALK_DONE || ask->kind != KVE_ASK_DYNAMO)
        return walk;
    d.plain = false;
    d.dynamo = true;
    if (up == KVE_NONE)
        d.parent = KVE_PARENT_DYNAMO;
    return add_children(ask, &d, up, start, stream, at, make);
}

static enum kve_walk
descend_sizes(struct kve_ask *ask, uint32_t up, const uint32_t *sizes,
    size_t n_sizes, bool make)
{
    for (size_t i = 0; i < n_sizes; i++) {
        enum kve_walk walk = descend(ask, up, sizes[i], make);

        if (walk != KVE_WALK_DONE)
            return walk;
    }
    return KVE_WALK_DONE;
}

/* What begins at the root. */
static enum kve_walk
gather_root(struct kve_ask *ask, bool make)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    size_t n;

    if (ask->kind != KVE_ASK_TOKENS)
        return descend(ask, KVE_NONE, ask->block_size, make);
    n = kve_root_sizes(ask->space, ask->root, sizes);
    return descend_sizes(ask, KVE_NONE, sizes, n, make);
}

/* What continues a step. */
static enum kve_walk
gather_step(struct kve_ask *ask, uint32_t i, bool make)
{
    const struct kve_run *run = ask->reader->steps[i].run;
    uint32_t sizes[KVE_SPACE_SIZES];
    size_t n = 0;
    enum kve_walk walk;

    if (!ask->reader->steps[i].whole)
        return KVE_WALK_DONE;
    if (ask->kind == KVE_ASK_TOKENS &&
        atomic_load_explicit(&run->n_odd, memory_order_acquire) > 0)
        n = kve_space_sizes(ask->space, sizes);
    if (n == 0)
        sizes[n++] = ask->reader->steps[i].size;
    walk = descend_sizes(ask, i, sizes, n, make);
    if (walk != KVE_WALK_DONE)
        return walk;
    KVE_READER_TURN();
    return kve_run_stays(ask->space, run) ? KVE_WALK_DONE : KVE_WALK_AGAIN;
}

enum kve_walk
kve_gather(struct kve_ask *ask, bool make)
{
    enum kve_walk walk = gather_root(ask, make);

    for (uint32_t i = 0; walk == KVE_WALK_DONE && i < ask->reader->n_steps; i++)
        walk = gather_step(ask, i, make);
    return walk;
}

/* ------------------------------------------------------------------ */
/* Without groups. */

/* Hits of one step, which follow one another in a row's list. */
struct here {
    const struct kve_step *step;
    uint32_t first;
    uint32_t end; /* the hit behind them, or KVE_NONE */
};

static struct here
here_from(const kve_index_reader *reader, uint32_t hit)
{
    struct here here = { &reader->steps[reader->hits[hit].step], hit, hit };

    while (here.end != KVE_NONE &&
        reader->hits[here.end].step == reader->hits[hit].step)
        here.end = reader->hits[here.end].next;
    return here;
}

/* From block p on, up to where a record holds everything; p: nothing. */
static uint32_t
held_to(const struct kve_run *run, const struct kve_hit *hit, uint32_t p,
    uint32_t n)
{
    while (p < n) {
        uint64_t word =
            ~kve_rec_word(run, hit->rec, hit->scope, p / 64) >> (p % 64);
        uint32_t ones =
            word == 0 ? 64 - p % 64 : (uint32_t)__builtin_ctzll(word);

        if (ones == 0)
            break;
        p += ones;
        if (p % 64 != 0)
            break;
    }
    return p < n ? p : n;
}

/* The same for all records here in some tiers, one after another. */
static uint32_t
held_here(const kve_index_reader *reader, const struct here *here,
    uint32_t tiers, uint32_t p)
{
    bool more = true;

    while (more && p < here->step->n) {
        more = false;
        for (uint32_t i = here->first; i != here->end;
             i = reader->hits[i].next) {
            const struct kve_hit *hit = &reader->hits[i];
            uint32_t to;

            if ((tiers >> hit->tier & 1) == 0 || hit->group != KVE_NO_GROUP)
                continue;
            to = held_to(here->step->run, hit, p, here->step->n);
            more |= to > p;
            p = to;
        }
    }
    return p;
}

/* The match that ends within this step, or 0; *ret_on: one may go on behind
 * it. */
static uint32_t
match_here(const struct kve_ask *ask, const struct here *here, uint32_t tiers,
    bool *ret_on)
{
    const struct kve_step *step = here->step;
    uint32_t best = 0;
    uint32_t p = 0;
    uint32_t room =
        ask->limit < step->start ? 0 : (ask->limit - step->start) / step->size;

    while (p < step->n) {
        uint32_t to = held_here(ask->reader, here, tiers, p);

        if (to > p && p < room)
            best = step->start + (to < room ? to : room) * step->size;
        p = to;
        if (p == step->n ||
            held_here(ask->reader, here, 1u << KVE_TIER_BRIDGE, p) == p)
            break;
        p++;
    }
    *ret_on = p == step->n && step->whole;
    return best;
}

enum kve_walk
kve_number_plain(struct kve_ask *ask, struct kve_row *row, uint32_t tiers,
    uint32_t *ret_tokens)
{
    kve_index_reader *reader = ask->reader;
    uint32_t best = 0;

    if (!KVE_ROOM(reader, reached, cap_reached, reader->n_steps))
        return KVE_WALK_NOMEM;
    memset(reader->reached, 0, reader->n_steps);
    for (uint32_t i = row->first_hit; i != KVE_NONE;) {
        struct here here = here_from(reader, i);
        uint32_t up = here.step->up;
        bool on;
        uint32_t end;

        i = here.end;
        if (up != KVE_NONE && !reader->reached[up])
            continue;
        end = match_here(ask, &here, tiers, &on);
        if (end > best)
            best = end;
        reader->reached[here.step - reader->steps] = on;
    }
    *ret_tokens = best;
    return KVE_WALK_DONE;
}

/* ------------------------------------------------------------------ */
/* Rows. */

enum kve_walk
kve_row_numbers(struct kve_ask *ask, struct kve_row *row, kve_number_fn fn,
    struct kve_numbers *numbers)
{
    const kve_index_reader *reader = ask->reader;
    uint32_t known[1u << KVE_TIERS]; /* by set of tiers, where in done */
    uint32_t done = 1;               /* the empty set has nothing */
    uint32_t there = 0;
    uint32_t sum = 0;

    known[0] = 0;
    memset(numbers, 0, sizeof(*numbers));
    for (uint32_t i = row->first_hit; i != KVE_NONE; i = reader->hits[i].next)
        if (reader->hits[i].tier < KVE_TIERS)
            there |= 1u << reader->hits[i].tier;
    for (size_t i = 0; i < KVE_TIERS + ask->n_order; i++) {
        uint32_t tiers;

        if (i >= KVE_TIERS)
            sum |= 1u << ask->order[i - KVE_TIERS];
        tiers = there & (i < KVE_TIERS ? 1u << i : sum);
        if ((done >> tiers & 1) == 0) {
            enum kve_walk walk = fn(ask, row, tiers, &known[tiers]);

            if (walk != KVE_WALK_DONE)
                return walk;
            done |= 1u << tiers;
        }
        if (i < KVE_TIERS)
            numbers->alone[i] = known[tiers];
        else
            numbers->upto[i - KVE_TIERS] = known[tiers];
    }
    return KVE_WALK_DONE;
}

static void
smaller(struct kve_numbers *to, const struct kve_numbers *from)
{
    for (unsigned i = 0; i < KVE_TIERS; i++) {
        if (from->alone[i] < to->alone[i])
            to->alone[i] = from->alone[i];
        if (from->upto[i] < to->upto[i])
            to->upto[i] = from->upto[i];
    }
}

/* Compute a row from its hits; settle it when nothing changed meanwhile. */
static enum kve_walk
settle_row(struct kve_ask *ask, struct kve_row *row)
{
    kve_index_reader *reader = ask->reader;
    struct kve_numbers numbers;
    enum kve_walk walk;

    if (atomic_load_explicit(&row->slot->handle, memory_order_acquire) !=
        row->handle) {
        /* Dropped while we looked: it held nothing then. */
        memset(&numbers, 0, sizeof(numbers));
        row->stamp = kve_stamp_read(row->slot) & ~1u;
        walk = KVE_WALK_DONE;
    } else if (ask->kind == KVE_ASK_HASHES) {
        walk = kve_hashes_numbers(ask, row, &numbers);
    } else {
        walk = kve_row_numbers(ask, row, kve_number_fn_of(row), &numbers);
    }
    if (walk != KVE_WALK_DONE)
        return walk;
    KVE_READER_TURN();
    if (kve_stamp_stays(row->slot, row->stamp)) {
        row->flags |= KVE_ROW_SETTLED;
    } else if ((row->flags & KVE_ROW_SEEN) != 0) {
        smaller(&numbers, &reader->numbers[row->numbers]);
    }
    row->flags |= KVE_ROW_SEEN;
    reader->numbers[row->numbers] = numbers;
    return KVE_WALK_DONE;
}

/* Read the stamps of all rows that are to be settled. Returns how many. */
static size_t
stamp_rows(kve_index_reader *reader)
{
    size_t n = 0;

    for (size_t i = 0; i < reader->n_rows; i++) {
        struct kve_row *row = &reader->rows[i];

        if ((row->flags & (KVE_ROW_LONG | KVE_ROW_SETTLED)) != KVE_ROW_LONG)
            continue;
        row->stamp = kve_stamp_read(row->slot);
        row->first_hit = KVE_NONE;
        row->last_hit = KVE_NONE;
        n++;
    }
    reader->n_steps = 0;
    reader->n_hits = 0;
    return n;
}

static bool
room_for_numbers(kve_index_reader *reader)
{
    if (!KVE_ROOM(reader, numbers, cap_numbers, reader->n_rows))
        return false;
    for (size_t i = 0; i < reader->n_rows; i++)
        reader->rows[i].numbers = (uint32_t)i;
    return true;
}

/* One try. *ret_left: how many are not settled. */
static enum kve_walk
settle_rows(struct kve_ask *ask, bool *ret_again)
{
    kve_index_reader *reader = ask->reader;
    enum kve_walk walk = ask->kind == KVE_ASK_HASHES
        ? kve_hashes_gather(ask, false)
        : kve_gather(ask, false);
    bool whole = walk == KVE_WALK_DONE;

    *ret_again = !whole;
    if (walk != KVE_WALK_DONE && walk != KVE_WALK_AGAIN)
        return walk;
    for (size_t i = 0; i < reader->n_rows; i++) {
        struct kve_row *row = &reader->rows[i];

        if ((row->flags & (KVE_ROW_LONG | KVE_ROW_SETTLED)) != KVE_ROW_LONG)
            continue;
        if (!whole)
            row->stamp |= 1; /* what was gathered is not all of it */
        walk = settle_row(ask, row);
        if (walk != KVE_WALK_DONE)
            return walk;
        *ret_again |= (row->flags & KVE_ROW_SETTLED) == 0;
    }
    return KVE_WALK_DONE;
}

/* Find who holds any of it. */
static enum kve_walk
find_rows(struct kve_ask *ask)
{
    enum kve_walk walk = KVE_WALK_AGAIN;
    uint32_t gone;

    for (unsigned try = 0; try < KVE_WALKS && walk == KVE_WALK_AGAIN; try++) {
        if (try > 0)
            kve_reader_pause(try);
        ask->reader->n_steps = 0;
        ask->reader->n_hits = 0;
        for (size_t i = 0; i < ask->reader->n_rows; i++)
            ask->reader->rows[i].first_hit = KVE_NONE;
        gone = kve_gone_read(ask->space);
        walk = ask->kind == KVE_ASK_HASHES ? kve_hashes_gather(ask, true)
                                           : kve_gather(ask, true);
        if (walk == KVE_WALK_DONE && !kve_gone_stays(ask->space, gone))
            walk = KVE_WALK_AGAIN;
    }
    if (walk != KVE_WALK_AGAIN)
        return walk;
    return kve_ask_everybody(ask) ? KVE_WALK_DONE : KVE_WALK_NOMEM;
}

enum kve_walk
kve_long(struct kve_ask *ask, bool discover)
{
    kve_index_reader *reader = ask->reader;
    enum kve_walk walk = discover ? find_rows(ask) : KVE_WALK_DONE;
    bool again = true;

    if (walk != KVE_WALK_DONE)
        return walk;
    if (!room_for_numbers(reader))
        return KVE_WALK_NOMEM;
    for (unsigned try = 0; again && try < KVE_TRIES; try++) {
        if (try > 0)
            kve_reader_pause(try);
        if (stamp_rows(reader) == 0)
            break;
        walk = settle_rows(ask, &again);
        if (walk != KVE_WALK_DONE)
            return walk;
    }
    for (size_t i = 0; i < reader->n_rows; i++) {
        struct kve_row *row = &reader->rows[i];

        if ((row->flags & (KVE_ROW_LONG | KVE_ROW_SETTLED)) == KVE_ROW_LONG)
            row->flags |= KVE_ROW_SHAKY;
    }
    return KVE_WALK_DONE;
}
