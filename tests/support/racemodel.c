/*
 * racemodel.c - see racemodel.h.
 */
#include "support/racemodel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE 4
#define EVENTS 3 /* a batch */

static uint64_t
mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

uint32_t
race_draw(struct race_dice *t, uint32_t below)
{
    t->random++;
    return (uint32_t)(mix(t->random) >> 32) % below;
}

/* The first problem is kept. */
static void KVE_PRINTF(2, 3) fail_race(struct race *race, const char *fmt, ...)
{
    va_list args;

    if (atomic_exchange(&race->failed, true))
        return;
    va_start(args, fmt);
    vsnprintf(race->problem, sizeof(race->problem), fmt, args);
    va_end(args);
}

static struct kve_hash
name_of(unsigned style, uint16_t block)
{
    return (struct kve_hash){ NULL, { mix(((uint64_t)style << 32) | block) } };
}

static uint64_t
content_of(uint16_t block)
{
    return mix(0x1000000u | block);
}

/* Prompt p is prompt (p - 1) / 2 up to a point, and its own from there on. */
static void
make_prompts(struct race *race)
{
    for (unsigned p = 0; p < RACE_PROMPTS; p++)
        for (unsigned i = 0; i < RACE_LENGTH; i++)
            race->prompts[p][i] = p > 0 && i < 3 * p
                ? race->prompts[(p - 1) / 2][i]
                : (uint16_t)(p * RACE_LENGTH + i);
}

/* ---- the writers ----------------------------------------------------- */

/* A batch while it is drawn. */
struct batch {
    struct kve_event events[EVENTS];
    struct kve_hash hashes[EVENTS][RACE_LENGTH];
    uint64_t contents[EVENTS * RACE_LENGTH];
    size_t n;
    size_t n_contents;
    struct race_instance *instance;
    uint32_t at; /* state that was written last */
};

/* Another state, a copy of the last. */
static struct race_state *
next_state(struct batch *b)
{
    struct race_state *history = b->instance->history;

    history[b->at + 1] = history[b->at];
    return &history[++b->at];
}

static bool
is_held(const struct race_state *state, uint16_t block)
{
    return state->copies[0][block] > 0 || state->copies[1][block] > 0;
}

static struct kve_event *
add_event(struct batch *b, uint8_t type, unsigned tier)
{
    struct kve_event *ev = &b->events[b->n];

    memset(ev, 0, sizeof(*ev));
    ev->type = type;
    ev->tier = tier == 0 ? KVE_TIER_GPU : KVE_TIER_CPU;
    if (tier != 0)
        ev->medium = (struct kve_str){ "CPU", 3 };
    ev->hashes = b->hashes[b->n++];
    return ev;
}

/* Blocks of a prompt behind one that is held, or from its begin on. */
static void
draw_store(struct race_dice *t, struct batch *b)
{
    const uint16_t *prompt = t->race->prompts[race_draw(t, RACE_PROMPTS)];
    const struct race_state *now = &b->instance->history[b->at];
    unsigned tier = b->instance->tiers ? race_draw(t, RACE_TIERS) : 0;
    uint32_t from = race_draw(t, RACE_LENGTH);
    uint32_t n;
    struct kve_event *ev;

    while (from > 0 && !is_held(now, prompt[from - 1]))
        from--;
    n = 1 + race_draw(t, RACE_LENGTH - from);
    ev = add_event(b, KVE_EVENT_STORED, tier);
    ev->block_size = BLOCK_SIZE;
    ev->n_hashes = n;
    ev->has_parent = from > 0;
    if (from > 0)
        ev->parent = name_of(b->instance->style, prompt[from - 1]);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t block = prompt[from + i];
        struct race_state *state = next_state(b);

        b->hashes[b->n - 1][i] = name_of(b->instance->style, block);
        b->contents[b->n_contents++] = content_of(block);
        state->copies[tier][block]++;
    }
}

/* Some blocks of a prompt: single ones, which leaves holes, or its end. */
static void
draw_removal(struct race_dice *t, struct batch *b)
{
    const uint16_t *prompt = t->race->prompts[race_draw(t, RACE_PROMPTS)];
    unsigned tier = b->instance->tiers ? race_draw(t, RACE_TIERS) : 0;
    uint32_t i = race_draw(t, RACE_LENGTH);
    bool whole = race_draw(t, 4) != 0;
    struct kve_event *ev = add_event(b, KVE_EVENT_REMOVED, tier);

    for (uint32_t at = RACE_LENGTH; at-- > i;) {
        struct race_state *state;

        if (!whole && race_draw(t, 3) != 0)
            continue;
        b->hashes[b->n - 1][ev->n_hashes++] =
            name_of(b->instance->style, prompt[at]);
        state = next_state(b);
        if (state->copies[tier][prompt[at]] > 0)
            state->copies[tier][prompt[at]]--;
    }
}

static void
draw_clear(struct batch *b)
{
    (void)add_event(b, KVE_EVENT_CLEARED, 0);
    memset(next_state(b), 0, sizeof(struct race_state));
}

static void
apply(struct race_dice *t, struct batch *b, kve_instance id)
{
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_index_applied applied = KVE_INDEX_APPLIED_INIT;
    struct kve_error err;
    kve_status status;

    view.events = b->events;
    view.n_events = b->n;
    status = kve_index_apply(
        t->race->index, id, &view, b->contents, b->n_contents, &applied, &err);
    if (status != KVE_OK || applied.refused != 0)
        fail_race(t->race, "apply: %s, %llu events refused",
            kve_status_str(status), (unsigned long long)applied.refused);
}

/* What a twin was told replaces everything in one step. */
static void
rebuild(struct race_dice *t, struct batch *b)
{
    struct race_instance *instance = b->instance;
    uint32_t was = b->at;
    kve_instance twin = 0;
    struct kve_error err;

    if (kve_index_rebuild_begin(t->race->index, instance->id, &twin, &err) !=
        KVE_OK) {
        fail_race(t->race, "rebuild: %s", err.detail);
        return;
    }
    memset(next_state(b), 0, sizeof(struct race_state));
    draw_store(t, b);
    draw_store(t, b);
    apply(t, b, twin);
    /* Nobody sees the steps in between. */
    instance->history[was + 1] = instance->history[b->at];
    b->at = was + 1;
    atomic_store(&instance->reach, b->at);
    if (kve_index_rebuild_commit(t->race->index, instance->id, &err) != KVE_OK)
        fail_race(t->race, "commit: %s", err.detail);
}

/* Somebody nobody asks about, who comes, stores, and is dropped. */
static void
visit(struct race_dice *t, struct batch *b)
{
    struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
    struct race_instance visitor = { .style = b->instance->style };
    struct batch own = { .instance = &visitor };
    struct race_state states[2 * RACE_LENGTH + 1];
    struct kve_error err;

    states[0] = (struct race_state){ { { 0 } } };
    visitor.history = states;
    spec.ns = t->race->ns;
    spec.worker = "visitor";
    spec.rank = t->number;
    if (kve_index_add(t->race->index, &spec, &visitor.id, &err) != KVE_OK) {
        fail_race(t->race, "add: %s", err.detail);
        return;
    }
    draw_store(t, &own);
    draw_removal(t, &own);
    apply(t, &own, visitor.id);
    if (kve_index_drop(t->race->index, visitor.id, &err) != KVE_OK)
        fail_race(t->race, "drop: %s", err.detail);
}

bool
race_change(struct race_dice *t, struct race_instance *instance)
{
    struct batch b = { .instance = instance,
        .at = atomic_load(&instance->done) };
    uint32_t what = race_draw(t, 100);

    if (b.at + (EVENTS + 1) * RACE_LENGTH >= t->race->n_states)
        return false;
    if (what == 0) {
        rebuild(t, &b);
    } else {
        uint32_t n = 1 + race_draw(t, EVENTS);

        if (race_draw(t, 100) < t->race->clears)
            draw_clear(&b);
        while (b.n < n)
            (race_draw(t, 5) < 3 ? draw_store : draw_removal)(t, &b);
        atomic_store(&instance->reach, b.at);
        apply(t, &b, instance->id);
    }
    atomic_store(&instance->done, b.at);
    if (what < 4)
        visit(t, &b);
    if (what == 99)
        (void)kve_index_tidy(t->race->index, 50);
    return true;
}

/* ---- the readers ----------------------------------------------------- */

static uint32_t
prefix(const struct race_state *state, const uint16_t *prompt, unsigned tiers)
{
    uint32_t n = 0;

    while (n < RACE_LENGTH &&
        (((tiers & 1) != 0 && state->copies[0][prompt[n]] > 0) ||
            ((tiers & 2) != 0 && state->copies[1][prompt[n]] > 0)))
        n++;
    return n * BLOCK_SIZE;
}

static bool
is_row_of(const struct race_state *state, const uint16_t *prompt,
    const struct kve_index_row *row)
{
    return row->alone[KVE_TIER_GPU] == prefix(state, prompt, 1) &&
        row->alone[KVE_TIER_CPU] == prefix(state, prompt, 2) &&
        row->upto[0] == prefix(state, prompt, 1) &&
        row->upto[1] == prefix(state, prompt, 3) &&
        row->upto[2] == row->upto[1] && row->longest == row->upto[1];
}

/* Was it like this at one of these moments? */
static void
check_row(struct race *race, unsigned number, const uint16_t *prompt,
    const struct kve_index_row *row, uint32_t lo, const char *what)
{
    const struct race_instance *instance = &race->instances[number];
    uint32_t hi = atomic_load(&instance->reach);

    for (uint32_t i = lo; i <= hi; i++)
        if (is_row_of(&instance->history[i], prompt, row))
            return;
    fail_race(race,
        "%s: instance %u said gpu %u, cpu %u, both %u; never between states "
        "%u (gpu %u, both %u) and %u (gpu %u, both %u)",
        what, number, row->alone[KVE_TIER_GPU], row->alone[KVE_TIER_CPU],
        row->upto[1], lo, prefix(&instance->history[lo], prompt, 1),
        prefix(&instance->history[lo], prompt, 3), hi,
        prefix(&instance->history[hi], prompt, 1),
        prefix(&instance->history[hi], prompt, 3));
}

static const struct kve_index_row *
find_row(const struct kve_index_answer *answer, kve_instance id)
{
    for (size_t i = 0; i < answer->n; i++)
        if (answer->rows[i].instance == id)
            return &answer->rows[i];
    return NULL;
}

/* A question by contents, or by the hashes of one style. */
void
race_ask(struct race_dice *t, kve_index_reader *reader)
{
    static const struct kve_index_row nothing;
    struct race *race = t->race;
    const uint16_t *prompt = race->prompts[race_draw(t, RACE_PROMPTS)];
    bool by_hash = race_draw(t, 3) == 0;
    unsigned style = race_draw(t, 2);
    uint64_t contents[RACE_LENGTH];
    struct kve_hash hashes[RACE_LENGTH];
    struct kve_index_row rows[RACE_INSTANCES + 8];
    struct kve_index_query query = KVE_INDEX_QUERY_INIT;
    struct kve_index_answer answer = KVE_INDEX_ANSWER_INIT;
    struct kve_error err;
    uint32_t lo[RACE_INSTANCES];
    kve_status status;

    for (unsigned i = 0; i < RACE_LENGTH; i++) {
        contents[i] = content_of(prompt[i]);
        hashes[i] = name_of(style, prompt[i]);
    }
    query.ns = race->ns;
    query.block_size = BLOCK_SIZE;
    if (by_hash) {
        query.hashes = hashes;
        query.n_hashes = RACE_LENGTH;
    } else {
        query.contents = contents;
        query.n_contents = RACE_LENGTH;
    }
    answer.rows = rows;
    answer.cap = sizeof(rows) / sizeof(rows[0]);
    for (unsigned i = 0; i < RACE_INSTANCES; i++)
        lo[i] = atomic_load(&race->instances[i].done);
    status = kve_index_query(reader, &query, &answer, &err);
    if (status != KVE_OK) {
        fail_race(race, "query: %s", err.detail);
        return;
    }
    atomic_fetch_add(&race->answers, 1);
    for (unsigned i = 0; i < RACE_INSTANCES; i++) {
        const struct kve_index_row *row =
            find_row(&answer, race->instances[i].id);

        if (by_hash && race->instances[i].style != style) {
            if (row != NULL)
                fail_race(race, "instance %u has a row by foreign hashes", i);
            continue;
        }
        atomic_fetch_add(&race->rows, 1);
        if (row != NULL && (row->flags & KVE_ROW_MOVING) != 0)
            atomic_fetch_add(&race->moving, 1);
        else
            check_row(race, i, prompt, row != NULL ? row : &nothing, lo[i],
                by_hash ? "hashes" : "contents");
    }
}

/* Copies of one block, on one tier. */
static uint32_t
copies_of(const struct kve_index_holder *holders, size_t n, kve_instance id,
    uint32_t tier)
{
    uint32_t copies = 0;

    for (size_t i = 0; i < n; i++)
        if (holders[i].instance == id && holders[i].tier == tier)
            copies += holders[i].copies;
    return copies;
}

void
race_look(struct race_dice *t, kve_index_reader *reader)
{
    struct race *race = t->race;
    const uint16_t *prompt = race->prompts[race_draw(t, RACE_PROMPTS)];
    uint16_t block = prompt[race_draw(t, RACE_LENGTH)];
    unsigned style = race_draw(t, 2);
    struct kve_hash hash = name_of(style, block);
    struct kve_index_holder holders[4 * RACE_INSTANCES];
    size_t cap = sizeof(holders) / sizeof(holders[0]);
    uint32_t end = 0;
    size_t n = kve_index_block(reader, race->ns, &hash, holders, cap);

    while (prompt[end] != block)
        end++;
    if (n > cap)
        fail_race(race, "%zu holders of a block", n);
    for (size_t i = 0; i < n && i < cap; i++) {
        if (holders[i].content != content_of(block) || !holders[i].placed ||
            holders[i].end != (end + 1) * BLOCK_SIZE)
            fail_race(race, "a block at token %u stands at %u",
                (end + 1) * BLOCK_SIZE, holders[i].end);
    }
    for (unsigned i = 0; i < RACE_INSTANCES; i++)
        if (race->instances[i].style != style &&
            copies_of(holders, n < cap ? n : cap, race->instances[i].id,
                KVE_TIER_GPU) != 0)
            fail_race(race, "instance %u holds a block by a foreign hash", i);
}

/* ---- begin and end ---------------------------------------------------- */

void
race_init(struct race *race, uint32_t n_states)
{
    memset(race, 0, sizeof(*race));
    race->n_states = n_states;
    race->clears = 1;
    make_prompts(race);
    if (kve_index_create(NULL, &race->index, NULL) != KVE_OK ||
        kve_index_namespace(race->index, "m", "", &race->ns, NULL) != KVE_OK)
        abort();
    for (unsigned i = 0; i < RACE_INSTANCES; i++) {
        struct kve_instance_spec spec = KVE_INSTANCE_SPEC_INIT;
        struct race_instance *instance = &race->instances[i];
        char worker[16];

        snprintf(worker, sizeof(worker), "w%u", i);
        spec.ns = race->ns;
        spec.worker = worker;
        instance->style = i % 3 == 1;
        instance->tiers = i % 3 == 2;
        instance->history = calloc(n_states, sizeof(struct race_state));
        if (instance->history == NULL ||
            kve_index_add(race->index, &spec, &instance->id, NULL) != KVE_OK)
            abort();
    }
}

void
race_release(struct race *race)
{
    for (unsigned i = 0; i < RACE_INSTANCES; i++)
        free(race->instances[i].history);
    kve_index_destroy(race->index);
}
