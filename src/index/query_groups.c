/*
 * query_groups.c - matches of instances that hold blocks in groups.
 *
 * A match is the largest end at which every group has what it needs: then it
 * only matters where blocks of a group end, one bit for each place where a
 * block can.
 */
#include "index/walk.h"

#include <string.h>

static uint64_t
gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

static bool
get_bit(const uint64_t *bits, uint64_t i)
{
    return (bits[i / 64] >> (i % 64) & 1) != 0;
}

/* The groups that count, as they are now: read once, as they may change while
 * they are looked at. KVE_WALK_AGAIN: there are none any more. */
static enum kve_walk
hunt_needs(struct kve_hunt *h, const struct kve_groups *groups)
{
    kve_index_reader *reader = h->ask->reader;
    uint32_t n = atomic_load_explicit(&groups->n, memory_order_acquire);

    if (!KVE_ROOM(reader, needs, cap_needs, n))
        return KVE_WALK_NOMEM;
    h->needs = reader->needs;
    for (uint32_t i = 0; i < n; i++) {
        const struct kve_group_info *info = &groups->info[i];
        struct kve_need need = {
            .need = atomic_load_explicit(&info->need, memory_order_acquire),
            .group = i,
            .size =
                atomic_load_explicit(&info->block_size, memory_order_acquire),
            .window = atomic_load_explicit(&info->window, memory_order_acquire)
        };

        if (need.need != KVE_NEED_NONE)
            h->needs[h->n_needs++] = need;
    }
    return h->n_needs > 0 ? KVE_WALK_DONE : KVE_WALK_AGAIN;
}

/* Room for the bitmaps, all clear. */
static bool
hunt_room(struct kve_hunt *h)
{
    kve_index_reader *reader = h->ask->reader;
    size_t n;

    h->words = h->last / h->unit / 64 + 1;
    n = h->words * (h->n_needs + (size_t)2);
    if (!KVE_ROOM(reader, words, cap_words, n))
        return false;
    memset(reader->words, 0, n * sizeof(*reader->words));
    h->any = reader->words;
    h->bridges = h->any + h->words;
    for (uint32_t i = 0; i < h->n_needs; i++)
        h->needs[i].ends = h->bridges + (i + 1) * h->words;
    return true;
}

/* Mark where the blocks of a record end. */
static void
mark_ends(const struct kve_hunt *h, const struct kve_hit *hit, uint64_t *ends)
{
    const struct kve_step *step = &h->ask->reader->steps[hit->step];

    for (uint32_t w = 0; w * 64 < step->n; w++) {
        uint64_t word = kve_rec_word(step->run, hit->rec, hit->scope, w);

        if (step->n - w * 64 < 64)
            word &= (UINT64_C(1) << (step->n - w * 64)) - 1;
        for (; word != 0; word &= word - 1) {
            uint32_t p = w * 64 + (uint32_t)__builtin_ctzll(word);
            uint64_t i =
                (step->start + (p + 1) * (uint64_t)step->size) / h->unit - 1;

            ends[i / 64] |= UINT64_C(1) << (i % 64);
        }
    }
}

static void
mark_hit(const struct kve_hunt *h, const struct kve_hit *hit)
{
    if (hit->tier == KVE_TIER_BRIDGE) {
        mark_ends(h, hit, h->bridges);
        return;
    }
    for (uint32_t i = 0; i < h->n_needs; i++)
        if (hit->group == KVE_NO_GROUP || hit->group == h->needs[i].group)
            mark_ends(h, hit, h->needs[i].ends);
}

/* The first of n blocks that a group needs; it needs all behind it, too. */
static uint64_t
first_needed(const struct kve_need *need, uint64_t n)
{
    uint64_t blocks;

    switch (need->need) {
    case KVE_NEED_WINDOW:
        blocks = need->window == 0
            ? n
            : (need->window - 1 + need->size - 1) / need->size;
        return blocks < n ? n - blocks : 0;
    case KVE_NEED_LAST:
        return n - 1;
    case KVE_NEED_CHUNK:
        return need->window == 0
            ? 0
            : n * need->size / need->window * need->window / need->size;
    default:
        return 0;
    }
}

/* Has the group what it needs for this end? Else *ret_hole is where a block
 * would have to end: no end from there on to this one will do. */
static bool
is_enough(const struct kve_hunt *h, const struct kve_need *need, uint64_t end,
    uint64_t *ret_hole)
{
    uint64_t n = end / need->size;
    uint64_t first = first_needed(need, n);

    for (uint64_t i = n; i > first; i--) {
        uint64_t at = i * need->size;
        uint64_t bit = at / h->unit - 1;

        if (get_bit(need->ends, bit) || (i < n && get_bit(h->bridges, bit)))
            continue;
        *ret_hole = at;
        return false;
    }
    return true;
}

/* Up to where groups that need everything have it: the hunt begins there, and
 * only looks at the last block from then on. */
static uint64_t
full_to(const struct kve_hunt *h, const struct kve_need *need, uint64_t end)
{
    uint64_t at = need->size;

    while (at <= end &&
        (get_bit(need->ends, at / h->unit - 1) ||
            get_bit(h->bridges, at / h->unit - 1)))
        at += need->size;
    return at - need->size;
}

static bool
needs_all(const struct kve_need *need)
{
    return need->need == KVE_NEED_ALL ||
        (need->window == 0 &&
            (need->need == KVE_NEED_WINDOW || need->need == KVE_NEED_CHUNK));
}

uint64_t
kve_hunt_full(const struct kve_hunt *h, const struct kve_need *need,
    uint64_t end, uint64_t step)
{
    if (!needs_all(need))
        return 0;
    end = full_to(h, need, end);
    end -= end % step;
    while (end > 0 && !get_bit(need->ends, end / h->unit - 1))
        end -= step;
    return end;
}

bool
kve_hunt_enough(
    const struct kve_hunt *h, const struct kve_need *need, uint64_t end)
{
    uint64_t hole;

    return is_enough(h, need, end, &hole);
}

/* Largest end up to end, a multiple of step, that suits every group. */
static uint32_t
hunt_down(const struct kve_hunt *h, uint64_t end, uint64_t step)
{
    end -= end % step;
    while (end > 0) {
        uint64_t hole = end;
        bool good = get_bit(h->any, end / h->unit - 1);

        for (uint32_t i = 0; good && i < h->n_needs; i++) {
            const struct kve_need *need = &h->needs[i];

            good = needs_all(need) ? get_bit(need->ends, end / h->unit - 1)
                                   : is_enough(h, need, end, &hole);
        }
        if (good)
            return (uint32_t)end;
        end = (hole - 1) / step * step;
    }
    return 0;
}

/* What the row holds in some tiers, as bits. */
static void
hunt_mark(const struct kve_hunt *h, const struct kve_row *row, uint32_t tiers)
{
    const kve_index_reader *reader = h->ask->reader;

    for (uint32_t i = row->first_hit; i != KVE_NONE; i = reader->hits[i].next) {
        const struct kve_hit *hit = &reader->hits[i];

        if (hit->tier == KVE_TIER_BRIDGE || (tiers >> hit->tier & 1) != 0)
            mark_hit(h, hit);
    }
    for (uint32_t i = 0; i < h->n_needs; i++)
        for (size_t w = 0; w < h->words; w++)
            h->any[w] |= h->needs[i].ends[w];
}

/* Unit of the bits, and the step between ends that suit all sizes; 0: no end
 * within the prompt does. */
static uint64_t
hunt_sizes(struct kve_hunt *h)
{
    const kve_index_reader *reader = h->ask->reader;
    uint64_t unit = 0;
    uint64_t step = 1;

    h->last = 0;
    for (size_t i = 0; i < reader->n_steps; i++) {
        const struct kve_step *s = &reader->steps[i];

        unit = gcd(s->size, unit);
        if (s->start + s->n * s->size > h->last)
            h->last = s->start + s->n * s->size;
    }
    for (uint32_t i = 0; i < h->n_needs; i++) {
        uint64_t size = h->needs[i].size;

        if (size == 0)
            return 0;
        unit = gcd(size, unit);
        step = step / gcd(step, size) * size;
        if (step > h->last)
            return 0;
    }
    h->unit = (uint32_t)unit;
    return step;
}

/* What the instance's life learnt of its groups, or NULL. */
static const struct kve_groups *
groups_of(const struct kve_row *row)
{
    struct kve_inst *inst =
        atomic_load_explicit(&row->slot->inst, memory_order_acquire);

    return inst == NULL
        ? NULL
        : atomic_load_explicit(&inst->groups, memory_order_acquire);
}

enum kve_walk
kve_hunt_begin(struct kve_hunt *h, struct kve_ask *ask,
    const struct kve_row *row, uint32_t tiers, uint64_t *ret_step)
{
    const struct kve_groups *groups = groups_of(row);
    enum kve_walk walk;

    *h = (struct kve_hunt){ .ask = ask };
    *ret_step = 0;
    if (groups == NULL)
        return KVE_WALK_DONE; /* they were just forgotten: the stamp says so */
    walk = hunt_needs(h, groups);
    if (walk != KVE_WALK_DONE)
        return walk == KVE_WALK_AGAIN ? KVE_WALK_DONE : walk;
    *ret_step = hunt_sizes(h);
    if (*ret_step == 0)
        return KVE_WALK_DONE;
    if (!hunt_room(h))
        return KVE_WALK_NOMEM;
    hunt_mark(h, row, tiers);
    return KVE_WALK_DONE;
}

/* Largest end within the prompt that suits every group. */
static enum kve_walk
number_groups(struct kve_ask *ask, struct kve_row *row, uint32_t tiers,
    uint32_t *ret_tokens)
{
    struct kve_hunt h;
    uint64_t step;
    uint64_t end;
    enum kve_walk walk = kve_hunt_begin(&h, ask, row, tiers, &step);

    *ret_tokens = 0;
    if (walk != KVE_WALK_DONE || step == 0)
        return walk;
    end = h.last < ask->limit ? h.last : ask->limit;
    for (uint32_t i = 0; i < h.n_needs; i++)
        if (needs_all(&h.needs[i]))
            end = full_to(&h, &h.needs[i], end);
    *ret_tokens = hunt_down(&h, end, step);
    return KVE_WALK_DONE;
}

/* Does any group count for this instance? */
static bool
has_groups(const struct kve_row *row)
{
    const struct kve_groups *groups = groups_of(row);
    uint32_t n = groups == NULL
        ? 0
        : atomic_load_explicit(&groups->n, memory_order_acquire);

    for (uint32_t i = 0; i < n; i++)
        if (atomic_load_explicit(&groups->info[i].need, memory_order_acquire) !=
            KVE_NEED_NONE)
            return true;
    return false;
}

kve_number_fn
kve_number_fn_of(const struct kve_row *row)
{
    return has_groups(row) ? number_groups : kve_number_plain;
}
