/*
 * explain.c - why the match of one instance ends where it does.
 *
 * The instance takes the long way (query_long.c): everything of the prompt that
 * is in the tree of runs as steps, its own records as hits. From these follow
 * its numbers, and from what is around the end the reason. All of it is
 * believed when the instance's stamp stayed, as a row is; what is said of
 * others is what they held when they were looked at.
 *
 *     steps   root - [64 blocks] - [12 blocks]      what anybody holds
 *     hits     |        |             |             what this one holds
 *     reason   '- other roots    end -'- next block: anybody? behind it: we?
 *
 * Which tiers count. The longest number of a row is either that of all tiers
 * of the order together or that of one tier alone; what is held is judged by
 * those.
 */
#include "index/walk.h"

#include "base/status.h"

#include <string.h>

/* Roots that are looked at for the same content. */
#define ROOTS_MOST 16u

#define ALL_TIERS ((1u << KVE_TIERS) - 1)

struct explain {
    struct kve_ask ask;
    struct kve_index_query query; /* of one instance only */
    kve_instance only;
    struct kve_row *row;
    uint32_t tiers; /* that count */
    uint32_t least; /* smallest block size; 0: none is known */
    uint64_t suits; /* ends that suit all groups are multiples of it */
    struct kve_index_ended ended;
};

/* ---- what the instance holds ---- */

static enum kve_walk
gather(struct explain *x)
{
    kve_index_reader *reader = x->ask.reader;

    reader->n_steps = 0;
    reader->n_hits = 0;
    x->row->first_hit = KVE_NONE;
    x->row->last_hit = KVE_NONE;
    if (x->ask.kind == KVE_ASK_HASHES)
        return kve_hashes_gather(&x->ask, false);
    return kve_gather(&x->ask, false);
}

static enum kve_walk
numbers(struct explain *x, struct kve_numbers *ret)
{
    if (x->ask.kind == KVE_ASK_HASHES)
        return kve_hashes_numbers(&x->ask, x->row, ret);
    return kve_row_numbers(&x->ask, x->row, kve_number_fn_of(x->row), ret);
}

/* Which tiers the longest number is of. */
static uint32_t
tiers_of(const struct explain *x, const struct kve_numbers *n)
{
    uint32_t longest = kve_numbers_longest(n);
    uint32_t order = 0;

    for (size_t i = 0; i < x->ask.n_order; i++)
        order |= 1u << x->ask.order[i];
    if (n->upto[x->ask.n_order - 1] == longest)
        return order;
    for (uint32_t t = 0; t < KVE_TIERS; t++)
        if (n->alone[t] == longest)
            return 1u << t;
    return order;
}

/* The same question with all tiers in the order. */
static enum kve_walk
with_all_tiers(struct explain *x, uint32_t *ret)
{
    static const uint8_t all[KVE_TIERS] = { 0, 1, 2, 3, 4 };
    const uint8_t *order = x->ask.order;
    size_t n_order = x->ask.n_order;
    struct kve_numbers n;
    enum kve_walk walk;

    x->ask.order = all;
    x->ask.n_order = KVE_TIERS;
    walk = numbers(x, &n);
    x->ask.order = order;
    x->ask.n_order = n_order;
    if (walk == KVE_WALK_DONE)
        *ret = n.upto[KVE_TIERS - 1];
    return walk;
}

/* Does a record of this group take part in matches? */
static bool
group_counts(const struct explain *x, uint16_t group)
{
    struct kve_inst *inst =
        atomic_load_explicit(&x->row->slot->inst, memory_order_acquire);
    const struct kve_groups *groups = inst == NULL
        ? NULL
        : atomic_load_explicit(&inst->groups, memory_order_acquire);

    if (group == KVE_NO_GROUP)
        return true;
    return groups != NULL &&
        group < atomic_load_explicit(&groups->n, memory_order_acquire) &&
        atomic_load_explicit(&groups->info[group].need, memory_order_acquire) !=
        KVE_NEED_NONE;
}

/* The last block of the step that a hit holds, counted from 1; 0: none. */
static uint32_t
last_of(const struct kve_step *step, const struct kve_hit *hit)
{
    for (uint32_t p = step->pos + step->n; p > step->pos;) {
        uint32_t w = (p - 1) / 64;
        uint64_t word = kve_rec_word(step->run, hit->rec, hit->scope, w);

        if (p - w * 64 < 64)
            word &= (UINT64_C(1) << (p - w * 64)) - 1;
        if (word != 0) {
            p = w * 64 + 64 - (uint32_t)__builtin_clzll(word);
            return p > step->pos ? p - step->pos : 0;
        }
        p = w * 64;
    }
    return 0;
}

/* Behind which token the last block ends that counts. */
static uint64_t
last_held(const struct explain *x)
{
    const kve_index_reader *reader = x->ask.reader;
    uint64_t last = 0;

    if (x->ask.kind == KVE_ASK_HASHES)
        return kve_hashes_last(&x->ask, x->tiers);
    for (uint32_t i = x->row->first_hit; i != KVE_NONE;
         i = reader->hits[i].next) {
        const struct kve_hit *hit = &reader->hits[i];
        const struct kve_step *step = &reader->steps[hit->step];
        uint32_t n;

        if (hit->tier >= KVE_TIERS || (x->tiers >> hit->tier & 1) == 0 ||
            !group_counts(x, hit->group))
            continue;
        n = last_of(step, hit);
        if (n > 0 && step->start + n * (uint64_t)step->size > last)
            last = step->start + n * (uint64_t)step->size;
    }
    return last;
}

/* ---- groups ---- */

static uint64_t
multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a;
    uint64_t y = b;

    while (y != 0) {
        uint64_t rest = x % y;

        x = y;
        y = rest;
    }
    return a / x * b;
}

/* What suits the sizes of all groups, when that is within the prompt. */
static uint64_t
suiting(const struct explain *x, const struct kve_hunt *h)
{
    uint64_t suits = 1;

    for (uint32_t i = 0; i < h->n_needs; i++)
        if (h->needs[i].size > 0 && suits <= x->ask.limit)
            suits = multiple(suits, h->needs[i].size);
    return suits;
}

/* Does full attention go further than the match? Then, which group is it that
 * does not? */
static void
judge_groups(struct explain *x, const struct kve_hunt *h, uint64_t step)
{
    uint64_t end = h->last < x->ask.limit ? h->last : x->ask.limit;
    uint64_t full = 0;

    for (uint32_t i = 0; i < h->n_needs; i++) {
        uint64_t to = kve_hunt_full(h, &h->needs[i], end, step);

        full = to > full ? to : full;
    }
    if (full <= x->ended.at)
        return;
    for (uint32_t i = 0; i < h->n_needs; i++) {
        struct kve_inst *inst =
            atomic_load_explicit(&x->row->slot->inst, memory_order_acquire);
        const struct kve_groups *groups = inst == NULL
            ? NULL
            : atomic_load_explicit(&inst->groups, memory_order_acquire);

        /* They may be those of another life, which has fewer. */
        if (groups == NULL ||
            h->needs[i].group >=
                atomic_load_explicit(&groups->n, memory_order_acquire) ||
            kve_hunt_enough(h, &h->needs[i], full))
            continue;
        x->ended.why = KVE_ENDED_GROUP;
        x->ended.other = (uint32_t)full;
        x->ended.group =
            (struct kve_int){ groups->info[h->needs[i].group].group, true };
        return;
    }
}

static enum kve_walk
look_at_groups(struct explain *x)
{
    struct kve_hunt h;
    uint64_t step;
    enum kve_walk walk;

    x->suits = 1;
    if (x->ask.kind == KVE_ASK_HASHES ||
        kve_number_fn_of(x->row) == kve_number_plain)
        return KVE_WALK_DONE;
    walk = kve_hunt_begin(&h, &x->ask, x->row, x->tiers, &step);
    if (walk != KVE_WALK_DONE)
        return walk;
    x->suits = suiting(x, &h);
    if (step > 0)
        judge_groups(x, &h, step);
    return KVE_WALK_DONE;
}

/* ---- others ---- */

/* Somebody else holds block p of a run. */
static bool
others_hold(const struct explain *x, const struct kve_step *step, uint32_t p)
{
    const struct kve_run *run = step->run;
    uint32_t n = atomic_load_explicit(&run->n_recs, memory_order_acquire);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t scope = KVE_HOT_SCOPE(
            atomic_load_explicit(&run->hot[i], memory_order_acquire));
        uint64_t view = scope == 0 ? 0 : kve_view_of(x->ask.space, scope);

        if (view == 0 || KVE_VIEW_TIER(view) >= KVE_TIERS ||
            (x->row != NULL && KVE_VIEW_SLOT(view) == x->row->number) ||
            (x->ask.kind == KVE_ASK_HASHES &&
                atomic_load_explicit(&kve_run_recs(run)[i].vec,
                    memory_order_relaxed) != step->vec))
            continue;
        if ((kve_rec_word(run, i, scope, p / 64) >> (p % 64) & 1) != 0)
            return true;
    }
    return false;
}

/* Somebody else holds a block that begins at this token (this hash). */
static bool
others_go_on(const struct explain *x, uint32_t at)
{
    const kve_index_reader *reader = x->ask.reader;

    for (size_t i = 0; i < reader->n_steps; i++) {
        const struct kve_step *step = &reader->steps[i];
        uint32_t k;

        if (at < step->start || (at - step->start) % step->size != 0)
            continue;
        k = (at - step->start) / step->size;
        if (k < step->n && others_hold(x, step, step->pos + k))
            return true;
    }
    return false;
}

/* How far it goes at the best of the other roots. */
static enum kve_walk
at_other_roots(struct explain *x, uint32_t *ret)
{
    const struct kve_space *space = x->ask.space;
    const struct kve_root *root = x->ask.root;
    uint32_t top = atomic_load_explicit(&space->top_root, memory_order_acquire);
    enum kve_walk walk = KVE_WALK_DONE;

    *ret = 0;
    if (top > ROOTS_MOST + 1)
        return KVE_WALK_DONE;
    for (uint32_t id = 1; id < top && walk == KVE_WALK_DONE; id++) {
        const struct kve_root *other = kve_dir_get(&space->roots, id);
        struct kve_numbers n;

        if (other == NULL || other == root)
            continue;
        x->ask.root = other;
        walk = gather(x);
        if (walk == KVE_WALK_DONE)
            walk = numbers(x, &n);
        if (walk == KVE_WALK_DONE && kve_numbers_longest(&n) > *ret)
            *ret = kve_numbers_longest(&n);
    }
    x->ask.root = root;
    return walk;
}

/* The next block is missing, and nothing of its own is behind it: nobody's, or
 * others', or is the content elsewhere? */
static enum kve_walk
look_around(struct explain *x)
{
    uint32_t other = 0;
    enum kve_walk walk = KVE_WALK_DONE;

    x->ended.why = others_go_on(x, x->ended.at) ? KVE_ENDED_NOT_HELD
                                                : KVE_ENDED_NOT_STORED;
    if (x->ask.kind == KVE_ASK_TOKENS ||
        (x->ask.kind == KVE_ASK_CONTENTS && x->ask.block_size > 0))
        walk = at_other_roots(x, &other);
    if (walk == KVE_WALK_DONE && other > x->ended.at) {
        x->ended.why = KVE_ENDED_OTHER_ROOT;
        x->ended.other = other;
    }
    return walk;
}

/* ---- the reason ---- */

/* Is there no room for another block? */
static bool
is_prompt_end(const struct explain *x)
{
    uint64_t next = x->least > x->suits ? x->least : x->suits;

    return x->least > 0 ? x->ended.at + next > x->ask.limit
                        : x->ended.at >= x->ask.limit;
}

static enum kve_walk
find_reason(struct explain *x)
{
    uint32_t all = 0;
    uint64_t last;
    enum kve_walk walk = look_at_groups(x);

    if (walk != KVE_WALK_DONE)
        return walk;
    if (is_prompt_end(x)) {
        x->ended.why = KVE_ENDED_PROMPT_END;
        x->ended.other = 0;
        x->ended.group = (struct kve_int){ 0, false };
        return KVE_WALK_DONE;
    }
    walk = with_all_tiers(x, &all);
    if (walk != KVE_WALK_DONE)
        return walk;
    if (all > x->ended.at) {
        x->ended.why = KVE_ENDED_OTHER_TIER;
        x->ended.other = all;
        x->ended.group = (struct kve_int){ 0, false };
        return KVE_WALK_DONE;
    }
    if (x->ended.why == KVE_ENDED_GROUP)
        return KVE_WALK_DONE;
    last = last_held(x);
    if (last > x->ended.at) {
        x->ended.why = KVE_ENDED_HOLE;
        x->ended.other = last > UINT32_MAX ? UINT32_MAX : (uint32_t)last;
        return KVE_WALK_DONE;
    }
    return look_around(x);
}

/* The smallest block size that a match of this question can go on with. */
static void
find_least(struct explain *x)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    size_t n = kve_space_sizes(x->ask.space, sizes);

    x->least = x->ask.block_size;
    if (x->ask.kind != KVE_ASK_TOKENS)
        return;
    for (size_t i = 0; i < n; i++)
        if (x->least == 0 || sizes[i] < x->least)
            x->least = sizes[i];
}

/* Root, sizes and limit. Engine hashes are counted first, as blocks of one
 * token; their size is put to it at the end. */
static enum kve_walk
frame(struct explain *x)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    struct kve_ask *ask = &x->ask;
    enum kve_walk walk;

    if (ask->kind == KVE_ASK_HASHES) {
        ask->block_size = 1;
        ask->limit = kve_query_limit(ask, 1);
        ask->thorough = true;
        return KVE_WALK_DONE;
    }
    walk = kve_query_frame(ask);
    if (walk != KVE_WALK_DONE || ask->root != NULL)
        return walk;
    /* Nothing is stored under this adapter and salt; elsewhere it may be. */
    if (ask->kind == KVE_ASK_CONTENTS && ask->block_size == 0 &&
        kve_space_sizes(ask->space, sizes) == 1)
        ask->block_size = sizes[0];
    ask->limit =
        kve_query_limit(ask, ask->kind == KVE_ASK_TOKENS ? 1 : ask->block_size);
    return KVE_WALK_DONE;
}

/* The row of the instance, with its stamp; NULL in x: it is not there. */
static bool
take_row(struct explain *x)
{
    struct kve_ask *ask = &x->ask;
    uint32_t slot = (uint32_t)x->only - 1;
    bool nomem = false;

    x->row = NULL;
    if (!kve_reader_begin(ask->reader) || !kve_ask_want(ask))
        return false;
    if ((uint32_t)x->only == 0 || slot >= ask->index->opts.max_instances ||
        atomic_load_explicit(&ask->index->slot_chunks[slot / KVE_SLOT_CHUNK],
            memory_order_acquire) == NULL ||
        atomic_load_explicit(&kve_slot_at(ask->index, slot)->space,
            memory_order_acquire) != ask->space)
        return true;
    x->row =
        kve_ask_row(ask, kve_view_make(slot, 0, 0), true, KVE_ROW_LONG, &nomem);
    if (x->row == NULL)
        return !nomem;
    x->row->stamp = kve_stamp_read(x->row->slot);
    if (atomic_load_explicit(&x->row->slot->handle, memory_order_acquire) !=
        x->only)
        x->row = NULL;
    return true;
}

/* One try. KVE_WALK_AGAIN: it changed meanwhile; ended says what was seen. */
static enum kve_walk
look_once(struct explain *x)
{
    struct kve_ask *ask = &x->ask;
    uint32_t gone = kve_gone_read(ask->space);
    struct kve_numbers n = { { 0 }, { 0 } };
    enum kve_walk walk;

    if (!take_row(x))
        return KVE_WALK_NOMEM;
    x->ended = (struct kve_index_ended)KVE_INDEX_ENDED_INIT;
    x->ended.why = KVE_ENDED_NOTHING;
    if (x->row == NULL)
        return KVE_WALK_DONE;
    walk = frame(x);
    find_least(x);
    if (walk == KVE_WALK_DONE && ask->kind != KVE_ASK_HASHES &&
        (ask->root == NULL || x->least == 0)) {
        ask->reader->n_steps = 0;
    } else if (walk == KVE_WALK_DONE) {
        walk = gather(x);
        if (walk == KVE_WALK_DONE)
            walk = numbers(x, &n);
    }
    if (walk != KVE_WALK_DONE)
        return walk;
    x->ended.at = kve_numbers_longest(&n);
    x->tiers = tiers_of(x, &n);
    walk = find_reason(x);
    KVE_READER_TURN();
    if (walk == KVE_WALK_DONE &&
        (!kve_stamp_stays(x->row->slot, x->row->stamp) ||
            !kve_gone_stays(ask->space, gone)))
        walk = KVE_WALK_AGAIN;
    return walk;
}

static uint32_t
times(uint32_t n, uint32_t size)
{
    uint64_t tokens = (uint64_t)n * size;

    return tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)tokens;
}

/* Hashes are worth tokens. */
static enum kve_walk
weigh(struct explain *x)
{
    uint32_t sizes[KVE_SPACE_SIZES];
    uint32_t size = x->query.block_size;

    if (x->ask.kind != KVE_ASK_HASHES)
        return KVE_WALK_DONE;
    if (size == 0) {
        if (kve_space_sizes(x->ask.space, sizes) == 1)
            size = sizes[0];
        else if (x->ended.at > 0)
            return KVE_WALK_SIZES;
    }
    x->ended.at = times(x->ended.at, size);
    x->ended.other = times(x->ended.other, size);
    return KVE_WALK_DONE;
}

static enum kve_walk
look(struct explain *x)
{
    enum kve_walk walk = KVE_WALK_AGAIN;
    uint32_t smallest = UINT32_MAX;

    for (unsigned try = 0; try < KVE_WALKS && walk == KVE_WALK_AGAIN; try++) {
        if (try > 0)
            kve_reader_pause(try);
        walk = look_once(x);
        if (walk == KVE_WALK_AGAIN && x->ended.at < smallest)
            smallest = x->ended.at;
    }
    if (walk != KVE_WALK_AGAIN)
        return walk;
    x->ended = (struct kve_index_ended)KVE_INDEX_ENDED_INIT;
    x->ended.why = KVE_ENDED_MOVING;
    x->ended.at = smallest;
    return KVE_WALK_DONE;
}

/* ---- the public calls ---- */

const char *
kve_ended_str(unsigned why)
{
    switch (why) {
#define X(name, number, text, help) \
    case KVE_ENDED_##name:          \
        return text;
        KVE_ENDED_MAP(X)
#undef X
    }
    return "?";
}

/* It holds nothing now, or is not there. The lock of its namespace is taken for
 * this: whatever readers see of an instance does not say so. */
static bool
is_empty(const kve_index *index, kve_namespace ns, kve_instance instance)
{
    struct kve_index_instance info;

    if (kve_index_get_instance(index, instance, &info) != KVE_OK ||
        info.ns != ns)
        return true;
    for (unsigned t = 0; t < KVE_TIERS; t++)
        if (info.blocks[t] > 0)
            return false;
    return true;
}

kve_status
kve_index_explain(kve_index_reader *reader, const struct kve_index_query *query,
    kve_instance instance, struct kve_index_ended *ret, struct kve_error *err)
{
    struct explain x = { .only = instance };
    enum kve_walk walk;
    kve_status status = kve_opts_read(query, sizeof(*query), &x.query,
        sizeof(x.query), "kve_index_query", err);

    if (status != KVE_OK)
        return status;
    x.query.only = &x.only;
    x.query.n_only = 1;
    status = kve_query_begin(reader, &x.query, &x.ask, err);
    if (status != KVE_OK)
        return status;
    if (is_empty(reader->index, x.query.ns, instance)) {
        *ret = (struct kve_index_ended)KVE_INDEX_ENDED_INIT;
        ret->why = KVE_ENDED_NOTHING;
        return KVE_OK;
    }
    kve_epoch_enter(&reader->index->mem, reader->epoch);
    walk = look(&x);
    if (walk == KVE_WALK_DONE)
        walk = weigh(&x);
    kve_epoch_leave(reader->epoch);
    status = kve_query_status(&x.ask, walk, err);
    if (status == KVE_OK)
        *ret = x.ended;
    return status;
}
