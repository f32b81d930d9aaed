/*
 * test_state.c - an ingest is saved, and another one goes on from there.
 *
 * ctest-timeout: 300
 *
 * With engines on loopback: those that went on meanwhile, that started anew,
 * that are behind a socket of many. And what a state says beside blocks: every
 * option, every number of a position, no keys.
 */
#include "rig.h"

#include "base/alloc.h"
#include "ingest/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a state in memory ---- */

struct bytes {
    uint8_t *data;
    size_t len;
    size_t at;
    size_t most; /* that is taken; 0: all */
};

static bool
take(void *ctx, const void *data, size_t len)
{
    struct bytes *b = ctx;

    if (b->most != 0 && b->len + len > b->most)
        return false;
    b->data = realloc(b->data, b->len + len);
    assert_non_null(b->data);
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return true;
}

static ptrdiff_t
give(void *ctx, void *data, size_t cap)
{
    struct bytes *b = ctx;
    size_t n = b->len - b->at < cap ? b->len - b->at : cap;

    if (n > 0)
        memcpy(data, b->data + b->at, n);
    b->at += n;
    return (ptrdiff_t)n;
}

static struct bytes
save(struct rig *r)
{
    struct bytes b = { NULL, 0, 0, 0 };
    struct kve_error err = { .status = KVE_OK };

    if (kve_ingest_save_to(r->ingest, take, &b, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return b;
}

static kve_status
try_load(struct rig *r, struct bytes *b, struct kve_ingest_loaded *loaded,
    struct kve_error *err)
{
    b->at = 0;
    return kve_ingest_load_from(r->ingest, give, b, loaded, err);
}

static struct kve_ingest_loaded
load(struct rig *r, struct bytes *b)
{
    struct kve_error err = { .status = KVE_OK };
    struct kve_ingest_loaded loaded = { .struct_size = sizeof(loaded) };

    if (try_load(r, b, &loaded, &err) != KVE_OK)
        fail_msg("%s", err.detail);
    return loaded;
}

/* Saved, ended, and begun again from that: as a process that is restarted. */
static struct kve_ingest_loaded
restart(struct rig *r)
{
    struct bytes b = save(r);
    struct kve_ingest_loaded loaded = { .struct_size = sizeof(loaded) };

    rig_close(r);
    rig_open(r, NULL, NULL);
    loaded = load(r, &b);
    free(b.data);
    return loaded;
}

static kve_ingest_id
find(struct rig *r, const char *worker, uint32_t rank)
{
    return kve_ingest_find(r->ingest, "m", NULL, worker, rank);
}

static bool
count(void *ctx, const struct kve_ingest_source *source)
{
    (void)source;
    ++*(size_t *)ctx;
    return true;
}

static size_t
n_sources(struct rig *r)
{
    size_t n = 0;

    kve_ingest_read_begin(r->ingest);
    (void)kve_ingest_sources(r->ingest, NULL, count, &n);
    kve_ingest_read_end(r->ingest);
    return n;
}

/* ---- engines that go on, or do not ---- */

static void
test_goes_on_where_it_stood(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_loaded loaded = { .struct_size = sizeof(loaded) };
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3; S[3]4,5 @CPU e=; R 5 @CPU");
    engine_say(&e, 2, "S[-]1,2");
    id = rig_follow(&r, &e, "w", 0);
    UNTIL(is_state(&r, id, LIVE) && held(&r, "w", 2, 4) == 4);
    loaded = restart(&r);
    assert_int_equal(loaded.sources, 1);
    assert_int_equal(loaded.blocks, 6);
    assert_true(loaded.saved_at > 1e9);
    /* At once, before anything is connected. */
    assert_int_equal(held(&r, "w", 0, 4), 8);
    assert_int_equal(held(&r, "w", 2, 4), 4);

    id = find(&r, "w", 0);
    assert_true(id != 0);
    assert_true(rig_source(&r, id).restored);
    assert_false(rig_source(&r, id).claimed);
    UNTIL(is_state(&r, id, LIVE));
    /* Batch 1 is the proof, and 2 what was said meanwhile. */
    engine_say(&e, -1, "S[4]5 @CPU e=");
    UNTIL(held(&r, "w", 0, 5) == 10);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INDEX_BATCHES), 1);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_RESUMED), 1);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_CLEARED), 0);

    /* And once more, with what was said while nobody listened. */
    (void)restart(&r);
    rig_close(&r);
    engine_close(&e);
}

static void
test_catches_up_with_what_was_said_meanwhile(void **state)
{
    struct rig r;
    struct engine e;
    struct bytes b;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3");
    id = rig_follow(&r, &e, "w", 0);
    UNTIL(is_state(&r, id, LIVE));
    b = save(&r);
    engine_say(&e, -1, "S[3]4; R 1");
    rig_close(&r);
    engine_say(&e, -1, "S[-]1; S[4]5");

    rig_open(&r, NULL, NULL);
    assert_int_equal(load(&r, &b).blocks, 3);
    id = find(&r, "w", 0);
    UNTIL(is_state(&r, id, LIVE) && held(&r, "w", 0, 5) == 10);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INDEX_BATCHES), 2);
    free(b.data);
    rig_close(&r);
    engine_close(&e);
}

static void
test_another_life_starts_empty(void **state)
{
    struct rig r;
    struct engine e;
    struct bytes b;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3");
    engine_say(&e, 1, "S[-]1,2,3");
    id = rig_follow(&r, &e, "w", 0);
    UNTIL(is_state(&r, id, LIVE));
    b = save(&r);
    rig_close(&r);
    engine_close(&e);

    engine_reopen(&e);
    engine_say(&e, -1, "S[-]1 b=2 t=11");
    engine_say(&e, -1, "S[-]2 b=2 t=12");
    engine_say(&e, -1, "S[-]1,2");
    rig_open(&r, NULL, NULL);
    (void)load(&r, &b);
    id = find(&r, "w", 0);
    UNTIL(is_state(&r, id, LIVE));
    UNTIL(held(&r, "w", 1, 3) == 0);
    assert_int_equal(held(&r, "w", 0, 3), 0);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_INDEX_BATCHES), 3);
    free(b.data);
    rig_close(&r);
    engine_close(&e);
}

static void
test_claimed_by_who_asks_for_it(void **state)
{
    struct rig r;
    struct engine e[3];
    struct kve_ingest_spec spec;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    for (size_t i = 0; i < 3; i++) {
        char worker[2] = { (char)('a' + (char)i), '\0' };

        engine_open(&e[i], NULL);
        engine_say(&e[i], -1, "S[-]1,2");
        spec = rig_spec(&e[i], worker, 0);
        spec.origin = i == 0 ? KVE_ORIGIN_API : KVE_ORIGIN_FILE;
        id = rig_add(&r, &spec);
        UNTIL(is_state(&r, id, LIVE));
    }
    assert_int_equal(restart(&r).sources, 3);
    spec = rig_spec(&e[1], "b", 0);
    spec.origin = KVE_ORIGIN_FILE;
    id = rig_add(&r, &spec);
    assert_int_equal(held(&r, "b", 0, 2), 4);
    assert_true(rig_source(&r, id).claimed);
    /* What was registered stays; what a file named is not there any more. */
    assert_int_equal(kve_ingest_drop_unclaimed(r.ingest), 1);
    assert_int_equal(held(&r, "a", 0, 2), 4);
    assert_int_equal(held(&r, "b", 0, 2), 4);
    assert_int_equal(held(&r, "c", 0, 2), 0);
    assert_int_equal(find(&r, "c", 0), 0);
    assert_int_equal(kve_ingest_drop_unclaimed(r.ingest), 0);
    rig_close(&r);
    for (size_t i = 0; i < 3; i++)
        engine_close(&e[i]);
}

static void
test_paused_stays_paused(void **state)
{
    struct rig r;
    struct engine e;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2");
    id = rig_follow(&r, &e, "w", 0);
    UNTIL(is_state(&r, id, LIVE));
    assert_int_equal(kve_ingest_pause(r.ingest, id, NULL), KVE_OK);
    engine_say(&e, -1, "S[2]3");
    (void)restart(&r);
    id = find(&r, "w", 0);
    assert_true(rig_source(&r, id).paused);
    assert_true(is_state(&r, id, KVE_STATE_DEGRADED, KVE_REASON_PAUSED));
    assert_int_equal(held(&r, "w", 0, 3), 4);
    assert_int_equal(kve_ingest_resume(r.ingest, id, NULL), KVE_OK);
    UNTIL(is_state(&r, id, LIVE) && held(&r, "w", 0, 3) == 6);
    rig_close(&r);
    engine_close(&e);
}

/* Nothing came yet: it is there, and begins anew. */
static void
test_what_never_began(void **state)
{
    struct rig r;
    struct engine e;
    struct kve_ingest_spec spec;
    kve_ingest_id id;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    spec = rig_spec(&e, "w", 3);
    spec.engine = "vLLM";
    spec.block_size = 16;
    (void)rig_add(&r, &spec);
    assert_int_equal(restart(&r).blocks, 0);
    id = find(&r, "w", 3);
    assert_true(id != 0);
    assert_int_equal(rig_source(&r, id).block_size, 16);
    engine_say(&e, 3, "S[-]1,2");
    UNTIL(is_state(&r, id, LIVE) && held(&r, "w", 3, 2) == 4);
    rig_close(&r);
    engine_close(&e);
}

/* Batches of one go to the rank of the other. */
static void
test_two_that_feed_one_rank(void **state)
{
    struct rig r;
    struct engine e[2];
    kve_ingest_id a, b;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e[0], NULL);
    engine_open(&e[1], NULL);
    a = rig_follow(&r, &e[0], "w", 0);
    b = rig_follow(&r, &e[1], "w", 1);
    engine_say(&e[0], -1, "S[-]1");
    engine_say(&e[1], -1, "S[-]1");
    UNTIL(held(&r, "w", 0, 1) == 2 && held(&r, "w", 1, 1) == 2);
    engine_say(&e[0], 1, "S[-]1,2");
    UNTIL(held(&r, "w", 1, 2) == 4);
    assert_int_equal(restart(&r).blocks, 3);
    a = find(&r, "w", 0);
    b = find(&r, "w", 1);
    UNTIL(is_state(&r, a, LIVE) && is_state(&r, b, LIVE));
    assert_int_equal(held(&r, "w", 1, 2), 4);
    /* Two copies of block 1. */
    engine_say(&e[1], -1, "R 1");
    engine_say(&e[1], -1, "S[-]5");
    UNTIL(rig_count(&r, b, KVE_COUNTER_INGEST_BATCHES) == 2);
    assert_int_equal(held(&r, "w", 1, 2), 4);
    engine_say(&e[0], 1, "R 1");
    UNTIL(held(&r, "w", 1, 2) == 0);
    rig_close(&r);
    engine_close(&e[0]);
    engine_close(&e[1]);
}

struct saving {
    struct rig *rig;
    struct bytes states[8];
    pthread_t thread;
};

static void *
save_often(void *ctx)
{
    struct saving *s = ctx;

    for (size_t i = 0; i < N_OF(s->states); i++) {
        s->states[i] = save(s->rig);
        rest_ms(10);
    }
    return NULL;
}

/* Whichever of them is gone on from, it comes to the same. */
static void
test_saved_while_batches_come(void **state)
{
    struct saving s = { .rig = NULL };
    struct rig r;
    struct engine e;
    kve_ingest_id id;
    unsigned said = 0;

    (void)state;
    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2,3");
    id = rig_follow(&r, &e, "w", 0);
    UNTIL(is_state(&r, id, LIVE));
    s.rig = &r;
    assert_int_equal(pthread_create(&s.thread, NULL, save_often, &s), 0);
    for (; said < 200; said++) {
        /* Copies of block 3 tell how many of these were applied. */
        engine_say(&e, -1, said % 4 == 3 ? "R 3; S[3]4; R 4" : "S[2]3");
        rest_ms(said % 16 == 0 ? 5 : 0);
    }
    assert_int_equal(pthread_join(s.thread, NULL), 0);
    rig_close(&r);
    for (size_t i = 0; i < N_OF(s.states); i++) {
        struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

        rig_open(&r, NULL, NULL);
        (void)load(&r, &s.states[i]);
        id = find(&r, "w", 0);
        UNTIL(is_state(&r, id, LIVE) && rig_source(&r, id).last_number == said);
        assert_int_equal(kve_index_get_stats(r.index, 0, &stats), KVE_OK);
        assert_int_equal(stats.copies, 3 + said / 4 * 2);
        assert_int_equal(rig_count(&r, id, KVE_COUNTER_INDEX_UNMATCHED), 0);
        assert_int_equal(rig_count(&r, id, KVE_COUNTER_INGEST_CLEARED), 0);
        rig_close(&r);
        free(s.states[i].data);
    }
    engine_close(&e);
}

/* ---- streams behind one socket ---- */

static void
test_streams_go_on(void **state)
{
    struct rig r;
    struct engine e[2];
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    char endpoint[64];
    kve_ingest_id parent;

    (void)state;
    rig_open(&r, NULL, NULL);
    (void)snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/kvevents-state-%ld",
        (long)getpid());
    spec.model = "m";
    spec.worker = "many";
    spec.topic_rule = KVE_TOPIC_RULE_ID;
    spec.source.endpoint = endpoint;
    spec.source.bind = KVE_BIND_YES;
    parent = rig_add(&r, &spec);
    for (size_t i = 0; i < 2; i++) {
        struct kve_pub_opts opts = KVE_PUB_OPTS_INIT;

        opts.endpoint = endpoint;
        opts.bind = KVE_BIND_NO;
        opts.topic = i == 0 ? "kv@x@m" : "kv@y@m";
        engine_open(&e[i], &opts);
    }
    /* The first ones may have nobody who hears them. */
    for (unsigned i = 0;
         i < 400 && (held(&r, "x", 0, 2) != 4 || held(&r, "y", 0, 2) != 4);
         i++) {
        engine_say(&e[0], -1, "S[-]1,2");
        engine_say(&e[1], -1, "S[-]1,2");
        rest_ms(25);
    }
    assert_int_equal(restart(&r).sources, 3);
    assert_int_equal(held(&r, "x", 0, 2), 4);
    assert_int_equal(held(&r, "y", 0, 2), 4);
    parent = find(&r, "many", 0);
    assert_true(parent != 0);
    assert_int_equal(rig_source(&r, find(&r, "x", 0)).parent, parent);
    /* They go on by themselves. Without a replay endpoint what follows must
     * follow, or the stream says that it is degraded. */
    UNTIL(rig_source(&r, parent).connected);
    for (unsigned i = 0; i < 400 && held(&r, "x", 0, 3) != 6; i++) {
        engine_say(&e[0], -1, "S[2]3");
        rest_ms(25);
    }
    assert_int_equal(held(&r, "x", 0, 3), 6);
    assert_int_equal(held(&r, "y", 0, 2), 4);
    rig_close(&r);
    engine_close(&e[0]);
    engine_close(&e[1]);
    (void)unlink(endpoint + strlen("ipc://"));
}

/* ---- what it says ---- */

/* Different values for everything, so that nothing can be in the other's
 * place. */
static void
draw_position(struct kve_position *p)
{
    uint8_t *bytes = (uint8_t *)p->publisher_id;

    memset(p, 0, sizeof(*p));
    p->number = UINT64_MAX - 3;
    p->digest = UINT64_C(0x1122334455667788);
    p->proof_number = 77;
    p->proof_digest = UINT64_C(0x8877665544332211);
    p->doubt_digest = UINT64_C(0xaabbccdd00112233);
    p->missing_first = 5;
    p->missing_last = UINT64_C(1) << 40;
    for (size_t i = 0; i < sizeof(p->publisher_id); i++)
        bytes[i] = (uint8_t)(200 - i);
    p->started = true;
    p->has_digest = true;
    p->has_publisher_id = true;
    p->has_missing = true;
    p->doubted = true;
    p->degraded = true;
    p->reason = KVE_REASON_LOST;
}

static void
test_positions_come_back(void **state)
{
    struct kve_position all, p;

    (void)state;
    draw_position(&all);
    /* What a position has not said is zero in it. */
    for (unsigned bits = 0; bits < 64; bits++) {
        struct kve_state_source source = { .parent = 0 }, again;
        struct kve_state_out out = { NULL, 0, 0, false };
        struct kve_state_in in;

        p = all;
        p.started = (bits & 1) == 0;
        p.has_digest = (bits & 2) == 0;
        p.has_publisher_id = (bits & 4) == 0;
        p.has_missing = (bits & 8) == 0;
        p.doubted = (bits & 16) == 0;
        p.degraded = (bits & 32) == 0;
        if (!p.has_digest)
            p.digest = 0;
        if (!p.has_publisher_id)
            memset(p.publisher_id, 0, sizeof(p.publisher_id));
        if (!p.has_missing)
            p.missing_first = p.missing_last = 0;
        if (!p.doubted)
            p.proof_number = p.proof_digest = p.doubt_digest = 0;
        if (!p.started)
            memset(&p, 0, sizeof(p));
        source.spec.worker = "w";
        source.seed.position = p;
        kve_state_put_source(&out, &source);
        in = (struct kve_state_in){ out.data, out.data, out.data + out.len, 0,
            NULL, 0 };
        kve_state_read_source(&in, &again);
        assert_null(in.wrong);
        assert_ptr_equal(in.at, in.end);
        assert_memory_equal(&again.seed.position, &p, sizeof(p));
        kve_mem_free(out.data);
    }
}

static void
same_text(const char *a, const char *b)
{
    if (a == NULL)
        assert_null(b);
    else
        assert_string_equal(a, b);
}

static void
test_options_come_back(void **state)
{
    static const struct kve_ingest_spec spec = {
        .struct_size = sizeof(spec),
        .model = "model",
        .tenant = "",
        .worker = "worker\n",
        .rank = 1,
        .block_size = UINT32_MAX,
        .counting = KVE_COUNTING_SET,
        .origin = KVE_ORIGIN_NAME,
        .topic_rule = KVE_TOPIC_RULE_HOST,
        .found_in = "file",
        .engine = "vLLM",
        .lora_name = "ad",
        .additional_salt = "salt",
        .source = {
            .struct_size = sizeof(spec.source),
            .endpoint = "tcp://h:1",
            .replay_endpoint = "tcp://h:2",
            .topic = "kv@",
            .bind = 2,
            .on_loss = 1,
            .start = KVE_START_NUMBER,
            .recv_hwm = 3,
            .first_number = UINT64_MAX,
            .rank = { -4, true },
            .max_body_len = 5,
            .hold_bytes = 6,
            .hold_items = 7,
            .replay_timeout_ms = 8,
            .tail_probe_ms = KVE_NONE,
            .reconnect_ms = 9,
            .reconnect_max_ms = 10,
            .resolve_timeout_ms = 11,
            .snapshot_endpoint = "tcp://h:3",
            .snapshot_max_bytes = 12,
            .snapshot_timeout_ms = 13,
            .heartbeat_timeout_ms = 14,
            .streams = KVE_STREAMS_SPLIT,
            .max_streams = 15,
            .stream_idle_ms = 16,
        },
    };
    struct kve_state_source source = { .spec = spec, .parent = 9 }, again;
    struct kve_state_out out = { NULL, 0, 0, false };
    struct kve_state_in in;
    struct kve_ingest_spec plain;

    (void)state;
    source.seed.topic = (struct kve_span){ (const uint8_t *)"a\0b", 3 };
    source.seed.stream_rank = (struct kve_int){ 5, true };
    source.seed.added_at = 1e9 + 0.5;
    source.seed.paused = source.seed.keyless = source.seed.incomplete = true;
    kve_state_put_source(&out, &source);
    in = (struct kve_state_in){ out.data, out.data, out.data + out.len, 0, NULL,
        0 };
    kve_state_read_source(&in, &again);
    assert_null(in.wrong);
    assert_ptr_equal(in.at, in.end);
    assert_int_equal(again.parent, 9);
    assert_int_equal(again.seed.topic.len, 3);
    assert_memory_equal(again.seed.topic.data, "a\0b", 3);
    assert_true(
        again.seed.stream_rank.set && again.seed.stream_rank.value == 5);
    assert_true(again.seed.added_at == 1e9 + 0.5);
    assert_true(
        again.seed.paused && again.seed.keyless && again.seed.incomplete);
    /* Texts are compared as such; the rest byte by byte. */
    plain = spec;
#define TEXT(field)                          \
    same_text(spec.field, again.spec.field); \
    plain.field = again.spec.field = NULL
    TEXT(model);
    TEXT(tenant);
    TEXT(worker);
    TEXT(found_in);
    TEXT(engine);
    TEXT(lora_name);
    TEXT(additional_salt);
    TEXT(source.endpoint);
    TEXT(source.replay_endpoint);
    TEXT(source.snapshot_endpoint);
    TEXT(source.topic);
    /* This one has bytes between its fields. */
    assert_true(again.spec.source.rank.set);
    assert_int_equal(again.spec.source.rank.value, plain.source.rank.value);
    memset(&plain.source.rank, 0, sizeof(plain.source.rank));
    memset(&again.spec.source.rank, 0, sizeof(again.spec.source.rank));
    assert_memory_equal(&plain, &again.spec, sizeof(plain));
    kve_mem_free(out.data);
}

static bool
contains(const struct bytes *b, const char *text)
{
    return memmem(b->data, b->len, text, strlen(text)) != NULL;
}

static void
test_keys_are_not_written(void **state)
{
    struct rig r;
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    static const char server[] = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    static const char public[] = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    static const char secret[] = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
    struct bytes b;
    kve_ingest_id id;
    kve_status status;

    (void)state;
    rig_open(&r, NULL, NULL);
    spec.model = "m";
    spec.worker = "w";
    spec.source.endpoint = "tcp://127.0.0.1:1";
    spec.source.curve.server_key = server;
    spec.source.curve.public_key = public;
    spec.source.curve.secret_key = secret;
    status = kve_ingest_add(r.ingest, &spec, &id, NULL);
    if (status == KVE_E_UNSUPPORTED) {
        rig_close(&r);
        skip();
    }
    assert_int_equal(status, KVE_OK);
    b = save(&r);
    assert_true(contains(&b, "tcp://127.0.0.1:1"));
    assert_false(contains(&b, server));
    assert_false(contains(&b, public));
    assert_false(contains(&b, secret));
    rig_close(&r);
    rig_open(&r, NULL, NULL);
    assert_int_equal(load(&r, &b).sources, 1);
    free(b.data);
    /* It is there, and waits for its keys; saved again it still does. */
    id = find(&r, "w", 0);
    assert_true(id != 0);
    b = save(&r);
    rig_close(&r);
    rig_open(&r, NULL, NULL);
    assert_int_equal(load(&r, &b).sources, 1);
    id = find(&r, "w", 0);
    assert_int_equal(rig_count(&r, id, KVE_COUNTER_SUB_CONNECTS), 0);
    assert_int_equal(rig_add(&r, &spec), id);
    free(b.data);
    rig_close(&r);
}

/* ---- what goes wrong ---- */

/* A state of one source with blocks. */
static struct bytes
some_state(void)
{
    struct rig r;
    struct engine e;
    struct bytes b;
    kve_ingest_id id;

    rig_open(&r, NULL, NULL);
    engine_open(&e, NULL);
    engine_say(&e, -1, "S[-]1,2; S[-]3,4 lora=x");
    id = rig_follow(&r, &e, "w", 0);
    UNTIL(is_state(&r, id, LIVE));
    b = save(&r);
    rig_close(&r);
    engine_close(&e);
    return b;
}

/* A byte of the first section's body is another, and its checksum knows. */
static struct bytes
forged(const struct bytes *from, size_t at, uint8_t flip)
{
    struct bytes to = { NULL, 0, 0, 0 };
    struct bytes from_again = *from;
    struct kve_state_writer w = { .write = take, .ctx = &to };
    struct kve_state_whole whole;
    struct kve_state_in in;
    kve_status status;
    uint8_t *body;

    from_again.at = 0;
    assert_int_equal(kve_state_spool(&whole, give, &from_again, NULL), KVE_OK);
    assert_int_equal(kve_state_check(&whole, NULL), KVE_OK);
    assert_true(kve_state_next(&whole, &in, &status, NULL));
    body = malloc((size_t)(in.end - in.begin));
    assert_non_null(body);
    memcpy(body, in.begin, (size_t)(in.end - in.begin));
    body[at % (size_t)(in.end - in.begin)] ^= flip;
    kve_state_begin(&w, 1);
    kve_state_section(&w, body, (size_t)(in.end - in.begin));
    kve_state_end(&w);
    free(body);
    kve_state_close(&whole);
    return to;
}

static void
test_nothing_of_a_broken_one(void **state)
{
    struct bytes b = some_state();
    size_t broken = 0;

    (void)state;
    for (size_t at = 0; at < b.len; at += 3) {
        struct bytes f = forged(&b, at, 0x55);
        struct rig r;
        struct kve_error err = { .status = KVE_OK };
        struct kve_ingest_loaded loaded = { sizeof(loaded), 99, 99, 99 };
        kve_status status;

        rig_open(&r, NULL, NULL);
        status = try_load(&r, &f, &loaded, &err);
        if (status != KVE_OK) {
            struct kve_index_stats stats = KVE_INDEX_STATS_INIT;

            broken++;
            assert_int_equal(status, KVE_E_MALFORMED);
            assert_non_null(strstr(err.detail, "broken at byte"));
            assert_int_equal(loaded.sources, 99);
            assert_int_equal(n_sources(&r), 0);
            assert_int_equal(kve_index_get_stats(r.index, 0, &stats), KVE_OK);
            assert_int_equal(stats.instances, 0);
        }
        free(f.data);
        rig_close(&r);
    }
    assert_true(broken > 10);
    free(b.data);
}

static void
test_only_where_nothing_is(void **state)
{
    struct bytes b = some_state();
    struct rig r;
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    struct kve_error err;

    (void)state;
    rig_open(&r, NULL, NULL);
    spec.model = "m";
    spec.worker = "other";
    spec.source.endpoint = "tcp://127.0.0.1:1";
    (void)rig_add(&r, &spec);
    assert_int_equal(try_load(&r, &b, NULL, &err), KVE_E_IN_USE);
    assert_int_equal(n_sources(&r), 1);
    rig_close(&r);
    free(b.data);
}

static void
test_no_room_for_all_sources(void **state)
{
    struct rig r;
    struct kve_ingest_opts few = KVE_INGEST_OPTS_INIT;
    struct kve_ingest_spec spec = KVE_INGEST_SPEC_INIT;
    struct bytes b;

    (void)state;
    rig_open(&r, NULL, NULL);
    spec.model = "m";
    for (uint32_t i = 0; i < 5; i++) {
        spec.worker = "w";
        spec.rank = i;
        spec.source.endpoint = "tcp://127.0.0.1:1";
        (void)rig_add(&r, &spec);
    }
    b = save(&r);
    rig_close(&r);
    few.max_sources = 3;
    rig_open(&r, &few, NULL);
    assert_int_equal(load(&r, &b).sources, 3);
    assert_int_equal(n_sources(&r), 3);
    rig_close(&r);
    free(b.data);
}

static void
test_a_reader_that_leaves(void **state)
{
    struct bytes b = some_state();
    struct bytes little = { NULL, 0, 0, 40 };
    struct rig r;

    (void)state;
    rig_open(&r, NULL, NULL);
    (void)load(&r, &b);
    assert_int_equal(
        kve_ingest_save_to(r.ingest, take, &little, NULL), KVE_E_CLOSED);
    rig_close(&r);
    free(b.data);
    free(little.data);
}

static void
test_no_memory(void **state)
{
    struct bytes b = some_state();
    struct rig r;
    bool failed = true;

    (void)state;
    rig_open(&r, NULL, NULL);
    (void)load(&r, &b);
    for (uint64_t n = 1; failed; n++) {
        struct bytes to = { NULL, 0, 0, 0 };
        kve_status status;

        kve_mem_fail_at(n, false);
        status = kve_ingest_save_to(r.ingest, take, &to, NULL);
        failed = kve_mem_failed();
        kve_mem_fail_at(0, false);
        /* The ingest's own threads may have been hit. */
        assert_true(status == KVE_OK || (failed && status == KVE_E_NOMEM));
        free(to.data);
    }
    rig_close(&r);
    free(b.data);
}

static void
test_a_file(void **state)
{
    struct bytes b = some_state();
    char path[] = "/tmp/kvevents-state-XXXXXX";
    struct rig r;
    struct kve_error err;
    struct kve_ingest_loaded loaded = { .struct_size = sizeof(loaded) };
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    rig_open(&r, NULL, NULL);
    (void)load(&r, &b);
    assert_int_equal(kve_ingest_save(r.ingest, path, &err), KVE_OK);
    rig_close(&r);
    rig_open(&r, NULL, NULL);
    assert_int_equal(kve_ingest_load(r.ingest, path, &loaded, &err), KVE_OK);
    assert_int_equal(loaded.sources, 1);
    assert_int_equal(loaded.blocks, 4);
    assert_int_equal(held(&r, "w", 0, 2), 4);
    rig_close(&r);
    assert_int_equal(unlink(path), 0);
    rig_open(&r, NULL, NULL);
    assert_int_equal(
        kve_ingest_load(r.ingest, path, &loaded, &err), KVE_E_NOT_FOUND);
    rig_close(&r);
    free(b.data);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions_come_back),
        cmocka_unit_test(test_options_come_back),
        cmocka_unit_test(test_goes_on_where_it_stood),
        cmocka_unit_test(test_catches_up_with_what_was_said_meanwhile),
        cmocka_unit_test(test_another_life_starts_empty),
        cmocka_unit_test(test_claimed_by_who_asks_for_it),
        cmocka_unit_test(test_paused_stays_paused),
        cmocka_unit_test(test_what_never_began),
        cmocka_unit_test(test_two_that_feed_one_rank),
        cmocka_unit_test(test_saved_while_batches_come),
        cmocka_unit_test(test_streams_go_on),
        cmocka_unit_test(test_keys_are_not_written),
        cmocka_unit_test(test_nothing_of_a_broken_one),
        cmocka_unit_test(test_only_where_nothing_is),
        cmocka_unit_test(test_no_room_for_all_sources),
        cmocka_unit_test(test_a_reader_that_leaves),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_a_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
