/*
 * test_truth.c - what the index holds is what the engines said, whatever
 * happened between them.
 *
 * ctest-timeout: 600
 *
 * Engines store and remove at random, lose messages, start anew; sources are
 * paused, resumed, removed and added. Everything an engine said in its life is
 * folded by the letter (support/fold.h). Whenever all is quiet each live source
 * must hold exactly that: as many pairs of scope and block, as many copies, and
 * each block as often.
 *
 * KVE_INGEST_SEED sets another seed.
 */
#include "rig.h"

#include "support/eventtext.h"
#include "support/fold.h"
#include "support/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENGINES 4
#define CHECKS (40 / (TEST_SCALE > 5 ? 5 : TEST_SCALE) + 2)
#define STEPS 25
#define BLOCKS 24

struct player {
    struct engine e;
    struct fold *truth;
    uint64_t next; /* number of its next batch */
    kve_ingest_id id;
    bool paused;
    char name[8];
};

struct world {
    struct rig r;
    struct player players[ENGINES];
    uint32_t seed;
};

static uint32_t
draw(struct world *w, uint32_t n)
{
    w->seed = w->seed * 1664525u + 1013904223u;
    return (w->seed >> 8) % n;
}

/* A store of a run of blocks, each behind the one before, or a removal. */
static void
draw_events(struct world *w, char *text, size_t size)
{
    unsigned from = draw(w, BLOCKS);
    unsigned n = 1 + draw(w, 4);
    const char *medium = draw(w, 4) == 0 ? " @cpu e=" : "";
    int at = 0;

    if (draw(w, 40) == 0) {
        (void)snprintf(text, size, "C");
        return;
    }
    if (draw(w, 3) == 0)
        at = snprintf(text, size, "R ");
    else if (from == 0)
        at = snprintf(text, size, "S[-]");
    else
        at = snprintf(text, size, "S[%u]", from);
    for (unsigned i = 1; i <= n; i++)
        at += snprintf(
            text + at, size - (size_t)at, "%s%u", i > 1 ? "," : "", from + i);
    (void)snprintf(text + at, size - (size_t)at, "%s",
        text[0] == 'R' && medium[0] != '\0' ? " @cpu" : medium);
}

static void
speak(struct world *w, struct player *p, bool lost)
{
    char text[128];
    struct eventtext *et = calloc(1, sizeof(*et));
    struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
    struct kve_buffer buf = KVE_BUFFER_INIT;

    assert_non_null(et);
    draw_events(w, text, sizeof(text));
    eventtext_read(et, text);
    view.ts = 1 + (double)p->next;
    view.events = et->events;
    view.n_events = et->n_events;
    assert_int_equal(
        kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, NULL), KVE_OK);
    assert_true(fold_apply_payload(p->truth, buf.data, buf.len));
    assert_int_equal(lost
            ? kve_pub_withhold_payload(p->e.pub, buf.data, buf.len, NULL, NULL)
            : kve_pub_publish_payload(p->e.pub, buf.data, buf.len, NULL, NULL),
        KVE_OK);
    p->next++;
    kve_buffer_release(&buf);
    free(et);
}

static void
start_anew(struct player *p)
{
    engine_close(&p->e);
    fold_clear(p->truth);
    p->next = 0;
    engine_reopen(&p->e);
}

static void
add(struct world *w, struct player *p)
{
    p->id = rig_follow(&w->r, &p->e, p->name, 0);
    p->paused = false;
}

static void
step(struct world *w)
{
    struct player *p = &w->players[draw(w, ENGINES)];
    uint32_t what = draw(w, 60);

    if (what == 0) {
        start_anew(p);
    } else if (what == 1) {
        assert_int_equal(kve_ingest_remove(w->r.ingest, p->id, NULL), KVE_OK);
        add(w, p);
    } else if (what < 6) {
        assert_int_equal(p->paused ? kve_ingest_resume(w->r.ingest, p->id, NULL)
                                   : kve_ingest_pause(w->r.ingest, p->id, NULL),
            KVE_OK);
        p->paused = !p->paused;
    } else {
        speak(w, p, what < 12);
    }
}

static bool
is_quiet(struct world *w, const struct player *p)
{
    struct kve_ingest_source source = rig_source(&w->r, p->id);

    return source.state == KVE_STATE_LIVE && source.started &&
        source.last_number + 1 == p->next;
}

/* What an instance holds, as its dump says. */
struct tally {
    uint64_t pairs;
    uint64_t copies;
    struct fold *fold;
};

static bool
on_run(void *ctx, const struct kve_index_run *run)
{
    (void)ctx;
    (void)run;
    return true;
}

/* What is held becomes stores again, one for each copy. */
static bool
on_held(void *ctx, const struct kve_index_held *held)
{
    struct tally *tally = ctx;

    for (size_t i = 0; i < held->n_blocks; i++) {
        struct kve_event event;
        struct kve_batch_view view = KVE_BATCH_VIEW_INIT;
        struct kve_buffer buf = KVE_BUFFER_INIT;

        if (held->copies[i] == 0)
            continue;
        memset(&event, 0, sizeof(event));
        event.type = KVE_EVENT_STORED;
        event.hashes = &held->hashes[i];
        event.n_hashes = 1;
        event.medium = held->medium;
        event.block_size = 2;
        view.events = &event;
        view.n_events = 1;
        assert_int_equal(
            kve_batch_encode(&view, KVE_LAYOUT_MAP, &buf, NULL), KVE_OK);
        tally->pairs++;
        for (uint32_t n = 0; n < held->copies[i]; n++) {
            assert_true(fold_apply_payload(tally->fold, buf.data, buf.len));
            tally->copies++;
        }
        kve_buffer_release(&buf);
    }
    return true;
}

static void
check(struct world *w)
{
    for (size_t i = 0; i < ENGINES; i++) {
        struct player *p = &w->players[i];
        struct tally tally = { 0, 0, fold_create(false) };
        const struct kve_index_dump dump = { .struct_size = sizeof(dump),
            .ctx = &tally,
            .run = on_run,
            .held = on_held };

        if (p->next == 0)
            speak(w, p, false);
        if (p->paused)
            assert_int_equal(
                kve_ingest_resume(w->r.ingest, p->id, NULL), KVE_OK);
        p->paused = false;
        UNTIL(is_quiet(w, p));
        assert_int_equal(kve_index_dump_instance(w->r.index,
                             rig_source(&w->r, p->id).instance, &dump, NULL),
            KVE_OK);
        assert_int_equal(tally.pairs, fold_pairs(p->truth));
        assert_int_equal(tally.copies, fold_copies(p->truth));
        if (!fold_equal(tally.fold, p->truth)) {
            fold_print_difference(tally.fold, p->truth);
            fail_msg("source %s", p->name);
        }
        fold_destroy(tally.fold);
    }
}

static void
test_truth(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    const char *seed = getenv("KVE_INGEST_SEED");

    (void)state;
    assert_non_null(w);
    w->seed = seed != NULL ? (uint32_t)strtoul(seed, NULL, 0) : 20;
    rig_open(&w->r, NULL, NULL);
    for (size_t i = 0; i < ENGINES; i++) {
        struct player *p = &w->players[i];

        (void)snprintf(p->name, sizeof(p->name), "p%zu", i);
        p->truth = fold_create(false);
        engine_open(&p->e, NULL);
        add(w, p);
    }
    for (int i = 0; i < CHECKS; i++) {
        for (int k = 0; k < STEPS; k++)
            step(w);
        check(w);
    }
    for (size_t i = 0; i < ENGINES; i++) {
        engine_close(&w->players[i].e);
        fold_destroy(w->players[i].truth);
    }
    rig_close(&w->r);
    free(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
