/*
 * query.c - how much of a prompt each instance holds.
 *
 * Most instances hold one kind of block in one place: then a record's lead is
 * all there is to it, and a question is one walk: down the chain while the
 * contents are equal, and along the records of each run. Such an instance is
 * met in the first run, or holds nothing of the prompt; it goes on into the
 * next run while it held all of the one before.
 *
 * What that costs, for 128 blocks in two runs: the bucket of the first edge,
 * the run's head with its records, 64 contents compared as memory; the same
 * again for the second run; eight stamps at the beginning and at the end. The
 * misses are the two buckets and the two heads; contents follow in lines that
 * were asked for before.
 *
 * All others (several tiers or groups, several block sizes, Dynamo's hashes),
 * and whoever changed meanwhile, go through query_long.c.
 */
#include "index/walk.h"

#include "base/status.h"

#include <assert.h>
#include <string.h>

#define ASK_PREFETCH 128 /* numbers of a question */
#define AHEAD_MOST 256u  /* blocks hashed before they are compared */

bool
kve_run_match(struct kve_ask *ask, const struct kve_run *run, uint32_t n,
    struct kve_stream *stream, size_t at, bool dynamo, uint32_t *ret_n)
{
    const uint64_t *own = dynamo ? kve_run_dynamo(run) : kve_run_contents(run);
    size_t total = stream->total - at < n ? stream->total - at : n;
    size_t m = 0;

    while (m < total) {
        size_t have;
        size_t k;

        if (!kve_stream_need(ask, stream, at + m + 1))
            return false;
        have = stream->n - at < total ? stream->n - at : total;
        k = kve_words_match(
            own + m, kve_stream_hashes(stream) + at + m, have - m);
        m += k;
        if (m < have)
            break;
    }
    *ret_n = (uint32_t)m;
    return true;
}

/* ------------------------------------------------------------------ */
/* The quick way. */

struct quick {
    struct kve_ask *ask;
    const struct kve_run *run; /* NULL: at the root */
    struct kve_stream *stream; /* the only one; it stays where it is */
    uint32_t size;
    uint32_t pos; /* blocks matched so far */
    bool marked;  /* rows can be found by slot */
};

/*
 * The run that continues another (NULL: the root), or NULL. A look-up that
 * finds nothing is believed when the run stood in its place to the end.
 */
static enum kve_walk
quick_child(const struct quick *q, const struct kve_run *from, uint64_t hash,
    const struct kve_run **ret)
{
    const struct kve_space *space = q->ask->space;
    struct kve_descent d = { .parent = from != NULL
            ? KVE_PARENT_RUN | from->obj.id
            : KVE_PARENT_ROOT | q->ask->root->id,
        .size = q->size,
        .hash = hash };

    kve_descent_begin(space, &d);
    KVE_READER_TURN();
    *ret = kve_descent_next(space, &d);
    if (*ret != NULL)
        return KVE_WALK_DONE;
    KVE_READER_TURN();
    return kve_descent_sure(space, &d) &&
            (from == NULL || kve_run_stays(space, from))
        ? KVE_WALK_DONE
        : KVE_WALK_AGAIN;
}

/*
 * The row of an instance that may have been met, that is one of many that are
 * not asked for, or that is complex. *ret_row NULL: there is none to be
 * filled.
 */
static __attribute__((noinline)) enum kve_walk
slow_row(struct quick *q, uint64_t view, struct kve_row **ret_row)
{
    kve_index_reader *reader = q->ask->reader;
    size_t had = reader->n_rows;
    bool nomem = false;

    if (!q->marked && !kve_mark_rows(reader))
        return KVE_WALK_NOMEM;
    q->marked = true;
    *ret_row = kve_ask_row(q->ask, view, true, 0, &nomem);
    if (nomem)
        return KVE_WALK_NOMEM;
    if (*ret_row != NULL && reader->n_rows == had) {
        (*ret_row)->flags |= KVE_ROW_LONG; /* met twice */
        *ret_row = NULL;
    }
    return KVE_WALK_DONE;
}

/* The row of a simple instance, which has one record in a run: so it was not
 * met before. What only the long way needs is left as it is. */
static inline struct kve_row *
next_row(kve_index_reader *reader, struct kve_slot *slot, uint64_t view)
{
    struct kve_row *row = &reader->rows[reader->n_rows];

    row->slot = slot;
    row->handle = atomic_load_explicit(&slot->handle, memory_order_acquire);
    row->number = KVE_VIEW_SLOT(view);
    if (row->handle == 0)
        return NULL;
    reader->n_rows++;
    return row;
}

/*
 * The instances of the first run, with their stamps. Of those that hold
 * nothing at its beginning only the complex ones matter.
 */
static enum kve_walk
quick_meet(struct quick *q, const struct kve_run *run)
{
    const struct kve_space *space = q->ask->space;
    kve_index *index = q->ask->index;
    kve_index_reader *reader = q->ask->reader;
    uint32_t n = atomic_load_explicit(&run->n_recs, memory_order_acquire);

    if (!KVE_ROOM(reader, rows, cap_rows, n))
        return KVE_WALK_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t hot = atomic_load_explicit(&run->hot[i], memory_order_acquire);
        uint32_t scope = KVE_HOT_SCOPE(hot);
        _Atomic uint64_t *place = kve_view_place(space, scope);
        uint64_t view = atomic_load_explicit(place, memory_order_acquire);
        struct kve_slot *slot;
        struct kve_row *row;
        uint32_t stamp;
        bool complex;

        if (view == 0)
            continue;
        KVE_READER_TURN();
        slot = kve_slot_at(index, KVE_VIEW_SLOT(view));
        stamp = kve_stamp_read(slot);
        KVE_READER_TURN();
        complex = atomic_load_explicit(&slot->shape, memory_order_acquire) != 0;
        if (KVE_HOT_LEAD(hot) == 0 && !complex)
            continue;
        if (!q->marked && !complex) {
            row = next_row(reader, slot, view);
        } else if (slow_row(q, view, &row) != KVE_WALK_DONE) {
            return KVE_WALK_NOMEM;
        }
        if (row == NULL)
            continue;
        row->stamp = stamp;
        row->rec = i;
        row->scope = scope;
        row->flags = 0;
        /* The scope may have changed hands before the stamp was read. */
        if (complex ||
            atomic_load_explicit(place, memory_order_acquire) != view)
            row->flags = KVE_ROW_LONG;
    }
    return KVE_WALK_DONE;
}

/* How far each of them holds what matches of the first run. */
static void
quick_first(const struct quick *q, const struct kve_run *run, uint32_t match)
{
    const kve_index_reader *reader = q->ask->reader;
    const struct kve_row *end = reader->rows + reader->n_rows;

    for (struct kve_row *row = reader->rows; row < end; row++) {
        uint64_t hot =
            atomic_load_explicit(&run->hot[row->rec], memory_order_acquire);
        uint32_t lead = KVE_HOT_LEAD(hot);

        /* A record that was given up may be another scope's by now. */
        if (KVE_HOT_SCOPE(hot) != row->scope)
            lead = 0;
        row->blocks = lead < match ? lead : match;
    }
}

/* The same for a run behind it, for those who held all before it; and complex
 * instances that are met here first. */
static enum kve_walk
quick_next(struct quick *q, const struct kve_run *run, uint32_t match)
{
    struct kve_ask *ask = q->ask;
    uint32_t n = atomic_load_explicit(&run->n_recs, memory_order_acquire);
    bool nomem = false;

    if (!q->marked && !kve_mark_rows(ask->reader))
        return KVE_WALK_NOMEM;
    q->marked = true;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t hot = atomic_load_explicit(&run->hot[i], memory_order_acquire);
        uint32_t lead = KVE_HOT_LEAD(hot);
        const struct kve_slot *slot;
        struct kve_row *row;
        uint64_t view;

        if (KVE_HOT_SCOPE(hot) == 0)
            continue;
        KVE_READER_TURN();
        view = kve_view_of(ask->space, KVE_HOT_SCOPE(hot));
        if (view == 0)
            continue;
        row = kve_row_met(ask->reader, KVE_VIEW_SLOT(view));
        if (row != NULL) {
            if (row->blocks == q->pos)
                row->blocks += lead < match ? lead : match;
            continue;
        }
        slot = kve_slot_at(ask->index, KVE_VIEW_SLOT(view));
        if ((atomic_load_explicit(&slot->shape, memory_order_acquire) &
                KVE_SHAPE_COMPLEX) != 0 &&
            kve_ask_row(ask, view, true, KVE_ROW_LONG, &nomem) == NULL && nomem)
            return KVE_WALK_NOMEM;
    }
    return KVE_WALK_DONE;
}

/*
 * A question that begins like a run is taken to go on like it: its hashes are
 * made up to the run's end and one more, so that the edge behind the run is
 * fetched while the run is looked at. *ret_key: of that edge, if there is one.
 */
static inline bool
quick_ahead(const struct quick *q, const struct kve_run *run, uint32_t n,
    bool *ret_known, uint64_t *ret_key)
{
    const struct kve_space *space = q->ask->space;
    size_t at = (size_t)q->pos + n;

    if (at >= q->stream->n && at < q->stream->total && n <= AHEAD_MOST &&
        !kve_stream_fill(q->ask, q->stream, at + 1))
        return false;
    *ret_known = at < q->stream->n;
    if (*ret_known) {
        *ret_key = kve_edge_key(space, KVE_PARENT_RUN | run->obj.id, q->size,
            kve_stream_hashes(q->stream)[at]);
        kve_table_prefetch(&space->edges, *ret_key);
    }
    return true;
}

/* Fetch the run that this edge seems to lead to, and hash what is likely to be
 * compared with it until it is there. false: no memory. */
static inline bool
quick_peek(const struct quick *q, uint64_t key, size_t at)
{
    const struct kve_space *space = q->ask->space;
    const struct kve_run *run;
    struct kve_probe probe;

    kve_probe_begin(&probe, &space->edges, key);
    if (probe.mask == 0)
        return true;
    run = kve_run_get(space, kve_probe_next(&probe));
    if (run == NULL)
        return true;
    kve_run_prefetch(run);
    return at + 1 < q->stream->n || q->stream->n == q->stream->total ||
        kve_stream_fill(q->ask, q->stream, at + 1);
}

/* The first run: its instances with their stamps; then, is it still the run,
 * and how long? Only what is read from then on belongs to the stamps. */
static enum kve_walk
quick_enter(struct quick *q, const struct kve_run *run, uint32_t *n)
{
    enum kve_walk walk = quick_meet(q, run);

    if (walk != KVE_WALK_DONE)
        return walk;
    KVE_READER_TURN();
    if (!kve_run_stays(q->ask->space, run))
        return KVE_WALK_AGAIN;
    KVE_READER_TURN();
    *n = atomic_load_explicit(&run->n, memory_order_acquire);
    return KVE_WALK_DONE;
}

/* One run: who holds how much of it. *ret_on: all of it matches. */
static inline enum kve_walk
quick_run(struct quick *q, const struct kve_run *run, bool *ret_on)
{
    struct kve_ask *ask = q->ask;
    uint32_t n = atomic_load_explicit(&run->n, memory_order_acquire);
    size_t at = (size_t)q->pos + n;
    bool first = q->run == NULL;
    enum kve_walk walk;
    uint32_t match;
    uint64_t key;
    bool known;

    if (!quick_ahead(q, run, n, &known, &key))
        return KVE_WALK_NOMEM;
    if (first) {
        walk = quick_enter(q, run, &n);
        if (walk != KVE_WALK_DONE)
            return walk;
    }
    KVE_READER_TURN();
    if ((known && !quick_peek(q, key, at)) ||
        !kve_run_match(ask, run, n, q->stream, q->pos, false, &match))
        return KVE_WALK_NOMEM;
    if (first) {
        quick_first(q, run, match);
    } else {
        walk = quick_next(q, run, match);
        if (walk != KVE_WALK_DONE)
            return walk;
    }
    *ret_on = match == n;
    q->pos += match;
    q->run = run;
    return KVE_WALK_DONE;
}

/* Chains of other sizes begin behind the run, too. */
static inline bool
is_odd(const struct quick *q)
{
    return q->ask->kind == KVE_ASK_TOKENS &&
        atomic_load_explicit(&q->run->n_odd, memory_order_acquire) > 0;
}

/* Down to where the prompt or the chain ends. */
static enum kve_walk
quick_walk(struct quick *q)
{
    while (q->pos < q->stream->total) {
        const struct kve_run *run;
        enum kve_walk walk;
        bool on;

        if (!kve_stream_need(q->ask, q->stream, (size_t)q->pos + 1))
            return KVE_WALK_NOMEM;
        walk =
            quick_child(q, q->run, kve_stream_hashes(q->stream)[q->pos], &run);
        if (walk != KVE_WALK_DONE || run == NULL)
            return walk;
        if (q->run == NULL)
            kve_run_prefetch(run);
        KVE_READER_TURN();
        walk = quick_run(q, run, &on);
        if (walk != KVE_WALK_DONE || !on)
            return walk;
        if (is_odd(q))
            return KVE_WALK_LONG;
    }
    return KVE_WALK_DONE;
}

/* The one size to ask with; 0: no chain begins here, or (KVE_WALK_LONG) there
 * are several. */
static enum kve_walk
quick_size(const struct kve_ask *ask, uint32_t *ret_size)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    size_t n;

    *ret_size = ask->block_size;
    if (ask->kind == KVE_ASK_CONTENTS && ask->block_size > 0)
        return KVE_WALK_DONE;
    /* One size is the usual thing; its place is the first. */
    if (atomic_load_explicit(&ask->root->n_sizes, memory_order_acquire) == 1) {
        *ret_size =
            atomic_load_explicit(&ask->root->sizes[0], memory_order_acquire);
        if (*ret_size != 0)
            return KVE_WALK_DONE;
    }
    n = kve_root_sizes(ask->space, ask->root, sizes);
    if (n > 1)
        return ask->kind == KVE_ASK_CONTENTS ? KVE_WALK_SIZES : KVE_WALK_LONG;
    *ret_size = n == 1 ? sizes[0] : 0;
    return KVE_WALK_DONE;
}

static enum kve_walk
quick(struct kve_ask *ask, struct quick *q)
{
    uint32_t gone = kve_gone_read(ask->space);
    enum kve_walk walk;
    uint32_t stream;
    uint32_t at;

    /* Where not everybody is asked for, each row has to be looked up. */
    *q = (struct quick){ .ask = ask, .marked = ask->picky };
    walk = quick_size(ask, &q->size);
    if (walk != KVE_WALK_DONE || q->size == 0)
        return walk;
    stream = kve_ask_stream(ask, q->size, 0, &at);
    if (stream == KVE_NONE)
        return KVE_WALK_NOMEM;
    q->stream = &ask->reader->streams[stream];
    walk = quick_walk(q);
    return walk == KVE_WALK_DONE && !kve_gone_stays(ask->space, gone)
        ? KVE_WALK_AGAIN
        : walk;
}

uint32_t
kve_numbers_longest(const struct kve_numbers *numbers)
{
    uint32_t longest = 0;

    for (unsigned i = 0; i < KVE_TIERS; i++) {
        if (numbers->alone[i] > longest)
            longest = numbers->alone[i];
        if (numbers->upto[i] > longest)
            longest = numbers->upto[i];
    }
    return longest;
}

/* Matches of simple rows end within the prompt anyway; it may be that they
 * have to end before its last token, too. */
static uint32_t
most_tokens(const struct kve_ask *ask, uint32_t size)
{
    return ask->query->recompute_last && size > 0
        ? ask->limit - ask->limit % size
        : UINT32_MAX;
}

/* List the rows for the answer, whatever way they went. */
static bool
list_rows(struct kve_ask *ask)
{
    kve_index_reader *reader = ask->reader;
    uint32_t most = most_tokens(ask, ask->size);
    size_t n = 0;

    if (!KVE_ROOM(reader, order, cap_order, 2 * reader->n_rows))
        return false;
    for (size_t i = 0; i < reader->n_rows; i++) {
        const struct kve_row *row = &reader->rows[i];
        uint32_t longest = 0;

        if ((row->flags & KVE_ROW_LONG) != 0)
            longest = kve_numbers_longest(&reader->numbers[row->numbers]);
        else if (ask->size > 0)
            longest = row->blocks * ask->size;
        if ((row->flags & KVE_ROW_LONG) == 0 && longest > most)
            longest = most;
        reader->order[n] = (uint64_t)longest << 32 | i;
        n += longest > 0 || (row->flags & KVE_ROW_SHAKY) != 0;
    }
    ask->n_listed = n;
    ask->in_order = false;
    ask->plain = false;
    return true;
}

static enum kve_walk
ask_long(struct kve_ask *ask, bool discover)
{
    enum kve_walk walk = kve_long(ask, discover);

    return walk == KVE_WALK_DONE && !list_rows(ask) ? KVE_WALK_NOMEM : walk;
}

/*
 * Rows whose instance changed since it was met go the long way. The others are
 * listed for the answer on the way. Returns whether none has to.
 */
static bool
quick_finish(struct kve_ask *ask, uint32_t size)
{
    kve_index_reader *reader = ask->reader;
    uint32_t most = most_tokens(ask, size);
    struct kve_row *rows = reader->rows;
    uint64_t *order = reader->order;
    uint32_t flags = 0;
    uint32_t last = UINT32_MAX;
    uint32_t rises = 0;
    size_t n = 0;

    for (size_t i = 0; i < reader->n_rows; i++) {
        uint32_t longest = rows[i].blocks * size;

        if (!kve_stamp_stays(rows[i].slot, rows[i].stamp))
            rows[i].flags |= KVE_ROW_LONG;
        flags |= rows[i].flags;
        longest = longest < most ? longest : most;
        order[n] = (uint64_t)longest << 32 | i;
        n += longest > 0;
        rises |= longest > last;
        last = longest;
    }
    ask->n_listed = n;
    ask->in_order = rises == 0;
    ask->plain = flags == 0;
    return (flags & KVE_ROW_LONG) == 0;
}

static enum kve_walk
ask_quick(struct kve_ask *ask)
{
    struct quick q;
    enum kve_walk walk = KVE_WALK_AGAIN;

    for (unsigned try = 0; try < KVE_WALKS && walk == KVE_WALK_AGAIN; try++) {
        if (try > 0) {
            kve_reader_pause(try);
            kve_reader_begin(ask->reader);
            if (!kve_ask_want(ask))
                return KVE_WALK_NOMEM;
        }
        walk = quick(ask, &q);
    }
    if (walk == KVE_WALK_AGAIN) {
        ask->size = q.size;
        return kve_ask_everybody(ask) ? ask_long(ask, false) : KVE_WALK_NOMEM;
    }
    if (walk == KVE_WALK_DONE) {
        if (!KVE_ROOM(ask->reader, order, cap_order, 2 * ask->reader->n_rows))
            return KVE_WALK_NOMEM;
        ask->size = q.size;
        KVE_READER_TURN();
        if (!quick_finish(ask, q.size))
            return q.marked || kve_mark_rows(ask->reader) ? ask_long(ask, false)
                                                          : KVE_WALK_NOMEM;
    } else if (walk == KVE_WALK_LONG) {
        kve_reader_begin(ask->reader);
        if (!kve_ask_want(ask))
            return KVE_WALK_NOMEM;
        return ask_long(ask, true);
    }
    return walk;
}

/* ------------------------------------------------------------------ */
/* The answer. */

/* A list of lengths and rows, the longest first. Most are in order. */
static void
sort_few(uint64_t *order, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint64_t item = order[i];
        size_t k = i;

        if (item >> 32 <= order[i - 1] >> 32)
            continue;
        do
            order[k] = order[k - 1];
        while (--k > 0 && order[k - 1] >> 32 < item >> 32);
        order[k] = item;
    }
}

/* Sort by a byte of the length, the largest first, from from to to. */
static void
sort_byte(const uint64_t *from, uint64_t *to, size_t n, unsigned shift)
{
    uint32_t places[257] = { 0 };

    for (size_t i = 0; i < n; i++)
        places[256 - (from[i] >> shift & 255)]++;
    for (unsigned b = 1; b < 257; b++)
        places[b] += places[b - 1];
    for (size_t i = 0; i < n; i++)
        to[places[255 - (from[i] >> shift & 255)]++] = from[i];
}

/* The same list for many rows; order has room for twice as many. Bytes that
 * are equal everywhere are passed over. */
static const uint64_t *
sort_many(uint64_t *order, size_t n)
{
    uint64_t *from = order;
    uint64_t *to = order + n;
    uint64_t ones = 0;
    uint64_t zeros = 0;

    for (size_t i = 0; i < n; i++) {
        ones |= order[i];
        zeros |= ~order[i];
    }
    for (unsigned shift = 32; shift < 64; shift += 8) {
        uint64_t *other = from;

        if (((ones & zeros) >> shift & 255) == 0)
            continue;
        sort_byte(from, to, n, shift);
        from = to;
        to = other;
    }
    return from;
}

/* Numbers of a row, alone and upto, as one array. */
#define NUMBERS (2 * KVE_TIERS)

/* What simple rows of a question have in common: which numbers are not 0. */
static void
gpu_mask(const struct kve_ask *ask, uint32_t mask[NUMBERS])
{
    uint32_t in = 0;

    memset(mask, 0, NUMBERS * sizeof(*mask));
    mask[KVE_TIER_GPU] = UINT32_MAX;
    for (size_t i = 0; i < ask->n_order; i++) {
        if (ask->order[i] == KVE_TIER_GPU)
            in = UINT32_MAX;
        mask[KVE_TIERS + i] = in;
    }
}

/* A row without flags. */
static inline void
put_simple(const struct kve_row *rows, uint64_t item, const uint32_t *mask,
    struct kve_index_row *to)
{
    uint32_t longest = (uint32_t)(item >> 32);
    uint32_t *all =
        (uint32_t *)((char *)to + offsetof(struct kve_index_row, alone));

    static_assert(offsetof(struct kve_index_row, upto) ==
            offsetof(struct kve_index_row, alone) + sizeof(to->alone),
        "alone and upto are one array");
    to->instance = rows[(uint32_t)item].handle;
    to->longest = longest;
    to->flags = 0;
    for (unsigned i = 0; i < 8; i++)
        all[i] = longest & mask[i];
    all[8] = longest & mask[8];
    all[9] = longest & mask[9];
}

/* Any row; returns its flags. */
static uint32_t
put_row(const struct kve_ask *ask, uint64_t item, const uint32_t *mask,
    struct kve_index_row *to)
{
    const struct kve_row *row = &ask->reader->rows[(uint32_t)item];

    put_simple(ask->reader->rows, item, mask, to);
    if ((row->flags & KVE_ROW_SHAKY) != 0)
        to->flags = KVE_ROW_MOVING;
    if ((row->flags & KVE_ROW_LONG) != 0) {
        const struct kve_numbers *numbers = &ask->reader->numbers[row->numbers];

        memcpy(to->alone, numbers->alone, sizeof(to->alone));
        memcpy(to->upto, numbers->upto, sizeof(to->upto));
    }
    return to->flags;
}

/* The rows that are listed, the longest first. */
static void
put_answer(const struct kve_ask *ask, struct kve_index_answer *answer)
{
    kve_index_reader *reader = ask->reader;
    const uint64_t *sorted = reader->order;
    size_t n = ask->n_listed;
    uint32_t mask[NUMBERS];

    if (!ask->in_order && n <= 32)
        sort_few(reader->order, n);
    else if (!ask->in_order)
        sorted = sort_many(reader->order, n);
    answer->total = n;
    n = n < answer->cap ? n : answer->cap;
    answer->n = n;
    answer->n_moving = 0;
    gpu_mask(ask, mask);
    if (ask->plain) {
        for (size_t i = 0; i < n; i++)
            put_simple(reader->rows, sorted[i], mask, &answer->rows[i]);
        return;
    }
    for (size_t i = 0; i < n; i++)
        answer->n_moving += put_row(ask, sorted[i], mask, &answer->rows[i]);
}

/* ------------------------------------------------------------------ */
/* The public call. */

void
kve_index_query_init(struct kve_index_query *query)
{
    *query = (struct kve_index_query)KVE_INDEX_QUERY_INIT;
}

void
kve_index_answer_init(struct kve_index_answer *answer)
{
    *answer = (struct kve_index_answer)KVE_INDEX_ANSWER_INIT;
}

static kve_status
check_tiers(const struct kve_index_query *query, struct kve_error *err)
{
    if (query->n_tiers > KVE_TIERS)
        return kve_fail(err, KVE_E_INVAL,
            "%zu tiers in the order of a query; at most %u", query->n_tiers,
            (unsigned)KVE_TIERS);
    for (size_t i = 0; i < query->n_tiers; i++) {
        if (query->tiers[i] >= KVE_TIERS)
            return kve_fail(err, KVE_E_INVAL,
                "tier %u in the order of a query; accepted are 0 to %u",
                (unsigned)query->tiers[i], (unsigned)KVE_TIERS - 1);
    }
    return KVE_OK;
}

/* How much is asked for, and in what form. */
static kve_status
ask_kind(const struct kve_index_query *query, struct kve_ask *ask,
    struct kve_error *err)
{
    unsigned given = (query->tokens != NULL) + (query->contents != NULL) +
        (query->dynamo != NULL) + (query->hashes != NULL);
    uint64_t tokens;
    size_t n;

    if (given != 1)
        return kve_fail(err, KVE_E_INVAL,
            "%u of tokens, contents, dynamo and hashes are given in a query; "
            "give exactly one",
            given);
    ask->kind = query->tokens != NULL ? KVE_ASK_TOKENS
        : query->contents != NULL     ? KVE_ASK_CONTENTS
        : query->dynamo != NULL       ? KVE_ASK_DYNAMO
                                      : KVE_ASK_HASHES;
    n = query->tokens != NULL     ? query->n_tokens
        : query->contents != NULL ? query->n_contents
        : query->dynamo != NULL   ? query->n_dynamo
                                  : query->n_hashes;
    ask->block_size = ask->kind == KVE_ASK_TOKENS ? 0 : query->block_size;
    tokens = n * (uint64_t)(ask->block_size > 0 ? ask->block_size : 1);
    if (n > UINT32_MAX || tokens > UINT32_MAX)
        return kve_fail(err, KVE_E_INVAL,
            "a query of %zu %s is too long; at most %u tokens in all", n,
            ask->kind == KVE_ASK_TOKENS ? "tokens" : "blocks", UINT32_MAX);
    return KVE_OK;
}

uint32_t
kve_query_limit(const struct kve_ask *ask, uint32_t size)
{
    const struct kve_index_query *query = ask->query;
    uint64_t n = ask->kind == KVE_ASK_TOKENS ? query->n_tokens
        : ask->kind == KVE_ASK_CONTENTS ? (uint64_t)query->n_contents * size
        : ask->kind == KVE_ASK_DYNAMO   ? (uint64_t)query->n_dynamo * size
                                        : (uint64_t)query->n_hashes * size;

    if (n > UINT32_MAX)
        n = UINT32_MAX;
    return (uint32_t)(query->recompute_last && n > 0 ? n - 1 : n);
}

kve_status
kve_query_begin(kve_index_reader *reader, const struct kve_index_query *query,
    struct kve_ask *ask, struct kve_error *err)
{
    static const uint8_t usual[] = { KVE_TIER_GPU, KVE_TIER_CPU,
        KVE_TIER_DISK };
    uint32_t n =
        atomic_load_explicit(&reader->index->n_spaces, memory_order_acquire);
    kve_status status;

    *ask = (struct kve_ask){ .reader = reader,
        .index = reader->index,
        .query = query,
        .order = query->n_tiers > 0 ? query->tiers : usual,
        .n_order = query->n_tiers > 0 ? query->n_tiers : sizeof(usual) };
    status = check_tiers(query, err);
    if (status == KVE_OK)
        status = ask_kind(query, ask, err);
    if (status != KVE_OK)
        return status;
    if (query->ns == 0 || query->ns > n)
        return kve_fail(err, KVE_E_NOT_FOUND,
            "namespace %u is not known; ask kve_index_find_namespace()",
            query->ns);
    ask->space = atomic_load_explicit(
        &reader->index->spaces[query->ns - 1], memory_order_acquire);
    return KVE_OK;
}

/* Dynamo's hashes: the one size that begins chains, where none is said. */
static enum kve_walk
dynamo_size(struct kve_ask *ask)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    size_t n = 0;

    if (ask->block_size > 0)
        return KVE_WALK_DONE;
    n = kve_root_sizes(ask->space, ask->root, sizes);
    if (n == 0)
        n = kve_space_sizes(ask->space, sizes);
    if (n > 1)
        return KVE_WALK_SIZES;
    ask->block_size = n == 1 ? sizes[0] : 0;
    return KVE_WALK_DONE;
}

/* Engine hashes: the one size there is, where none is said. */
static enum kve_walk
ask_hashes(struct kve_ask *ask)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    enum kve_walk walk;
    bool unsure = false;

    if (ask->block_size == 0) {
        unsure = kve_space_sizes(ask->space, sizes) != 1;
        ask->block_size = sizes[0];
    }
    walk = ask_long(ask, true);
    return walk == KVE_WALK_DONE && unsure && ask->reader->n_rows > 0
        ? KVE_WALK_SIZES
        : walk;
}

static const struct kve_root *
find_root(const struct kve_ask *ask)
{
    const struct kve_index_query *query = ask->query;

    if (ask->kind == KVE_ASK_DYNAMO ||
        (query->lora_name.len == 0 && query->cache_salt.len == 0))
        return kve_dir_get(&ask->space->roots, 1);
    return kve_root_of(ask->space, query->lora_name, query->cache_salt, false);
}

enum kve_walk
kve_query_frame(struct kve_ask *ask)
{
    enum kve_walk walk;

    ask->root = find_root(ask);
    if (ask->root == NULL)
        return KVE_WALK_DONE;
    if (ask->kind == KVE_ASK_TOKENS) {
        ask->limit = kve_query_limit(ask, 1);
        return KVE_WALK_DONE;
    }
    walk = ask->kind == KVE_ASK_DYNAMO ? dynamo_size(ask)
                                       : quick_size(ask, &ask->block_size);
    if (walk == KVE_WALK_DONE && ask->block_size > 0)
        ask->limit = kve_query_limit(ask, ask->block_size);
    return walk;
}

/* Within a read section: find all rows. */
static enum kve_walk
ask_all(struct kve_ask *ask)
{
    enum kve_walk walk;

    if (!kve_reader_begin(ask->reader) || !kve_ask_want(ask))
        return KVE_WALK_NOMEM;
    if (ask->kind == KVE_ASK_HASHES)
        return ask_hashes(ask);
    walk = kve_query_frame(ask);
    if (walk != KVE_WALK_DONE || ask->root == NULL ||
        (ask->kind != KVE_ASK_TOKENS && ask->block_size == 0))
        return walk;
    return ask->kind == KVE_ASK_DYNAMO ? ask_long(ask, true) : ask_quick(ask);
}

/* The question's own numbers are as cold as anything else. */
KVE_FETCHES static inline void
ask_prefetch(const struct kve_index_query *query)
{
    size_t n = query->contents != NULL ? query->n_contents : 0;

    if (n > ASK_PREFETCH)
        n = ASK_PREFETCH;
    for (size_t i = 0; i < n; i += 8)
        __builtin_prefetch(&query->contents[i]);
}

kve_status
kve_query_status(
    const struct kve_ask *ask, enum kve_walk walk, struct kve_error *err)
{
    if (walk == KVE_WALK_SIZES)
        return kve_fail(err, KVE_E_INVAL,
            "a query without block_size, where chains have several sizes, or "
            "none that is known; say how many tokens a hash stands for");
    if (walk == KVE_WALK_NOMEM)
        return kve_fail(err, KVE_E_NOMEM,
            "no memory for the scratch of a query%s",
            ask->index->mem.max_bytes > 0 ? " below max_bytes" : "");
    return KVE_OK;
}

kve_status
kve_index_query(kve_index_reader *reader, const struct kve_index_query *query,
    struct kve_index_answer *answer, struct kve_error *err)
{
    struct kve_index_query copy;
    struct kve_ask ask;
    enum kve_walk walk;
    kve_status status;

    if (query->struct_size != sizeof(*query)) {
        status = kve_opts_read(
            query, sizeof(*query), &copy, sizeof(copy), "kve_index_query", err);
        if (status != KVE_OK)
            return status;
        query = &copy;
    }
    status = kve_query_begin(reader, query, &ask, err);
    if (status != KVE_OK)
        return status;
    ask_prefetch(query);
    kve_epoch_enter(&reader->index->mem, reader->epoch);
    walk = ask_all(&ask);
    kve_epoch_leave(reader->epoch);
    status = kve_query_status(&ask, walk, err);
    if (status == KVE_OK)
        put_answer(&ask, answer);
    return status;
}
