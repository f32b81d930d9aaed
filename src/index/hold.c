/*
 * hold.c - copies of blocks: who holds what of a run.
 *
 * Most records hold the first lead blocks of their run, each once: one word,
 * and adding a few blocks behind it is one store. An aux object is there only
 * while something is held beyond a hole or more than once; its bits are exact
 * then, also below lead.
 */
#include "index/writer.h"

#include <string.h>

#define WORDS(n) (((n) + 63) / 64)

/* ---- aux objects ---- */

static size_t
aux_size(uint32_t n, uint32_t width)
{
    return sizeof(struct kve_aux) + WORDS(n) * sizeof(uint64_t) +
        (size_t)n * width;
}

struct kve_aux *
kve_aux_create(
    struct kve_space *space, uint32_t run, uint32_t n, uint32_t width)
{
    struct kve_aux *aux;

    n = WORDS(n) * 64;
    aux = kve_pool_alloc(space->pool, aux_size(n, width));
    if (aux == NULL)
        return NULL;
    memset(aux, 0, aux_size(n, width));
    aux->obj.kind = KVE_OBJ_AUX;
    aux->obj.id = run;
    aux->n = n;
    aux->width = width;
    return aux;
}

static void *
counts_of(const struct kve_aux *aux)
{
    return (void *)(uintptr_t)&aux->bits[aux->n / 64];
}

/* Readers look at counts, too. */
uint32_t
kve_aux_count(const struct kve_aux *aux, uint32_t p)
{
    switch (aux->width) {
    case 1:
        return __atomic_load_n(
            &((const uint8_t *)counts_of(aux))[p], __ATOMIC_RELAXED);
    case 2:
        return __atomic_load_n(
            &((const uint16_t *)counts_of(aux))[p], __ATOMIC_RELAXED);
    case 4:
        return __atomic_load_n(
            &((const uint32_t *)counts_of(aux))[p], __ATOMIC_RELAXED);
    default:
        return 1;
    }
}

void
kve_aux_count_set(struct kve_aux *aux, uint32_t p, uint32_t count)
{
    switch (aux->width) {
    case 1:
        __atomic_store_n(
            &((uint8_t *)counts_of(aux))[p], (uint8_t)count, __ATOMIC_RELAXED);
        break;
    case 2:
        __atomic_store_n(&((uint16_t *)counts_of(aux))[p], (uint16_t)count,
            __ATOMIC_RELAXED);
        break;
    case 4:
        __atomic_store_n(
            &((uint32_t *)counts_of(aux))[p], count, __ATOMIC_RELAXED);
        break;
    default:
        break;
    }
}

static uint32_t
width_for(uint32_t count)
{
    return count <= UINT8_MAX ? 1 : count <= UINT16_MAX ? 2 : 4;
}

static uint32_t
width_max(uint32_t width)
{
    return width == 0 ? 1
        : width == 1  ? UINT8_MAX
        : width == 2  ? UINT16_MAX
                      : UINT32_MAX;
}

/* ---- looking ---- */

static uint32_t
lead_of(const struct kve_run *run, uint32_t rec)
{
    return KVE_HOT_LEAD(kve_run_hot(run, rec));
}

static struct kve_scope *
scope_of(const struct kve_space *space, const struct kve_run *run, uint32_t rec)
{
    return kve_dir_get(&space->scopes, KVE_HOT_SCOPE(kve_run_hot(run, rec)));
}

uint64_t
kve_hold_word(const struct kve_run *run, uint32_t rec, uint32_t w)
{
    const struct kve_aux *aux = kve_run_aux(run, rec);
    uint32_t lead = lead_of(run, rec);

    if (aux != NULL)
        return w < aux->n / 64
            ? atomic_load_explicit(&aux->bits[w], memory_order_relaxed)
            : 0;
    if (lead >= (w + 1) * 64)
        return UINT64_MAX;
    return lead <= w * 64 ? 0 : (UINT64_C(1) << (lead - w * 64)) - 1;
}

uint32_t
kve_hold_copies(const struct kve_run *run, uint32_t rec, uint32_t p)
{
    const struct kve_aux *aux = kve_run_aux(run, rec);

    if (!kve_rec_holds(run, rec, p))
        return 0;
    return aux == NULL ? 1 : kve_aux_count(aux, p);
}

uint32_t
kve_hold_end(const struct kve_run *run, uint32_t rec)
{
    const struct kve_aux *aux = kve_run_aux(run, rec);

    if (aux == NULL)
        return lead_of(run, rec);
    for (uint32_t w = aux->n / 64; w-- > 0;) {
        uint64_t bits =
            atomic_load_explicit(&aux->bits[w], memory_order_relaxed);

        if (bits != 0)
            return w * 64 + 64 - (uint32_t)__builtin_clzll(bits);
    }
    return 0;
}

bool
kve_hold_any(const struct kve_run *run, uint32_t vec, uint32_t p)
{
    const struct kve_vec *v = &kve_run_vecs(run)[vec];
    uint32_t n = kve_run_n_recs(run);

    if (v->refs != NULL)
        return p < v->refs->n && kve_aux_count(v->refs, p) > 0;
    for (uint32_t i = 0; i < n; i++)
        if (kve_run_hot(run, i) != 0 && kve_run_recs(run)[i].vec == vec)
            return kve_rec_holds(run, i, p);
    return false;
}

uint32_t
kve_hold_mask(const struct kve_run *run, uint32_t vec, uint32_t g, uint32_t of)
{
    uint32_t first = g * KVE_GRANULE - kve_run_vecs(run)[vec].phase;
    uint32_t mask = 0;

    for (uint32_t left = of; left != 0; left &= left - 1) {
        uint32_t s = (uint32_t)__builtin_ctz(left);

        if (kve_hold_any(run, vec, first + s))
            mask |= 1u << s;
    }
    return mask;
}

/* ---- room for a change ---- */

/* The record's aux with at least this room, exact; NULL: no memory. */
static struct kve_aux *
aux_reserve(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t n, uint32_t width)
{
    struct kve_aux *old = kve_run_aux(run, rec);
    struct kve_aux *aux;
    uint32_t old_n = old != NULL ? old->n : 0;

    if (old != NULL && old->width > width)
        width = old->width;
    if (old != NULL && old->n >= n && old->width == width)
        return old;
    if (n < run->cap)
        n = run->cap;
    aux = kve_aux_create(space, run->obj.id, n > old_n ? n : old_n, width);
    if (aux == NULL)
        return NULL;
    for (uint32_t w = 0; w < aux->n / 64; w++)
        atomic_store_explicit(
            &aux->bits[w], kve_hold_word(run, rec, w), memory_order_relaxed);
    if (width == 1 && old == NULL) {
        memset(counts_of(aux), 1, lead_of(run, rec));
    } else if (width > 0) {
        uint32_t end = kve_hold_end(run, rec);

        for (uint32_t p = 0; p < end; p++)
            kve_aux_count_set(aux, p, kve_hold_copies(run, rec, p));
    }
    aux->many = old != NULL ? old->many : 0;
    atomic_store_explicit(
        &kve_run_recs(run)[rec].aux, aux, memory_order_release);
    if (old != NULL)
        kve_pool_retire(space->pool, old);
    return aux;
}

/* refs of a vector cover its blocks up to n. */
static bool
refs_reserve(struct kve_space *space, struct kve_run *run, struct kve_vec *vec,
    uint32_t n)
{
    struct kve_aux *old = vec->refs;
    struct kve_aux *refs;

    if (old == NULL || old->n >= n)
        return true;
    refs = kve_aux_create(
        space, run->obj.id, n > run->cap ? n : run->cap, old->width);
    if (refs == NULL)
        return false;
    memcpy(counts_of(refs), counts_of(old), (size_t)old->n * old->width);
    vec->refs = refs;
    kve_pool_free(space->pool, old);
    return true;
}

static void
refs_change(struct kve_run *run, uint32_t rec, uint32_t p, uint32_t k, int by)
{
    uint32_t v = kve_run_recs(run)[rec].vec;
    struct kve_aux *refs = v == KVE_NO_VEC ? NULL : kve_run_vecs(run)[v].refs;
    uint16_t *counts;

    if (refs == NULL)
        return;
    counts = (uint16_t *)counts_of(refs) + p;
    for (uint32_t i = 0; i < k; i++)
        counts[i] = (uint16_t)(counts[i] + by);
}

/* ---- adding ---- */

static void
count_held(struct kve_scope *scope, struct kve_run *run, uint32_t rec,
    uint32_t blocks, uint64_t copies)
{
    kve_run_recs(run)[rec].held += blocks;
    scope->inst->changes++;
    if (scope->tier == KVE_TIER_BRIDGE)
        return;
    scope->held += blocks;
    scope->copies += copies;
    if ((run->flags & KVE_RUN_WAITING) != 0)
        scope->waiting += blocks;
    if ((run->flags & KVE_RUN_LOOSE) != 0)
        scope->loose += blocks;
}

static void
uncount_held(struct kve_scope *scope, struct kve_run *run, uint32_t rec,
    uint32_t blocks, uint64_t copies)
{
    kve_run_recs(run)[rec].held -= blocks;
    scope->inst->changes++;
    if (scope->tier == KVE_TIER_BRIDGE)
        return;
    scope->held -= blocks;
    scope->copies -= copies;
    if ((run->flags & KVE_RUN_WAITING) != 0)
        scope->waiting -= blocks;
    if ((run->flags & KVE_RUN_LOOSE) != 0)
        scope->loose -= blocks;
}

/* Blocks that follow those held without a hole, once each. */
static void
extend(struct kve_run *run, uint32_t rec, struct kve_scope *scope, uint32_t k)
{
    uint64_t hot = kve_run_hot(run, rec);

    refs_change(run, rec, KVE_HOT_LEAD(hot), k, 1);
    count_held(scope, run, rec, k, k);
    kve_stamp_begin(scope->inst);
    atomic_store_explicit(&run->hot[rec], hot + k, memory_order_release);
    kve_stamp_end(scope->inst);
}

/* The lead after bits were set. */
static uint32_t
lead_from(const struct kve_aux *aux, uint32_t lead)
{
    while (lead < aux->n) {
        uint64_t missing = ~(
            atomic_load_explicit(&aux->bits[lead / 64], memory_order_relaxed) >>
            (lead % 64));
        uint32_t run = missing == 0 ? 64 : (uint32_t)__builtin_ctzll(missing);

        run = run < 64 - lead % 64 ? run : 64 - lead % 64;
        lead += run;
        if (lead % 64 != 0 || run == 0)
            break;
    }
    return lead;
}

/* Copies of blocks that are all held. Their counts have room. */
static void
count_more(struct kve_aux *aux, uint32_t p, uint32_t k, uint32_t copies)
{
    if (aux->width == 1) {
        uint8_t *counts = (uint8_t *)counts_of(aux) + p;
        uint32_t ones = 0;

        for (uint32_t i = 0; i < k; i++) {
            ones += counts[i] == 1;
            __atomic_store_n(
                &counts[i], (uint8_t)(counts[i] + copies), __ATOMIC_RELAXED);
        }
        aux->many += ones;
        return;
    }
    for (uint32_t i = p; i < p + k; i++) {
        uint32_t count = kve_aux_count(aux, i);

        aux->many += count == 1;
        kve_aux_count_set(aux, i, count + copies);
    }
}

/* The largest count that k blocks would have. */
static uint32_t
most_copies(const struct kve_aux *aux, uint32_t p, uint32_t k, uint32_t copies)
{
    uint32_t most = 0;

    if (aux == NULL || aux->width == 0)
        return copies + 1;
    for (uint32_t i = p; i < p + k && i < aux->n; i++) {
        uint32_t count = kve_aux_count(aux, i);

        most = count > most ? count : most;
    }
    return most > UINT32_MAX - copies ? UINT32_MAX : most + copies;
}

/* Any other case: some held, some not, holes. */
static bool
add_mixed(struct kve_space *space, struct kve_run *run, uint32_t rec,
    struct kve_scope *scope, uint32_t p, uint32_t k, uint32_t copies)
{
    bool counts = scope->inst->counts || scope->tier == KVE_TIER_BRIDGE;
    uint32_t most =
        counts ? most_copies(kve_run_aux(run, rec), p, k, copies) : 1;
    uint32_t width = 0;
    uint32_t added = 0;
    struct kve_aux *aux;
    uint32_t lead = lead_of(run, rec);
    uint64_t hot;

    for (uint32_t i = p; counts && i < p + k && width == 0; i++)
        if (copies > 1 || kve_rec_holds(run, rec, i))
            width = width_for(most);
    if (kve_run_aux(run, rec) != NULL && kve_run_aux(run, rec)->width > 0)
        width = width_for(most);
    aux = aux_reserve(space, run, rec, p + k, width);
    if (aux == NULL)
        return false;
    kve_stamp_begin(scope->inst);
    for (uint32_t i = p; i < p + k; i++) {
        _Atomic uint64_t *word = &aux->bits[i / 64];
        uint64_t bits = atomic_load_explicit(word, memory_order_relaxed);
        uint64_t bit = UINT64_C(1) << (i % 64);

        if ((bits & bit) != 0) {
            if (counts)
                count_more(aux, i, 1, copies);
            continue;
        }
        atomic_store_explicit(word, bits | bit, memory_order_release);
        kve_aux_count_set(aux, i, copies);
        aux->many += copies > 1;
        refs_change(run, rec, i, 1, 1);
        added++;
    }
    hot = kve_run_hot(run, rec);
    atomic_store_explicit(&run->hot[rec],
        KVE_HOT(KVE_HOT_SCOPE(hot), lead_from(aux, lead)),
        memory_order_release);
    kve_stamp_end(scope->inst);
    count_held(scope, run, rec, added, counts ? (uint64_t)k * copies : added);
    if (!counts && added < k)
        kve_index_count(scope->inst, KVE_COUNTER_INDEX_REPEATS, k - added);
    return true;
}

bool
kve_hold_add(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t p, uint32_t k, uint32_t copies)
{
    struct kve_scope *scope = scope_of(space, run, rec);
    struct kve_aux *aux = kve_run_aux(run, rec);
    uint32_t v = kve_run_recs(run)[rec].vec;
    uint32_t lead = lead_of(run, rec);
    bool counts = scope->inst->counts || scope->tier == KVE_TIER_BRIDGE;

    if (!counts)
        copies = 1;
    if (v != KVE_NO_VEC &&
        !refs_reserve(space, run, &kve_run_vecs(run)[v], p + k))
        return false;
    if (aux == NULL && copies == 1) {
        uint32_t known = 0;

        if (!counts && p < lead)
            known = lead - p < k ? lead - p : k;
        if (p + known == lead || known == k) {
            if (known > 0)
                kve_index_count(scope->inst, KVE_COUNTER_INDEX_REPEATS, known);
            if (known < k)
                extend(run, rec, scope, k - known);
            return true;
        }
    } else if (counts && aux != NULL && aux->width > 0 && p + k <= lead &&
        most_copies(aux, p, k, copies) <= width_max(aux->width)) {
        /* The usual case of counted copies: no reader sees any of it. */
        count_more(aux, p, k, copies);
        scope->copies += (uint64_t)k * copies;
        scope->inst->changes++;
        return true;
    }
    return add_mixed(space, run, rec, scope, p, k, copies);
}

/* ---- removing ---- */

static void
now_dead(struct kve_space *space, struct kve_run *run, uint32_t vec, uint32_t p)
{
    uint32_t block;

    if (vec == KVE_NO_VEC || kve_hold_any(run, vec, p))
        return;
    block = kve_run_block(run, vec, p);
    if (block != KVE_NO_BLOCK &&
        !kve_marks_add_block(&space->apply->dead, block))
        kve_name_kill(space, run, vec, p);
}

static void
now_lost(struct kve_space *space, struct kve_run *run, struct kve_scope *scope,
    uint32_t vec, uint32_t p)
{
    struct kve_apply *apply = space->apply;

    if (vec != KVE_NO_VEC && apply->inst == scope->inst)
        kve_marks_add_block(&apply->lost, kve_run_block(run, vec, p));
}

/* Whether the aux says more than lead does. */
static void
aux_release(struct kve_space *space, struct kve_run *run, uint32_t rec)
{
    struct kve_rec *r = &kve_run_recs(run)[rec];
    struct kve_aux *aux = kve_run_aux(run, rec);

    if (aux == NULL || aux->many > 0 || r->held != lead_of(run, rec))
        return;
    atomic_store_explicit(&r->aux, NULL, memory_order_release);
    kve_pool_retire(space->pool, aux);
}

/* The life may have lost a block that it stored over a skipped part. */
static void
bridge_check(
    struct kve_run *run, struct kve_scope *scope, uint32_t vec, uint32_t p)
{
    struct kve_place place = { run, vec, p };

    if (vec != KVE_NO_VEC && scope->inst->bridges != NULL &&
        !kve_holds(scope->inst, &place))
        kve_bridge_gone(scope->inst, &place);
}

/* Blocks from p to the record's end go: there was no memory for a hole. */
static void
drop_behind(struct kve_space *space, struct kve_run *run, uint32_t rec,
    struct kve_scope *scope, uint32_t p)
{
    uint32_t vec = kve_run_recs(run)[rec].vec;
    uint64_t hot = kve_run_hot(run, rec);
    uint32_t lead = KVE_HOT_LEAD(hot);

    refs_change(run, rec, p, lead - p, -1);
    uncount_held(scope, run, rec, lead - p, lead - p);
    kve_stamp_begin(scope->inst);
    atomic_store_explicit(
        &run->hot[rec], KVE_HOT(KVE_HOT_SCOPE(hot), p), memory_order_release);
    kve_stamp_end(scope->inst);
    kve_index_count(scope->inst, KVE_COUNTER_INDEX_EVICTED, lead - p - 1);
    for (uint32_t i = p; i < lead; i++) {
        bridge_check(run, scope, vec, i);
        now_dead(space, run, vec, i);
    }
}

static void
take_away(
    struct kve_space *space, struct kve_run *run, uint32_t rec, uint32_t p)
{
    struct kve_scope *scope = scope_of(space, run, rec);
    uint32_t vec = kve_run_recs(run)[rec].vec;
    uint64_t hot = kve_run_hot(run, rec);
    uint32_t lead = KVE_HOT_LEAD(hot);
    struct kve_aux *aux = kve_run_aux(run, rec);
    uint32_t copies = kve_hold_copies(run, rec, p);

    now_lost(space, run, scope, vec, p);
    if (aux == NULL && p + 1 != lead &&
        (aux = aux_reserve(space, run, rec, lead, 0)) == NULL) {
        drop_behind(space, run, rec, scope, p);
        return;
    }
    refs_change(run, rec, p, 1, -1);
    uncount_held(scope, run, rec, 1, copies);
    kve_stamp_begin(scope->inst);
    if (aux != NULL) {
        _Atomic uint64_t *word = &aux->bits[p / 64];

        atomic_store_explicit(word,
            atomic_load_explicit(word, memory_order_relaxed) &
                ~(UINT64_C(1) << (p % 64)),
            memory_order_release);
        aux->many -= copies > 1 && aux->width > 0;
        if (aux->width > 0)
            kve_aux_count_set(aux, p, 0);
    }
    if (p < lead)
        atomic_store_explicit(&run->hot[rec], KVE_HOT(KVE_HOT_SCOPE(hot), p),
            memory_order_release);
    kve_stamp_end(scope->inst);
    aux_release(space, run, rec);
    bridge_check(run, scope, vec, p);
    now_dead(space, run, vec, p);
}

/* Blocks lo..hi-1 of a vector, as marks of those that have an id. */
static void
mark_range(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t lo, uint32_t hi, bool lost)
{
    const uint8_t *live = kve_run_live(run, vec);
    _Atomic uint32_t *granules = kve_run_granules(run, vec);
    uint32_t at = lo + kve_run_vecs(run)[vec].phase;
    uint32_t end = hi + kve_run_vecs(run)[vec].phase;

    while (at < end) {
        uint32_t g = at / KVE_GRANULE;
        uint32_t s = at % KVE_GRANULE;
        uint32_t k = KVE_GRANULE - s < end - at ? KVE_GRANULE - s : end - at;
        uint32_t mask = (((1u << k) - 1) << s) & live[g];
        uint32_t granule =
            atomic_load_explicit(&granules[g], memory_order_relaxed);

        if (mask != 0 && lost)
            kve_marks_add(&space->apply->lost, granule, mask);
        else if (mask != 0 &&
            !kve_marks_add(&space->apply->dead, granule, mask))
            kve_name_kill_mask(space, run, vec, g, mask);
        at += k;
    }
}

/* The blocks of the range that nobody holds any more. */
static void
dead_range(struct kve_space *space, struct kve_run *run, uint32_t vec,
    uint32_t lo, uint32_t hi)
{
    const struct kve_aux *refs = kve_run_vecs(run)[vec].refs;
    const uint16_t *counts;

    if (refs == NULL) {
        mark_range(space, run, vec, lo, hi, false);
        return;
    }
    counts = counts_of(refs);
    while (lo < hi) {
        uint32_t end;

        while (lo < hi && counts[lo] != 0)
            lo++;
        for (end = lo; end < hi && counts[end] == 0;)
            end++;
        if (end > lo)
            mark_range(space, run, vec, lo, end, false);
        lo = end;
    }
}

/* A record without an aux that holds up to hi and now only up to lo. */
static void
cut_lead(struct kve_space *space, struct kve_run *run, uint32_t rec,
    struct kve_scope *scope, uint32_t lo, uint32_t hi)
{
    uint64_t hot = kve_run_hot(run, rec);
    uint32_t vec = kve_run_recs(run)[rec].vec;

    if (space->apply->inst == scope->inst)
        mark_range(space, run, vec, lo, hi, true);
    refs_change(run, rec, lo, hi - lo, -1);
    uncount_held(scope, run, rec, hi - lo, hi - lo);
    kve_stamp_begin(scope->inst);
    atomic_store_explicit(
        &run->hot[rec], hot - (hi - lo), memory_order_release);
    kve_stamp_end(scope->inst);
    dead_range(space, run, vec, lo, hi);
    if (kve_run_recs(run)[rec].held == 0)
        kve_ids_add(&space->apply->idle, run->obj.id);
}

/* All of the range have more copies than one. */
static bool
many_copies(const struct kve_aux *aux, uint32_t lo, uint32_t hi)
{
    if (aux == NULL || aux->width == 0)
        return false;
    for (uint32_t p = lo; p < hi; p++)
        if (kve_aux_count(aux, p) < 2)
            return false;
    return true;
}

/* One copy less of each; some are left of all. */
static void
count_less(struct kve_space *space, struct kve_run *run, uint32_t rec,
    struct kve_scope *scope, uint32_t lo, uint32_t hi)
{
    struct kve_aux *aux = kve_run_aux(run, rec);

    for (uint32_t p = lo; p < hi; p++) {
        uint32_t count = kve_aux_count(aux, p) - 1;

        kve_aux_count_set(aux, p, count);
        aux->many -= count == 1;
    }
    scope->copies -= hi - lo;
    scope->inst->changes++;
    aux_release(space, run, rec);
}

void
kve_hold_take(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t lo, uint32_t hi)
{
    struct kve_scope *scope = scope_of(space, run, rec);
    struct kve_aux *aux = kve_run_aux(run, rec);

    if (aux == NULL && hi == lead_of(run, rec) &&
        scope->inst->bridges == NULL) {
        cut_lead(space, run, rec, scope, lo, hi);
    } else if (scope->inst->counts && many_copies(aux, lo, hi)) {
        count_less(space, run, rec, scope, lo, hi);
    } else {
        for (uint32_t p = hi; p-- > lo;) {
            uint32_t copies = kve_hold_copies(run, rec, p);

            /* Without memory for a hole it may have gone already. */
            if (copies > 0)
                kve_hold_set(
                    space, run, rec, p, scope->inst->counts ? copies - 1 : 0);
        }
    }
}

/* Some copies stay. */
static void
set_count(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t p, uint32_t n)
{
    struct kve_scope *scope = scope_of(space, run, rec);
    uint32_t before = kve_hold_copies(run, rec, p);
    struct kve_aux *aux = kve_run_aux(run, rec);

    if (n == before)
        return;
    if (n > 1 || (aux != NULL && aux->width > 0)) {
        aux = aux_reserve(space, run, rec, p + 1, width_for(n));
        /* Without memory for more copies they are too few. */
        if (aux == NULL)
            return;
    }
    if (aux == NULL)
        return;
    aux->many += (uint32_t)(n > 1) - (uint32_t)(before > 1);
    kve_aux_count_set(aux, p, n);
    scope->copies += (uint64_t)n - before;
    scope->inst->changes++;
    aux_release(space, run, rec);
}

void
kve_hold_set(struct kve_space *space, struct kve_run *run, uint32_t rec,
    uint32_t p, uint32_t n)
{
    if (n > 0) {
        set_count(space, run, rec, p, n);
        return;
    }
    take_away(space, run, rec, p);
    if (kve_run_recs(run)[rec].held == 0)
        kve_ids_add(&space->apply->idle, run->obj.id);
}

/* ---- counts become a set ---- */

static void
fold_record(struct kve_space *space, struct kve_run *run, uint32_t rec)
{
    struct kve_aux *aux = kve_run_aux(run, rec);

    if (aux == NULL || aux->many == 0)
        return;
    for (uint32_t p = 0; p < aux->n; p++)
        if (kve_aux_count(aux, p) > 1)
            kve_aux_count_set(aux, p, 1);
    aux->many = 0;
    aux_release(space, run, rec);
}

void
kve_hold_fold(struct kve_inst *inst)
{
    struct kve_space *space = inst->space;

    for (uint32_t s = 0; s < inst->n_scopes; s++) {
        struct kve_scope *scope = inst->scopes[s];
        uint32_t id = scope->first_run;
        uint32_t rec = scope->first_rec;

        while (id != 0 && scope->tier != KVE_TIER_BRIDGE) {
            struct kve_run *run = kve_run_get(space, id);
            const struct kve_rec *r = &kve_run_recs(run)[rec];

            id = r->next_run;
            fold_record(space, run, rec);
            rec = r->next_rec;
        }
        if (scope->tier != KVE_TIER_BRIDGE)
            scope->copies = scope->held;
    }
}
