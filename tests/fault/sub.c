/*
 * sub.c - the subscriber's process: follows, and judges itself.
 *
 * It keeps what a reader would keep (support/fold.h). Whenever the source is
 * said to be live - at each batch that is delivered then, when the state
 * becomes live, and after each kve_sub_poll() by what kve_sub_source() says -
 * the visible copy must be the truth of the life whose message came last,
 * after the batch that was reported; and that truth must not have lost
 * anything. Each copy must have got its batches in order, each once, with
 * nothing left out but what a LOST notice named.
 *
 * Now and then it keeps what is visible and where it stands, and when it is
 * told to it begins anew from there, as its next process would.
 */
#include "truth.h"

#include "support/fold.h"

#include <kvevents/kvevents.h>

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS 20000
/* Ten times what is needed; sanitizers keep what was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MAX_RSS_KIB (1024 * 1024)
#else
#define MAX_RSS_KIB (64 * 1024)
#endif

/* How far one copy, visible or twin, has come. */
struct copy {
    bool any;   /* whatever comes is the first */
    bool reset; /* ... after a reset: 0 or 1 */
    uint64_t due;
    bool dense;   /* nothing was left out since the last batch of ours */
    int64_t from; /* the life of the last batch, heartbeats too; or -1 */
    int64_t life; /* of the last batch of ours; -1: none yet */
    uint32_t k;
    uint64_t number; /* of that batch */
    bool blind;      /* another life took over, in a way that nobody can see */
};

static const struct copy fresh = { .any = true, .from = -1, .life = -1 };

/* What the next process finds. */
struct kept {
    struct kve_position position;
    struct fold *visible;
    struct copy copy;
    int64_t life;
    bool gpu_only;
};

struct sub {
    struct world *world;
    int fd;
    kve_subscriber *sub;
    kve_source_id source;
    struct fold_reader reader;
    struct copy visible;
    struct copy twin;
    struct truth *truth;
    uint32_t told; /* the state, as notices say */
    int64_t life;  /* whose message came last */
    struct kept kept;
    uint64_t callbacks; /* that could have been kept */
    uint64_t lost;      /* before it began anew */
};

/* ---- saying what happened ------------------------------------------ */

static void
note(struct sub *s, const char *fmt, ...)
{
    struct world *world = s->world;
    unsigned at = atomic_load(&world->note_at);
    va_list ap;
    int n;

    if (at > sizeof(world->notes) - 160) {
        /* The later half stays. */
        memmove(world->notes, world->notes + at / 2, at - at / 2 + 1);
        at -= at / 2;
    }
    va_start(ap, fmt);
    n = vsnprintf(world->notes + at, 160, fmt, ap);
    va_end(ap);
    atomic_store(&world->note_at, at + (unsigned)(n < 159 ? n : 159));
}

static void
set_life(struct sub *s, int64_t life)
{
    s->life = life;
    atomic_store(&s->world->said.life, life);
}

/* ---- judging ------------------------------------------------------- */

static int64_t
life_of_id(const struct world *world, const uint8_t *id)
{
    for (unsigned i = atomic_load(&world->n_lives); i-- > 0;)
        if (world->lives[i].has_id && memcmp(world->lives[i].id, id, 16) == 0)
            return i;
    return -1;
}

/* How many batches of a life have numbers up to one; those whose number the
 * publisher did not come to write down are known by what was delivered. */
static uint32_t
batches_up_to(const struct sub *s, const struct life *life, uint32_t known,
    uint64_t number)
{
    const struct copy *copy = &s->visible;
    uint32_t n = known;

    while (n > 0 && atomic_load(&life->number[n - 1]) > number)
        n--;
    if (copy->life == s->life && copy->number <= number && copy->k + 1 > n)
        n = copy->k + 1;
    return n;
}

static bool
is_truth(struct sub *s, uint32_t n, bool *ret_lossy)
{
    const struct fold *fold =
        truth_at(s->truth, (unsigned)s->life, n, ret_lossy);

    return fold_equal(fold, s->reader.visible);
}

static void
blame(struct sub *s, const char *when, uint64_t number, uint32_t n, bool lossy)
{
    bool dummy;

    violation(s->world,
        "live %s, life %" PRId64 " up to batch %" PRIu64
        ", %u batches published, %s",
        when, s->life, number, n,
        lossy ? "although it lost something" : "and not the truth");
    if (!lossy)
        fold_print_difference(s->reader.visible,
            truth_at(s->truth, (unsigned)s->life, n, &dummy));
}

/* The source is said to be live up to a number. */
static void
judge(struct sub *s, const char *when, bool started, uint64_t number)
{
    const struct life *life;
    int64_t until = now_ms() + PATIENCE_MS;
    bool lossy = false;

    atomic_fetch_add(&s->world->said.judged, 1);
    if (s->visible.blind)
        return;
    if (!started || s->life < 0) {
        if (fold_pairs(s->reader.visible) > 0)
            violation(s->world, "live %s without a batch, and not empty", when);
        return;
    }
    life = &s->world->lives[s->life];
    for (;;) {
        bool over = atomic_load(&life->over);
        uint32_t begun = atomic_load(&life->begun);
        uint32_t known = atomic_load(&life->n);
        uint32_t n = batches_up_to(s, life, known, number);

        if (is_truth(s, n, &lossy) && !lossy)
            return;
        /* One that is being published may count already. */
        if (begun <= n || n < known || (!over && now_ms() >= until)) {
            blame(s, when, number, n, lossy);
            return;
        }
        if (over) {
            if (!is_truth(s, n + 1, &lossy) || lossy)
                blame(s, when, number, n + 1, lossy);
            return;
        }
        sleep_us(100);
    }
}

/* ---- what the library says ----------------------------------------- */

/* A life that takes over in a way that nobody can see. */
static bool
is_unseen(const struct sub *s, const struct copy *copy, unsigned life,
    const struct kve_delivery *delivery)
{
    const struct world *world = s->world;

    /* After a reset a life may begin with 1: that its batch 0 was lost is known
     * only where it can still be asked for, and who has it is not gone without
     * a word. */
    if (copy->any && copy->reset && delivery->number == 1 &&
        world->lives[life].first == 0 &&
        (delivery->replayed || world->set.buffer_steps < LONG_BUFFER ||
            !world->set.replay || world->set.discreet))
        return true;
    /* Without a replay, or behind a discreet relay, it is heard with just the
     * number that is due. */
    return copy->from >= 0 && copy->from != life &&
        (!world->set.replay || world->set.discreet) &&
        !(world->lives[life].has_id && world->lives[copy->from].has_id);
}

/* A batch of ours: in order, and once. */
static void
judge_batch(struct sub *s, struct copy *copy, unsigned life, uint32_t k,
    const struct kve_delivery *delivery)
{
    if (copy->life == life &&
        (k <= copy->k || (copy->dense && k != copy->k + 1)))
        violation(s->world,
            "batch %u of life %u (number %" PRIu64 ") after batch %u", k, life,
            delivery->number, copy->k);
    if (is_unseen(s, copy, life, delivery))
        copy->blind = true;
    copy->from = life;
    copy->life = life;
    copy->k = k;
    copy->number = delivery->number;
    copy->dense = true;
    if (!delivery->hidden)
        set_life(s, life);
}

/* A batch of the publisher's own, to show that it is there. */
static void
judge_heartbeat(
    struct sub *s, struct copy *copy, const struct kve_delivery *delivery)
{
    int64_t life = delivery->publisher_id != NULL
        ? life_of_id(s->world, delivery->publisher_id)
        : -1;

    if (life < 0) {
        violation(s->world, "batch %" PRIu64 " that nobody published",
            delivery->number);
        return;
    }
    if (is_unseen(s, copy, (unsigned)life, delivery))
        copy->blind = true;
    copy->from = life;
    if (!delivery->hidden)
        set_life(s, life);
}

static void
judge_order(
    struct sub *s, struct copy *copy, const struct kve_delivery *delivery)
{
    unsigned life;
    uint32_t k;

    if (!copy->any && delivery->number != copy->due)
        violation(s->world, "batch %" PRIu64 " where %" PRIu64 " was due",
            delivery->number, copy->due);
    if (read_ts(kve_batch_get_info(delivery->batch)->ts, &life, &k))
        judge_batch(s, copy, life, k, delivery);
    else
        judge_heartbeat(s, copy, delivery);
    copy->any = false;
    copy->due = delivery->number + 1;
}

/* ---- positions ----------------------------------------------------- */

/* At some of the callbacks, which no step of the script foresees. */
static void
keep(struct sub *s)
{
    struct kept *kept = &s->kept;
    struct kve_position position;

    if (!s->world->set.resume ||
        mix64(s->world->set.seed + s->callbacks++) % 5 != 0)
        return;
    if (kve_sub_position(s->sub, s->source, &position) != KVE_OK) {
        violation(s->world, "no position in a callback");
        return;
    }
    if (!position.started)
        return;
    note(s, " kept@%" PRIu64, position.number);
    fold_destroy(kept->visible);
    kept->visible = fold_copy(s->reader.visible);
    kept->gpu_only = s->reader.gpu_only;
    kept->copy = s->visible;
    /* What was lost behind it is lost again. */
    kept->copy.due = position.number + 1;
    kept->copy.any = false;
    kept->copy.dense = kept->copy.dense && kept->copy.due == s->visible.due;
    kept->life = s->life;
    kept->position = position;
}

static int
on_batch(void *ctx, const struct kve_delivery *delivery)
{
    struct sub *s = ctx;
    struct copy *copy = delivery->hidden ? &s->twin : &s->visible;

    note(s, " %s%s%" PRIu64, delivery->snapshot ? "chunk" : "",
        delivery->hidden         ? "~"
            : delivery->replayed ? "<"
                                 : "",
        delivery->number);
    if (delivery->hidden && s->reader.twin == NULL) {
        violation(s->world, "a hidden batch without a twin");
        return 1;
    }
    if (delivery->snapshot) {
        copy->any = false;
        copy->dense = false;
        copy->due = delivery->number + 1;
    } else {
        judge_order(s, copy, delivery);
        s->reader.gpu_only = delivery->publisher_id != NULL;
    }
    fold_reader_batch(&s->reader, delivery);
    atomic_fetch_add(&s->world->said.deliveries, 1);
    atomic_store(&s->world->said.blind, s->visible.blind);
    /* What could not be read is said with the batch, the state after it. */
    if (s->told == KVE_STATE_LIVE && !delivery->hidden &&
        delivery->status == KVE_OK &&
        kve_batch_get_info(delivery->batch)->n_faults == 0)
        judge(s, "at a batch", true, delivery->number);
    keep(s);
    return 0;
}

static void
skip(struct copy *copy, const struct kve_notice *notice)
{
    if (copy->any || copy->due < notice->first || copy->due > notice->last)
        return;
    copy->due = notice->last + 1;
    copy->dense = false;
}

/* The twin is what is visible now. */
static void
swap(struct sub *s)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };

    if (s->reader.twin == NULL) {
        violation(s->world, "a swap without a twin");
        return;
    }
    s->visible = s->twin;
    if (s->visible.life >= 0)
        set_life(s, s->visible.life);
    /* A snapshot says whose it is, also when it is empty. */
    else if (kve_sub_source(s->sub, s->source, &info) == KVE_OK &&
        info.has_publisher_id)
        set_life(s, life_of_id(s->world, info.publisher_id));
}

static void
on_notice(void *ctx, const struct kve_notice *notice)
{
    struct sub *s = ctx;

    if (notice->type == KVE_NOTICE_STATE)
        note(s, " %s:%s", kve_state_str(notice->state),
            kve_reason_str(notice->reason));
    else
        note(s, " %s(%" PRIu64 "-%" PRIu64 ")", kve_notice_str(notice->type),
            notice->first, notice->last);
    switch (notice->type) {
    case KVE_NOTICE_STATE:
        s->told = notice->state;
        if (s->told == KVE_STATE_LIVE)
            judge(s, "from now on", !s->visible.any, s->visible.due - 1);
        break;
    case KVE_NOTICE_LOST:
        skip(&s->visible, notice);
        skip(&s->twin, notice);
        break;
    case KVE_NOTICE_CLEAR:
        s->visible = fresh;
        s->twin = fresh;
        s->visible.reset = notice->reason == KVE_REASON_RESET;
        break;
    case KVE_NOTICE_BEGIN:
        s->twin = fresh;
        s->twin.reset = notice->reason == KVE_REASON_RESET;
        break;
    case KVE_NOTICE_SWAP:
        swap(s);
        break;
    default:
        break;
    }
    if (notice->type != KVE_NOTICE_SWAP || s->reader.twin != NULL)
        fold_reader_notice(&s->reader, notice);
    atomic_store(&s->world->said.blind, s->visible.blind);
    keep(s);
}

/* ---- the loop ------------------------------------------------------ */

static uint64_t
rss_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long size = 0;
    unsigned long resident = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%lu %lu", &size, &resident) != 2)
        resident = 0;
    (void)fclose(file);
    return resident * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
}

/* Look at the source between two polls, and tell the controller. */
static void
look(struct sub *s)
{
    struct said *said = &s->world->said;
    struct kve_source_info info = { .struct_size = sizeof(info) };
    kve_status status = kve_sub_source(s->sub, s->source, &info);

    if (status != KVE_OK) {
        violation(s->world, "the source is gone");
        return;
    }
    /* With a thread of the library the two are not of one moment. */
    if (!s->world->set.library_thread) {
        if (info.state == KVE_STATE_LIVE)
            judge(s, "between polls", info.started, info.last_number);
        if (info.state != s->told)
            violation(s->world, "the state is %s, told was %s",
                kve_state_str(info.state), kve_state_str(s->told));
    }
    atomic_store(&said->state, info.state);
    atomic_store(&said->reason, info.reason);
    atomic_store(&said->started, info.started);
    atomic_store(&said->confirmed, info.tail_confirmed);
    atomic_store(&said->last, info.last_number);
#define COUNTER(c) kve_sub_counter(s->sub, 0, KVE_COUNTER_SUB_##c)
    atomic_store(&said->lost, s->lost + COUNTER(LOST));
    atomic_store(&said->replays, COUNTER(REPLAYS));
    atomic_store(&said->probes, COUNTER(PROBES));
    atomic_store(&said->snapshots, COUNTER(SNAPSHOTS));
    atomic_store(&said->taken, COUNTER(SNAPSHOTS_TAKEN));
    atomic_store(&said->timeouts, COUNTER(REPLAY_TIMEOUTS));
#undef COUNTER
    if (atomic_fetch_add(&said->polls, 1) % 64 == 0) {
        uint64_t kib = rss_kib();

        atomic_store(&said->rss_kib, kib);
        if (kib > MAX_RSS_KIB)
            violation(s->world, "the subscriber has %" PRIu64 " KiB", kib);
    }
}

static void
follow(struct sub *s, const struct kve_position *from)
{
    const struct settings *set = &s->world->set;
    struct kve_source_opts opts = KVE_SOURCE_OPTS_INIT;
    struct kve_error err;
    char endpoint[N_DOORS][40];

    for (size_t i = 0; i < N_DOORS; i++)
        (void)snprintf(endpoint[i], sizeof(endpoint[i]), "tcp://127.0.0.1:%u",
            atomic_load(&s->world->port[i]));
    opts.endpoint = endpoint[DOOR_LIVE];
    if (set->replay)
        opts.replay_endpoint = endpoint[DOOR_REPLAY];
    if (set->snapshot)
        opts.snapshot_endpoint =
            endpoint[set->on_replay ? DOOR_REPLAY : DOOR_SNAPSHOT];
    opts.on_loss = set->on_loss;
    opts.hold_items = set->hold_items;
    opts.recv_hwm = set->recv_hwm;
    opts.replay_timeout_ms = set->replay_timeout_ms;
    opts.snapshot_timeout_ms = set->replay_timeout_ms;
    opts.tail_probe_ms = set->tail_probe_ms;
    opts.heartbeat_timeout_ms = 200;
    opts.reconnect_ms = 5;
    opts.reconnect_max_ms = 20;
    opts.resume = from;
    if (kve_sub_add(s->sub, &opts, &s->source, &err) != KVE_OK)
        violation(s->world, "no source: %s", err.detail);
}

static bool
create(struct sub *s, const struct kve_position *from)
{
    struct kve_sub_callbacks callbacks = KVE_SUB_CALLBACKS_INIT;
    struct kve_sub_opts opts = KVE_SUB_OPTS_INIT;
    struct kve_error err;

    callbacks.on_batch = on_batch;
    callbacks.on_notice = on_notice;
    callbacks.ctx = s;
    opts.threads = s->world->set.library_thread ? 1 : 0;
    if (kve_sub_create(NULL, &opts, &callbacks, &s->sub, &err) != KVE_OK) {
        violation(s->world, "no subscriber: %s", err.detail);
        return false;
    }
    follow(s, from);
    return true;
}

/* Nothing of the subscriber before is left but what was kept, and the library
 * is asked to go on from there. */
static bool
begin_anew(struct sub *s)
{
    const struct kept *kept = &s->kept;

    s->lost += kve_sub_counter(s->sub, 0, KVE_COUNTER_SUB_LOST);
    kve_sub_destroy(s->sub);
    s->sub = NULL;
    /* Its thread is gone: nothing is kept beside this any more. */
    s->lost += kept->position.degraded ? 1 : 0;
    fold_reader_release(&s->reader);
    fold_reader_init(&s->reader, kept->gpu_only);
    s->visible = s->twin = fresh;
    s->told = KVE_STATE_COLD;
    set_life(s, kept->visible != NULL ? kept->life : -1);
    if (kept->visible != NULL) {
        note(s, "\n[again from %" PRIu64 "]", kept->position.number);
        fold_destroy(s->reader.visible);
        s->reader.visible = fold_copy(kept->visible);
        s->visible = kept->copy;
    }
    atomic_store(&s->world->said.blind, s->visible.blind);
    return create(s, &kept->position);
}

/* Told to by the controller. */
static bool
begins_anew(struct sub *s)
{
    unsigned told = atomic_load(&s->world->resumes);

    if (told == atomic_load(&s->world->said.resumes))
        return true;
    if (!begin_anew(s))
        return false;
    atomic_store(&s->world->said.resumes, told);
    return true;
}

int
sub_main(struct world *world, int fd)
{
    struct sub s = { .world = world, .fd = fd, .life = -1 };
    struct kve_error err;

    s.visible = s.twin = fresh;
    s.truth = truth_create(world);
    fold_reader_init(&s.reader, false);
    note(&s, "\n[start]");
    if (!create(&s, NULL))
        return 1;
    for (;;) {
        struct pollfd fds[2] = { { fd, POLLIN, 0 },
            { kve_sub_fd(s.sub), POLLIN, 0 } };

        (void)poll(fds, world->set.library_thread ? 1 : 2,
            world->set.library_thread ? 2 : 50);
        if (fds[0].revents != 0)
            break;
        if (!begins_anew(&s))
            break;
        if (atomic_load(&world->pause)) {
            sleep_us(500);
            continue;
        }
        if (!world->set.library_thread &&
            kve_sub_poll(s.sub, 0, 0, NULL, &err) != KVE_OK) {
            violation(world, "poll: %s", err.detail);
            break;
        }
        look(&s);
    }
    kve_sub_destroy(s.sub);
    fold_reader_release(&s.reader);
    fold_destroy(s.kept.visible);
    truth_destroy(s.truth);
    (void)close(fd);
    return 0;
}
