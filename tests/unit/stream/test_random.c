/*
 * test_random.c - the machine against a world that goes wrong at random.
 *
 *     publisher --- live link ---> queue ---> machine ---> reader (a model)
 *         |     drops, cuts                    |   ^       visible, twin
 *         +---- answers: whole, cut, silent, --+---+
 *         |     thinned, repeated              |   |
 *         +---- snapshots: whole, cut, silent, +---+
 *               unavailable, spoilt, late
 *
 * A world is a publisher with lives, ids of them or none, numbers, heartbeats,
 * a bounded replay buffer, a snapshot server, numbers it used up without a
 * batch, restarts and reset messages; a live link that loses messages and
 * connections but, as TCP does, never their order; and a reader who only knows
 * what the machine told him. Words about the connection may overtake messages,
 * as the monitor of a socket overtakes its queue; requests may have to wait
 * for their turn before they are sent.
 *
 * What a reader holds is a sum over what was applied, which a clear sets to
 * zero and a snapshot to what it must be.
 *
 * Checked after each input:
 *   a  each number is applied once and in order within a life and to the copy
 *      it belongs to; one is skipped only together with a LOST notice for
 *      exactly that range
 *   b  a source that is live is complete: what is visible is the sum over all
 *      batches of the publisher's life up to the number reported; nothing of
 *      it was lost or unreadable; and what confirmed its tail was there: an
 *      answer that held nothing newer, or a message that came by this very
 *      connection
 *   c  few actions per input, a timer that always moves on, few snapshots at a
 *      time, and an end of all recovery once nothing goes wrong any more: with
 *      a healthy snapshot server this end is a live source
 *   d  the hold buffer stays within its bytes
 *   e  where the buffer is long and answers are whole, nothing is lost but
 *      what was never sent
 *   f  no twin is swapped in that a part could not be read of; stale is said
 *      of silence only, and of every silence
 *
 * What no subscriber can notice is left out, and only that:
 *   - without a replay endpoint and without ids, a publisher that restarts
 *     while we are away and is heard again with exactly the number that we
 *     expect;
 *   - a reset message that is lost, with the connection unbroken;
 *   - after a reset, a first batch 0 that is lost, where no replay has it: 1 is
 *     as good a beginning;
 *   - a reset message that is still to be read, while an answer already
 *     brings what came after it;
 *   - with tail probes off, or a publisher that keeps no batch at all, messages
 *     of the old connection that are read after the new one stands: without
 *     ids only a later probe tells them apart.
 *
 * KVE_RANDOM_STEPS and KVE_RANDOM_SEED in the environment make a longer run,
 * or the one world of a seed that failed.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "stream/machine.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEPS 2000000
#define WORLD_STEPS 250
#define QUIET_ROUNDS 3000
#define QUEUE 1024
#define BUFFER 1024
#define MAX_ACTIONS 16 /* of one message; half of the machine's own limit */
#define LIVES 1024
#define CHUNKS 3

struct rng {
    uint64_t state;
};

static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t
draw(struct rng *rng, uint64_t n)
{
    rng->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(rng->state) % n;
}

static bool
chance(struct rng *rng, unsigned percent)
{
    return draw(rng, 100) < percent;
}

/* A batch; what it holds follows from the world, its life and its number. */
struct item {
    uint64_t life;
    uint64_t number;
    uint64_t link; /* the connection that brought it */
    bool reset;
    bool has_id;
    uint8_t id[16];
};

enum ids { NO_IDS, SOME_IDS, ALL_IDS };

enum ending { WHOLE, CUT, SILENT, BROKEN, UNAVAILABLE, SPOILT, ENDINGS };

struct answer {
    uint32_t ask; /* 0: none */
    uint32_t kind;
    uint64_t from;
    bool sent;
    bool served;
    int64_t number; /* of a snapshot */
    uint64_t life;
    bool begun;
    uint64_t chunks[CHUNKS]; /* add up to what it says */
    enum ending ending;
    bool faithful;   /* nothing was left out */
    uint64_t newest; /* what comes after the newest batch there was */
    struct item items[BUFFER];
    size_t n;
    size_t at;
};

/* What a reader knows who does as he is told. */
struct copy {
    uint64_t expected;
    bool any;      /* the first number may be any */
    bool reset;    /* 1 may come first */
    uint64_t from; /* the first one that the sum is over */
    uint64_t sum;
    bool has;
    uint64_t life;
    bool mixed;
    bool lost;
    bool unreadable;
    bool spoilt; /* a part of a snapshot was unreadable */
    bool named;  /* by an id of something applied */
};

struct reader {
    struct copy visible;
    struct copy twin;
    bool hidden; /* there is a twin */
    uint32_t state;
};

struct world {
    uint64_t seed;
    struct rng rng;
    size_t steps;
    struct kve_machine *m;
    struct kve_machine_opts opts;
    struct kve_sub_counters counters;
    int64_t now;

    unsigned drop;  /* percent of live messages lost */
    unsigned fault; /* percent of answers that go wrong */
    unsigned calm;  /* percent of steps without a cut or restart */
    bool holes;
    bool contents; /* clears and unreadable batches */
    bool leftovers;
    bool resets;
    enum ids ids;
    bool beats;          /* heartbeats, of lives with ids */
    unsigned snap_fault; /* percent of snapshots that go wrong */
    unsigned wait;       /* percent of requests that wait for their turn */

    uint64_t life;
    uint64_t next;
    uint64_t starts[LIVES]; /* the first number of each life */
    size_t cap;
    struct item buffer[BUFFER];
    size_t n_buffer;

    bool up;
    bool told; /* the machine knows that the link is up */
    bool subscribed;
    uint64_t link;
    uint64_t link_life; /* the life that the link is known to carry */
    uint64_t link_next;
    bool link_heard; /* a message of this connection was handed over */
    struct item queue[QUEUE];
    size_t first;
    size_t n_queue;

    struct answer answer;
    uint32_t old_ask;
    struct reader reader;
    bool probe_end; /* the input is the end of a faithful answer */
    uint64_t newest;
    size_t asks;
    size_t snapshots;
    int64_t snapshot_at[2]; /* when the last ones were asked for */
    int64_t message_at;     /* of the last live message */
    int64_t heard_at;       /* or connection */
    uint64_t heard_life;    /* of the last live message */
    char trace[65536];
};

/* ---- telling what happened ----------------------------------------- */

static void
trace(struct world *w, const char *fmt, ...)
{
    size_t len = strlen(w->trace);
    va_list ap;

    if (len > sizeof(w->trace) - 128) {
        memmove(w->trace, w->trace + len / 2, len - len / 2 + 1);
        len -= len / 2;
    }
    va_start(ap, fmt);
    (void)vsnprintf(w->trace + len, sizeof(w->trace) - len, fmt, ap);
    va_end(ap);
}

static void
broken(const struct world *w, const char *condition)
{
    (void)fputs(w->trace, stderr);
    fail_msg(
        "seed %" PRIu64 ", step %zu: not so: %s", w->seed, w->steps, condition);
}

#define EXPECT(w, condition)       \
    do {                           \
        if (!(condition))          \
            broken(w, #condition); \
    } while (0)

/* ---- contents ------------------------------------------------------ */

static uint64_t
digest_of(uint64_t life, uint64_t number)
{
    return mix(life * 1000003 + number + 1);
}

static bool
is_hole(const struct world *w, uint64_t life, uint64_t number)
{
    return w->holes && digest_of(life, number) % 16 == 0;
}

static bool
has_id(const struct world *w, uint64_t life)
{
    return w->ids == ALL_IDS ||
        (w->ids == SOME_IDS && digest_of(life, 1000) % 2 == 0);
}

static bool
is_beat(const struct world *w, uint64_t life, uint64_t number)
{
    return w->beats && has_id(w, life) && digest_of(life, number) % 16 > 10;
}

static bool
is_clear(const struct world *w, uint64_t life, uint64_t number)
{
    return w->contents && digest_of(life, number) % 16 == 1;
}

static bool
is_unreadable(const struct world *w, uint64_t life, uint64_t number)
{
    return w->contents && digest_of(life, number) % 16 == 2;
}

/* What one batch makes of the sum of those before it. */
static uint64_t
add(const struct world *w, uint64_t sum, uint64_t life, uint64_t number)
{
    if (is_hole(w, life, number) || is_beat(w, life, number))
        return sum;
    return is_clear(w, life, number) ? 0 : sum + mix(digest_of(life, number));
}

/* Of all the batches from..next-1 of a life. */
static uint64_t
sum_of(const struct world *w, uint64_t life, uint64_t from, uint64_t next)
{
    uint64_t sum = 0;

    for (uint64_t n = from; n < next; n++)
        sum = add(w, sum, life, n);
    return sum;
}

/* ---- the reader ---------------------------------------------------- */

static struct copy *
current(struct world *w)
{
    return w->reader.hidden ? &w->reader.twin : &w->reader.visible;
}

static void
on_chunk(struct world *w, const struct kve_action *a)
{
    struct copy *r = &w->reader.twin;
    uint64_t value;

    EXPECT(w, w->reader.hidden && a->hidden);
    EXPECT(w, a->msg.number == (uint64_t)w->answer.number);
    EXPECT(w, a->msg.publisher_id != NULL);
    memcpy(&value, a->msg.payload.data, sizeof(value));
    trace(w, " chunk");
    r->sum += value;
    if (w->answer.ending == SPOILT && w->answer.at == w->answer.n) {
        r->spoilt = true;
        kve_machine_unreadable(w->m, w->now);
    }
}

static void
on_apply(struct world *w, const struct kve_action *a)
{
    const struct kve_machine_msg *msg = &a->msg;
    struct copy *r = current(w);
    uint64_t life;

    EXPECT(w, a->hidden == w->reader.hidden);
    EXPECT(w, msg->payload.len == sizeof(life));
    memcpy(&life, msg->payload.data, sizeof(life));
    EXPECT(w, msg->digest == digest_of(life, msg->number));
    trace(w, " apply%" PRIu64 "/%" PRIu64, msg->number, life);
    if (r->reset && msg->number == 1)
        r->expected = 1;
    if (!r->any)
        EXPECT(w, msg->number == r->expected);
    if (r->has && r->life != life)
        r->mixed = true;
    if (!r->has)
        r->from = msg->number;
    r->has = true;
    r->any = false;
    r->reset = false;
    r->life = life;
    r->expected = msg->number + 1;
    r->named = r->named || msg->publisher_id != NULL;
    r->sum = add(w, r->sum, life, msg->number);
    if (is_clear(w, life, msg->number)) {
        r->mixed = false;
        r->from = msg->number;
        /* It empties one tier only where there is an id. */
        if (!has_id(w, life)) {
            r->lost = false;
            r->unreadable = false;
        }
        kve_machine_cleared(w->m, w->now);
    } else if (is_unreadable(w, life, msg->number)) {
        r->unreadable = true;
        kve_machine_unreadable(w->m, w->now);
    }
}

/* In any life: an answer may come from one before the publisher's. */
static bool
was_a_hole(const struct world *w, uint64_t number)
{
    for (uint64_t life = 0; life <= w->life; life++)
        if (is_hole(w, life, number))
            return true;
    return false;
}

/* Whether a message of the old connection can be told from others. */
static bool
can_tell(const struct world *w)
{
    return w->ids == ALL_IDS ||
        (w->opts.has_replay && w->cap > 0 &&
            w->opts.tail_probe_ns != KVE_NEVER);
}

static void
on_lost(struct world *w, const struct kve_action *a)
{
    struct copy *r = current(w);

    trace(w, " lost%" PRIu64 "-%" PRIu64, a->first, a->last);
    EXPECT(w, a->first == r->expected && a->last >= a->first);
    r->lost = true;
    r->expected = a->last + 1;
    if (!w->told || !w->opts.has_replay || w->cap < BUFFER || !can_tell(w) ||
        w->opts.tail_probe_ns == KVE_NEVER || w->fault > 0 || w->resets)
        return;
    for (uint64_t n = a->first; n <= a->last; n++)
        EXPECT(w, was_a_hole(w, n));
}

static void
on_clear(struct world *w, uint32_t reason)
{
    struct copy *r = &w->reader.visible;

    trace(w, " clear:%s", kve_reason_str(reason));
    EXPECT(w, !w->reader.hidden);
    EXPECT(w, reason != KVE_REASON_LOST || !w->opts.has_replay);
    r->has = false;
    r->named = false;
    r->sum = 0;
    r->mixed = false;
    r->lost = reason == KVE_REASON_LOST;
    r->unreadable = false;
    if (reason == KVE_REASON_LOST)
        return;
    r->expected = 0;
    r->any = false;
    r->reset = reason == KVE_REASON_RESET;
}

/* What a snapshot's twin holds next is set when it ended. */
static void
on_begin(struct world *w, uint32_t reason)
{
    struct copy twin = *current(w);

    trace(w, " begin:%s", kve_reason_str(reason));
    twin.sum = 0;
    twin.has = false;
    twin.mixed = false;
    twin.unreadable = false;
    twin.spoilt = false;
    twin.lost = reason == KVE_REASON_LOST;
    if (reason == KVE_REASON_GAP) { /* before the first number there was one */
        twin.expected = 0;
        twin.any = false;
    }
    w->reader.twin = twin;
    w->reader.hidden = true;
}

static void
on_swap(struct world *w)
{
    trace(w, " swap");
    EXPECT(w, w->reader.hidden);
    EXPECT(w, !w->reader.twin.spoilt);
    /* What is shown of a life never goes back. */
    if (w->reader.visible.has && w->reader.visible.named &&
        w->reader.twin.life == w->reader.visible.life)
        EXPECT(w, w->reader.twin.expected >= w->reader.visible.expected);
    w->reader.visible = w->reader.twin;
    w->reader.hidden = false;
}

static void
on_abort(struct world *w)
{
    trace(w, " abort");
    EXPECT(w, w->reader.hidden);
    w->reader.hidden = false;
}

/* No more than two within a second: what does not help is not asked for again
 * and again. */
static void
on_ask_snapshot(struct world *w)
{
    EXPECT(w, w->opts.has_snapshot);
    if (w->snapshots > 1)
        EXPECT(w, w->now - w->snapshot_at[0] >= 1000 * KVE_MS);
    w->snapshot_at[0] = w->snapshot_at[1];
    w->snapshot_at[1] = w->now;
    w->snapshots++;
}

static void
send_ask(struct world *w)
{
    if (w->answer.ask == 0 || w->answer.sent)
        return;
    w->answer.sent = true;
    kve_machine_asked(w->m, w->now, w->answer.ask);
}

static void
on_ask(struct world *w, const struct kve_action *a)
{
    static const char *const names[] = { [KVE_ASK_REPLAY] = "ask",
        [KVE_ASK_PROBE] = "probe",
        [KVE_ASK_SNAPSHOT] = "snapshot" };

    trace(w, " %s%" PRIu64, names[a->kind], a->first);
    EXPECT(w, w->answer.ask == 0);
    if (a->kind == KVE_ASK_SNAPSHOT)
        on_ask_snapshot(w);
    else
        EXPECT(w, w->opts.has_replay);
    memset(&w->answer, 0, offsetof(struct answer, items));
    w->answer.n = 0;
    w->answer.at = 0;
    w->answer.ask = a->ask;
    w->answer.kind = a->kind;
    w->answer.from = a->first;
    w->asks += a->kind != KVE_ASK_PROBE;
    if (!chance(&w->rng, w->wait))
        send_ask(w);
}

static void
execute(struct world *w, const struct kve_action *a)
{
    switch (a->type) {
    case KVE_ACTION_APPLY:
        if (a->snapshot)
            on_chunk(w, a);
        else
            on_apply(w, a);
        break;
    case KVE_ACTION_ASK:
        on_ask(w, a);
        break;
    case KVE_ACTION_STOP:
        EXPECT(w, a->ask == w->answer.ask && a->kind == w->answer.kind);
        trace(w, " stop");
        w->old_ask = a->ask;
        w->answer.ask = 0;
        break;
    case KVE_ACTION_CLEAR:
        on_clear(w, a->reason);
        break;
    case KVE_ACTION_BEGIN:
        on_begin(w, a->reason);
        break;
    case KVE_ACTION_SWAP:
        on_swap(w);
        break;
    case KVE_ACTION_ABORT:
        on_abort(w);
        break;
    case KVE_ACTION_STATE:
        EXPECT(w, a->old_state == w->reader.state);
        w->reader.state = a->state;
        trace(w, " %s:%s", kve_state_str(a->state), kve_reason_str(a->reason));
        break;
    case KVE_ACTION_NOTICE:
        if (a->notice == KVE_NOTICE_LOST)
            on_lost(w, a);
        break;
    }
}

/* Where a replay has everything it tells whether a life began with 0. */
static bool
can_check_first(const struct world *w)
{
    return w->opts.has_replay && w->cap == BUFFER && w->fault == 0;
}

/* What is visible is what the publisher made it, up to the number told. */
static void
check_whole(struct world *w, const struct kve_source_info *info)
{
    const struct copy *r = &w->reader.visible;

    EXPECT(w, !r->lost);
    EXPECT(w, !r->unreadable);
    if (!r->has)
        return;
    EXPECT(w, info->started && info->last_number + 1 == r->expected);
    if (!can_tell(w) ||
        (w->ids != ALL_IDS && w->life > w->link_life && w->resets))
        return;
    EXPECT(w, !r->mixed);
    EXPECT(w, r->life <= w->life);
    EXPECT(w, r->life >= (has_id(w, r->life) ? w->heard_life : w->link_life));
    EXPECT(w, r->sum == sum_of(w, r->life, r->from, r->expected));
    if (w->opts.start == KVE_START_DEFAULT &&
        (can_check_first(w) || !w->resets || r->from != 1))
        EXPECT(
            w, r->sum == sum_of(w, r->life, w->starts[r->life], r->expected));
}

static void
check_live(struct world *w, const struct kve_source_info *info)
{
    const struct copy *r = &w->reader.visible;

    EXPECT(w, w->told);
    EXPECT(w, !w->reader.hidden);
    check_whole(w, info);
    if (!info->tail_confirmed || w->opts.tail_probe_ns == KVE_NEVER)
        return;
    if (info->confirmed_at_ns == w->now && w->probe_end && !w->link_heard)
        EXPECT(w, r->expected >= w->newest);
    if (w->ids != NO_IDS && (w->leftovers || !w->opts.has_replay))
        return; /* an id proves the life; what came before it is not asked */
    if (info->confirmed_at_ns == w->now && w->fault == 0)
        EXPECT(w, w->probe_end || w->link_heard);
    /* What was published before the connection stood. */
    if (w->fault == 0 && w->opts.start != KVE_START_LIVE && r->has &&
        r->life == w->link_life)
        EXPECT(w, r->expected >= w->link_next || w->cap == 0);
}

/* Pull everything that an input brought about. */
static void
pull(struct world *w)
{
    struct kve_source_info info;
    struct kve_action a;
    size_t n = 0;
    size_t room = MAX_ACTIONS;

    while (kve_machine_next(w->m, &a)) {
        /* A held message that is applied may bring actions of its own. */
        if (a.type == KVE_ACTION_APPLY)
            room += MAX_ACTIONS;
        EXPECT(w, ++n <= room + w->n_queue);
        execute(w, &a);
    }
    EXPECT(w, kve_machine_held_bytes(w->m) <= w->opts.hold_bytes);
    memset(&info, 0, sizeof(info));
    kve_machine_info(w->m, &info);
    EXPECT(w, info.state == w->reader.state);
    EXPECT(w, info.connected == w->told);
    EXPECT(w, info.building == w->reader.hidden);
    if (info.tail_confirmed)
        EXPECT(w, w->told && (w->opts.has_replay || info.heartbeats));
    if (info.stale)
        EXPECT(w, w->now - w->message_at >= w->opts.heartbeat_timeout_ns);
    if (info.state == KVE_STATE_LIVE)
        check_live(w, &info);
    w->probe_end = false;
}

/* ---- the publisher ------------------------------------------------- */

static struct item
item_of(const struct world *w, uint64_t life, uint64_t number, uint64_t link)
{
    struct item item = { life, number, link, false, has_id(w, life), { 0 } };

    for (size_t i = 0; i < sizeof(item.id); i++)
        item.id[i] = (uint8_t)(mix(life + 1) >> (i % 8 * 8));
    /* The id stands behind what could not be read. */
    if (is_unreadable(w, life, number) && digest_of(life, number) % 32 == 2)
        item.has_id = false;
    return item;
}

static void
publish(struct world *w, unsigned drop)
{
    struct item item = item_of(w, w->life, w->next++, w->link);

    if (is_hole(w, item.life, item.number))
        return;
    if (w->n_buffer == w->cap && w->cap > 0) {
        memmove(w->buffer, w->buffer + 1, (w->cap - 1) * sizeof(item));
        w->n_buffer--;
    }
    if (w->n_buffer < w->cap)
        w->buffer[w->n_buffer++] = item;
    if (w->up && w->subscribed && w->n_queue < QUEUE && !chance(&w->rng, drop))
        w->queue[(w->first + w->n_queue++) % QUEUE] = item;
}

/* What comes after the newest batch that is kept. */
static uint64_t
buffered_up_to(const struct world *w)
{
    return w->n_buffer == 0 ? 0 : w->buffer[w->n_buffer - 1].number + 1;
}

static void
restart(struct world *w)
{
    uint64_t n =
        draw(&w->rng, 4) == 0 ? w->next + draw(&w->rng, 3) : draw(&w->rng, 40);

    w->life++;
    assert_true(w->life < LIVES);
    w->next = 0;
    w->n_buffer = 0;
    trace(w, "\nrestart/%" PRIu64 "(%" PRIu64 ")", w->life, n);
    while (n-- > 0)
        publish(w, 0);
}

/* The reset message itself is never lost, nor is the batch after it where
 * nothing tells that it was. */
static void
reset(struct world *w)
{
    struct item item = { 0 };

    if (!w->up || !w->subscribed || w->n_queue + 2 > QUEUE)
        return;
    w->life++;
    assert_true(w->life < LIVES);
    w->next = draw(&w->rng, 2);
    w->starts[w->life] = w->next;
    w->n_buffer = 0;
    item.life = w->life;
    item.link = w->link;
    item.reset = true;
    trace(w, "\nreset/%" PRIu64, w->life);
    w->queue[(w->first + w->n_queue++) % QUEUE] = item;
    if (is_hole(w, w->life, w->next))
        w->next++;
    if (w->next < 2)
        publish(w, can_check_first(w) ? w->drop : 0);
}

/* ---- the live link ------------------------------------------------- */

static struct kve_machine_msg
message(const struct world *w, const struct item *item)
{
    struct kve_machine_msg msg = { item->number,
        digest_of(item->life, item->number), { NULL, 0 },
        { (const uint8_t *)&item->life, sizeof(item->life) },
        item->has_id ? item->id : NULL, is_beat(w, item->life, item->number) };

    return msg;
}

/* Hand over the oldest message of the queue. */
static void
deliver(struct world *w)
{
    if (w->n_queue == 0)
        return;

    struct item item = w->queue[w->first];
    struct kve_machine_msg msg = message(w, &item);
    w->first = (w->first + 1) % QUEUE;
    w->n_queue--;
    w->link_heard = w->link_heard || (w->up && item.link == w->link);
    if (item.reset) {
        trace(w, "\nX");
        if (w->up && item.link == w->link)
            w->link_life = item.life;
        w->link_next = 0;
        kve_machine_reset(w->m, w->now);
    } else {
        trace(w, "\nL%" PRIu64 "/%" PRIu64 "%s%s", item.number, item.life,
            item.has_id ? "i" : "", msg.empty ? "h" : "");
        w->message_at = w->now;
        w->heard_at = w->now;
        if (item.has_id)
            w->heard_life = item.life;
        kve_machine_live(w->m, w->now, &msg);
    }
    pull(w);
    memset(&item, 0xee, sizeof(item)); /* what was borrowed is gone */
}

static void
tell_up(struct world *w)
{
    if (!w->up || w->told)
        return;
    w->told = true;
    w->heard_at = w->now;
    trace(w, "\nC");
    kve_machine_connected(w->m, w->now);
    pull(w);
}

static void
go_up(struct world *w)
{
    if (w->up)
        return;
    w->up = true;
    w->link++;
    w->link_life = w->life;
    w->link_next = buffered_up_to(w);
    w->link_heard = false;
    w->subscribed = chance(&w->rng, 50);
    /* The first word of a connection may come late; a later one cannot. */
    if (w->link > 1 || chance(&w->rng, 80))
        tell_up(w);
}

static void
go_down(struct world *w)
{
    if (!w->up)
        return;
    tell_up(w);
    while (w->resets && w->n_queue > 0)
        deliver(w); /* no reset message is lost */
    w->up = false;
    w->told = false;
    w->subscribed = false;
    if (!w->leftovers ||
        (w->ids != ALL_IDS &&
            (w->opts.tail_probe_ns == KVE_NEVER || w->cap == 0)))
        w->n_queue = 0;
    trace(w, "\nD");
    kve_machine_disconnected(w->m, w->now);
    pull(w);
}

/* ---- answers ------------------------------------------------------- */

static void
serve_replay(struct world *w, unsigned fault)
{
    struct answer *a = &w->answer;
    bool wrong = chance(&w->rng, fault);

    a->ending = !wrong ? WHOLE : (enum ending)draw(&w->rng, UNAVAILABLE);
    a->faithful = !wrong;
    a->newest = buffered_up_to(w);
    for (size_t i = 0; i < w->n_buffer; i++) {
        const struct item *item = &w->buffer[i];
        /* Some answer with more than was asked for. */
        bool wanted = item->number >= a->from || (w->seed % 16 == 5);
        if (wanted && a->n + 2 < BUFFER && !(wrong && chance(&w->rng, 20)))
            a->items[a->n++] = *item;
        if (wrong && a->n > 0 && chance(&w->rng, 10))
            a->items[a->n] = a->items[draw(&w->rng, a->n)], a->n++;
    }
    if (wrong && a->ending != WHOLE && a->n > 0)
        a->n = draw(&w->rng, a->n);
    /* A full queue drops what comes last; it is never all of an answer. */
    if (wrong && a->n == 0)
        a->ending = SILENT;
}

/* What the publisher's recorder has folded by now: all, or not the last few. */
static void
serve_snapshot(struct world *w, unsigned fault)
{
    struct answer *a = &w->answer;
    bool wrong = chance(&w->rng, fault);
    uint64_t lag = chance(&w->rng, fault) ? draw(&w->rng, 4) : 0;
    uint64_t start = w->starts[w->life];

    a->ending = !wrong ? WHOLE : (enum ending)(1 + draw(&w->rng, ENDINGS - 1));
    if (!has_id(w, w->life))
        a->ending = chance(&w->rng, 50) ? BROKEN : SILENT;
    a->life = w->life;
    a->number = -1;
    if (w->next - start > lag)
        a->number = (int64_t)(w->next - lag) - 1;
    if (a->number < 0)
        return;
    uint64_t rest = sum_of(w, w->life, start, w->next - lag);
    a->n = draw(&w->rng, CHUNKS + 1);
    if (a->n == 0 && rest != 0)
        a->n = 1;
    if (a->n == 0 && a->ending == SPOILT)
        a->ending = CUT;
    for (size_t i = 0; i + 1 < a->n; i++) {
        a->chunks[i] = draw(&w->rng, UINT64_MAX);
        rest -= a->chunks[i];
    }
    if (a->n > 0)
        a->chunks[a->n - 1] = rest;
}

static void
serve(struct world *w, unsigned fault, unsigned snap_fault)
{
    if (w->answer.ask == 0 || !w->answer.sent || w->answer.served)
        return;
    w->answer.served = true;
    if (w->answer.kind == KVE_ASK_SNAPSHOT)
        serve_snapshot(w, snap_fault);
    else
        serve_replay(w, fault);
}

static void
begin_snapshot(struct world *w)
{
    struct answer *a = &w->answer;
    struct item item = item_of(w, a->life, 0, 0);
    int64_t number = a->ending == UNAVAILABLE ? -2 : a->number;

    a->begun = true;
    trace(w, "\nS%" PRId64 "/%" PRIu64, number, a->life);
    kve_machine_snapshot_begin(w->m, w->now, a->ask, number, item.id);
}

/* The reader's twin says what the snapshot said. */
static void
end_snapshot(struct world *w)
{
    const struct answer *a = &w->answer;
    struct copy *twin = &w->reader.twin;

    trace(w, "\nSE");
    EXPECT(w, w->reader.hidden);
    twin->any = false;
    twin->reset = false;
    twin->from = w->starts[a->life];
    twin->expected = (uint64_t)(a->number + 1);
    twin->has = a->number >= 0;
    twin->life = a->life;
    kve_machine_snapshot_end(w->m, w->now, a->ask);
}

static void
snapshot_more(struct world *w)
{
    struct answer *a = &w->answer;

    if (a->ending == SILENT) {
        return;
    } else if (a->ending == BROKEN) {
        trace(w, "\nSF");
        kve_machine_snapshot_failed(w->m, w->now, a->ask);
    } else if (!a->begun) {
        begin_snapshot(w);
    } else if (a->at < a->n) {
        uint64_t value = a->chunks[a->at++];
        struct kve_machine_msg msg = { 0, 0, { NULL, 0 },
            { (const uint8_t *)&value, sizeof(value) }, NULL, false };
        trace(w, "\nSC");
        kve_machine_snapshot_chunk(w->m, w->now, a->ask, &msg);
        pull(w);
        value = 0xeeeeeeee;
        return;
    } else if (a->ending == CUT) {
        return;
    } else {
        end_snapshot(w);
    }
    pull(w);
}

static void
replay_more(struct world *w)
{
    struct answer *a = &w->answer;
    struct item item;

    if (a->at < a->n) {
        item = a->items[a->at++];
        struct kve_machine_msg msg = message(w, &item);
        trace(w, "\nR%" PRIu64 "/%" PRIu64 "%s", item.number, item.life,
            item.has_id ? "i" : "");
        kve_machine_replay(w->m, w->now, a->ask, &msg);
    } else if (a->ending == WHOLE) {
        w->probe_end = a->faithful;
        w->newest = a->newest;
        trace(w, "\nE");
        kve_machine_replay_end(w->m, w->now, a->ask);
    } else if (a->ending == BROKEN) {
        trace(w, "\nF");
        kve_machine_replay_failed(w->m, w->now, a->ask);
    } else {
        return; /* only the time-out ends it */
    }
    pull(w);
    memset(&item, 0xee, sizeof(item)); /* what was borrowed is gone */
}

static void
answer_more(struct world *w)
{
    if (w->answer.ask == 0 || !w->answer.served)
        return;
    if (w->answer.kind == KVE_ASK_SNAPSHOT)
        snapshot_more(w);
    else
        replay_more(w);
}

/* Nothing more comes of it but the time-out. */
static bool
is_stuck(const struct world *w)
{
    const struct answer *a = &w->answer;

    if (a->ask == 0 || !a->served)
        return false;
    if (a->kind == KVE_ASK_SNAPSHOT && a->ending == SILENT)
        return true;
    return a->at == a->n && (a->ending == CUT || (a->ending == SILENT));
}

/* Late frames of a request that is over change nothing. */
static void
answer_late(struct world *w)
{
    struct item item = item_of(w, w->life, draw(&w->rng, w->next + 1), 0);
    struct kve_machine_msg msg = message(w, &item);
    struct kve_action a;

    if (w->old_ask == 0 || w->old_ask == w->answer.ask)
        return;
    kve_machine_replay(w->m, w->now, w->old_ask, &msg);
    EXPECT(w, !kve_machine_next(w->m, &a));
    kve_machine_replay_end(w->m, w->now, w->old_ask);
    EXPECT(w, !kve_machine_next(w->m, &a));
    kve_machine_snapshot_begin(w->m, w->now, w->old_ask, 7, item.id);
    kve_machine_snapshot_chunk(w->m, w->now, w->old_ask, &msg);
    kve_machine_snapshot_end(w->m, w->now, w->old_ask);
    kve_machine_snapshot_failed(w->m, w->now, w->old_ask);
    EXPECT(w, !kve_machine_next(w->m, &a));
    /* Nor does an answer to the wrong question. */
    if (w->answer.ask == 0)
        return;
    if (w->answer.kind == KVE_ASK_SNAPSHOT) {
        kve_machine_replay(w->m, w->now, w->answer.ask, &msg);
        kve_machine_replay_end(w->m, w->now, w->answer.ask);
        kve_machine_replay_failed(w->m, w->now, w->answer.ask);
    } else {
        kve_machine_snapshot_begin(w->m, w->now, w->answer.ask, 7, item.id);
        kve_machine_snapshot_end(w->m, w->now, w->answer.ask);
        kve_machine_snapshot_failed(w->m, w->now, w->answer.ask);
    }
    EXPECT(w, !kve_machine_next(w->m, &a));
}

/* ---- time ---------------------------------------------------------- */

static void
check_stale(struct world *w)
{
    struct kve_source_info info;

    memset(&info, 0, sizeof(info));
    kve_machine_info(w->m, &info);
    if (info.heartbeats && w->told &&
        w->opts.heartbeat_timeout_ns != KVE_NEVER &&
        w->now - w->heard_at >= w->opts.heartbeat_timeout_ns)
        EXPECT(w, info.stale);
}

/* Does the answer under way come at once? */
static bool
is_prompt(const struct world *w)
{
    return w->answer.ask != 0 && !is_stuck(w) &&
        (w->answer.kind == KVE_ASK_SNAPSHOT ? w->snap_fault == 0
                                            : w->fault == 0);
}

/* Up to the next deadline. Messages do not wait that long, nor do answers
 * where none goes wrong. */
static void
pass_time(struct world *w)
{
    while (w->n_queue > 0)
        deliver(w);
    send_ask(w);
    while (is_prompt(w)) {
        send_ask(w);
        serve(w, 0, 0);
        answer_more(w);
    }

    int64_t deadline = kve_machine_deadline(w->m);
    if (deadline == KVE_NEVER)
        return;
    if (deadline > w->now)
        w->now = deadline;
    /* A request that is over may be followed by one that is due, and silence
     * be noticed; no more. */
    for (int i = 0; kve_machine_deadline(w->m) <= w->now; i++) {
        EXPECT(w, i < 3);
        trace(w, "\nT");
        kve_machine_timer(w->m, w->now);
        pull(w);
    }
    check_stale(w);
}

/* ---- worlds -------------------------------------------------------- */

static void
create(struct world *w, uint64_t seed)
{
    static const size_t caps[] = { 0, 1, 4, 16, BUFFER, BUFFER };
    static const unsigned rates[] = { 0, 0, 10, 30, 60 };
    struct rng *rng = &w->rng;
    struct kve_machine_opts *o = &w->opts;

    memset(w, 0, sizeof(*w));
    w->seed = seed;
    rng->state = mix(seed + 1);
    w->now = KVE_MS;
    w->drop = rates[draw(rng, 5)];
    w->fault = rates[draw(rng, 5)];
    w->calm = 80 + (unsigned)draw(rng, 20);
    w->holes = chance(rng, 30);
    w->contents = chance(rng, 30);
    w->leftovers = chance(rng, 50);
    w->resets = chance(rng, 20);
    w->ids = (enum ids)draw(rng, 3);
    w->beats = chance(rng, 50);
    w->snap_fault = rates[draw(rng, 5)];
    w->wait = chance(rng, 20) ? 50 : 0;
    w->cap = caps[draw(rng, 6)];
    o->has_replay = chance(rng, 85);
    o->has_snapshot = chance(rng, 50);
    if (o->has_snapshot && chance(rng, 30))
        o->has_replay = false;
    o->rebuild = chance(rng, 50);
    o->start = chance(rng, 80)              ? KVE_START_DEFAULT
        : chance(rng, 50) || !o->has_replay ? KVE_START_LIVE
                                            : KVE_START_NUMBER;
    o->first_number = draw(rng, 20);
    o->hold_items = chance(rng, 50) ? 1 + (uint32_t)draw(rng, 5) : 1000;
    o->hold_bytes = chance(rng, 80) ? 1 << 20 : 300;
    o->replay_timeout_ns = 5000 * KVE_MS;
    o->snapshot_timeout_ns = 5000 * KVE_MS;
    o->heartbeat_timeout_ns = chance(rng, 80) ? 5000 * KVE_MS : KVE_NEVER;
    o->tail_probe_ns = chance(rng, 90) ? 500 * KVE_MS : KVE_NEVER;
    o->counters = &w->counters;
    w->reader.visible.any = o->start == KVE_START_LIVE;
    w->reader.visible.expected =
        o->start == KVE_START_NUMBER ? o->first_number : 0;
    for (uint64_t n = draw(rng, 3) * draw(rng, 30); n > 0; n--)
        publish(w, 0);
    assert_int_equal(kve_machine_create(o, &w->m, NULL), KVE_OK);
}

static void
disturb(struct world *w)
{
    switch (draw(&w->rng, 4)) {
    case 0:
        go_down(w);
        break;
    case 1: /* a restart is always a broken connection */
        go_down(w);
        restart(w);
        break;
    case 2:
        if (w->resets)
            reset(w);
        break;
    default:
        answer_late(w);
        break;
    }
}

static void
step(struct world *w)
{
    w->steps++;
    w->now += KVE_MS;
    if (!chance(&w->rng, w->calm)) {
        disturb(w);
        return;
    }
    switch (draw(&w->rng, 12)) {
    case 0:
    case 1:
    case 2:
        publish(w, w->drop);
        break;
    case 3:
    case 4:
    case 5:
        deliver(w);
        break;
    case 6:
        send_ask(w);
        serve(w, w->fault, w->snap_fault);
        break;
    case 7:
    case 8:
    case 9:
        answer_more(w);
        break;
    case 10:
        go_up(w);
        w->subscribed = w->up && (w->subscribed || w->told);
        break;
    default:
        tell_up(w);
        pass_time(w);
        break;
    }
}

/* All that goes on is a request for a snapshot, once a minute. */
static bool
is_patient(const struct world *w)
{
    return w->answer.ask != 0 && w->answer.kind == KVE_ASK_SNAPSHOT &&
        w->snapshot_at[1] - w->snapshot_at[0] >= 60000 * KVE_MS;
}

/* From now on nothing goes wrong; does it come to rest? */
static void
rest(struct world *w)
{
    size_t rounds = 0;
    unsigned still = 0;

    w->asks = 0;
    while (still < 3) {
        bool moved = w->n_queue > 0 || w->answer.ask != 0;
        w->now += KVE_MS;
        EXPECT(w, ++rounds < QUIET_ROUNDS);
        while (w->n_queue > 0)
            deliver(w);
        send_ask(w);
        serve(w, 0, 0);
        answer_more(w);
        if (!moved && w->answer.ask == 0) {
            pass_time(w);
            still += w->reader.state == KVE_STATE_LIVE ||
                w->reader.state == KVE_STATE_DEGRADED ||
                kve_machine_deadline(w->m) == KVE_NEVER || is_patient(w);
        }
        if (is_stuck(w))
            pass_time(w);
    }
    EXPECT(w, w->asks < 300);
}

/* A batch that is not a hole, and time to take it. */
static void
one_more(struct world *w)
{
    do
        publish(w, 0);
    while (is_hole(w, w->life, w->next - 1));
    rest(w);
}

/* A snapshot server that always answers makes everything whole in the end. */
static void
check_mended(struct world *w)
{
    w->fault = 0;
    w->snap_fault = 0;
    for (int i = 0; i < 30 && w->reader.state != KVE_STATE_LIVE; i++)
        rest(w);
    /* Nothing but a message tells that nothing followed. */
    for (int i = 0; i < 30 && w->reader.state != KVE_STATE_LIVE; i++)
        one_more(w);
    /* Without probes nothing mends a replay endpoint that failed. */
    if (w->opts.has_replay && w->opts.tail_probe_ns == KVE_NEVER)
        EXPECT(w, !w->reader.visible.lost && !w->reader.visible.unreadable);
    else
        EXPECT(w, w->reader.state == KVE_STATE_LIVE);
}

static void
check_gone(struct world *w)
{
    struct item item = item_of(w, w->life, w->next, w->link);
    struct kve_machine_msg msg = message(w, &item);
    struct kve_action a;

    trace(w, "\ngone");
    kve_machine_gone(w->m, w->now, KVE_REASON_SILENT);
    w->told = false;
    pull(w);
    EXPECT(w, w->reader.state == KVE_STATE_GONE);
    EXPECT(w, !w->reader.hidden && w->answer.ask == 0);
    kve_machine_connected(w->m, w->now);
    kve_machine_live(w->m, w->now, &msg);
    kve_machine_reset(w->m, w->now);
    kve_machine_timer(w->m, w->now);
    EXPECT(w, !kve_machine_next(w->m, &a));
    EXPECT(w, kve_machine_deadline(w->m) == KVE_NEVER);
    EXPECT(w, kve_machine_held_bytes(w->m) == 0);
}

static void
finish(struct world *w)
{
    trace(w, "\nquiet");
    go_up(w);
    w->subscribed = true;
    tell_up(w);
    rest(w);
    for (int i = 0; i < 2; i++)
        one_more(w);
    const struct copy *r = &w->reader.visible;
    /* Of a publisher that keeps nothing a leftover that could not be read may
     * have been taken for its: that is degraded, and found out by silence. */
    if (w->cap > 0 || w->ids == NO_IDS ||
        w->reader.state != KVE_STATE_DEGRADED) {
        EXPECT(w, r->expected == w->next);
        EXPECT(w, r->life == w->life);
    }
    /* With snapshots one may be what is waited for, or what follows one. */
    EXPECT(w,
        w->reader.state == KVE_STATE_LIVE ||
            w->reader.state == KVE_STATE_DEGRADED || w->opts.has_snapshot);
    if (w->reader.state == KVE_STATE_DEGRADED &&
        w->opts.tail_probe_ns != KVE_NEVER && w->cap == BUFFER &&
        w->fault == 0 && w->opts.has_replay && !w->resets)
        EXPECT(w, r->lost || r->unreadable || r->mixed);
    if (w->opts.has_snapshot && has_id(w, w->life))
        check_mended(w);
}

static size_t
run_world(uint64_t seed)
{
    static struct world w;

    create(&w, seed);
    while (w.steps < WORLD_STEPS)
        step(&w);
    if (chance(&w.rng, 80))
        finish(&w);
    check_gone(&w);
    kve_machine_destroy(w.m);
    return w.steps;
}

static void
test_random_worlds(void **state)
{
    const char *steps = getenv("KVE_RANDOM_STEPS");
    const char *seed = getenv("KVE_RANDOM_SEED");
    uint64_t want = steps != NULL ? strtoull(steps, NULL, 10) : STEPS;
    uint64_t done = 0;

    (void)state;
    if (seed != NULL) {
        (void)run_world(strtoull(seed, NULL, 10));
        return;
    }
    for (uint64_t i = 0; done < want; i++)
        done += run_world(i);
    assert_int_equal(kve_mem_live(), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_worlds),
    };

    return cmocka_run_group_tests_name("stream/random", tests, NULL, NULL);
}
