/*
 * test_random.c - the machine against a world that goes wrong at random.
 *
 *     publisher --- live link ---> queue ---> machine ---> reader (a model)
 *         |     drops, cuts                    |   ^
 *         +---- answers: whole, cut, silent, --+---+
 *               thinned, repeated
 *
 * A world is a publisher with lives, numbers, a bounded replay buffer, numbers
 * it used up without a batch, restarts and reset messages; a live link that
 * loses messages and connections but, as TCP does, never their order; and a
 * reader who only knows what the machine told him. Words about the connection
 * may overtake messages, as the monitor of a socket overtakes its queue.
 *
 * Checked after each input:
 *   a  each number is applied once and in order within a life; one is skipped
 *      only together with a LOST notice for exactly that range
 *   b  a source that is live is complete: nothing lost or unreadable since the
 *      last clear, one life only, the publisher's; and what confirmed its tail
 *      was there: an answer that held nothing newer, or a message that came by
 *      this very connection
 *   c  few actions per input, a timer that always moves on, and an end of all
 *      recovery once nothing goes wrong any more
 *   d  the hold buffer stays within its bytes
 *   e  where the buffer is long and answers are whole, nothing is lost but
 *      what was never sent
 *
 * What no subscriber can notice is left out, and only that:
 *   - without a replay endpoint, a publisher that restarts while we are away
 *     and is heard again with exactly the number that we expect;
 *   - a reset message that is lost, with the connection unbroken;
 *   - after a reset, a first batch 0 that is lost: 1 is as good a beginning;
 *   - a reset message that is still to be read, while an answer already
 *     brings what came after it;
 *   - with tail probes off, or a publisher that keeps no batch at all, messages
 *     of the old connection that are read after the new one stands: only a
 *     later probe tells them apart.
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
#define MAX_ACTIONS 16 /* of one message; the machine's own limit */

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
};

enum ending { WHOLE, CUT, SILENT, BROKEN };

struct answer {
    uint32_t ask; /* 0: none */
    uint64_t from;
    bool served;
    enum ending ending;
    bool faithful;   /* nothing was left out */
    uint64_t newest; /* what comes after the newest batch there was */
    struct item items[BUFFER];
    size_t n;
    size_t at;
};

/* What a reader knows who does as he is told. */
struct reader {
    uint64_t expected;
    bool any;   /* the first number may be any */
    bool reset; /* 1 may come first */
    bool has;
    uint64_t life;
    bool mixed;
    bool lost;
    bool unreadable;
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

    uint64_t life;
    uint64_t next;
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
    char trace[8192];
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
is_clear(const struct world *w, uint64_t life, uint64_t number)
{
    return w->contents && digest_of(life, number) % 16 == 1;
}

static bool
is_unreadable(const struct world *w, uint64_t life, uint64_t number)
{
    return w->contents && digest_of(life, number) % 16 == 2;
}

/* ---- the reader ---------------------------------------------------- */

static void
on_apply(struct world *w, const struct kve_machine_msg *msg)
{
    struct reader *r = &w->reader;
    uint64_t life;

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
    r->has = true;
    r->any = false;
    r->reset = false;
    r->life = life;
    r->expected = msg->number + 1;
    if (is_clear(w, life, msg->number)) {
        r->lost = false;
        r->unreadable = false;
        r->mixed = false;
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
    return w->opts.has_replay && w->cap > 0 &&
        w->opts.tail_probe_ns != KVE_NEVER;
}

static void
on_lost(struct world *w, const struct kve_action *a)
{
    struct reader *r = &w->reader;

    trace(w, " lost%" PRIu64 "-%" PRIu64, a->first, a->last);
    EXPECT(w, a->first == r->expected && a->last >= a->first);
    r->lost = true;
    r->expected = a->last + 1;
    if (!w->told || !can_tell(w) || w->fault > 0 || w->cap < BUFFER ||
        w->resets)
        return;
    for (uint64_t n = a->first; n <= a->last; n++)
        EXPECT(w, was_a_hole(w, n));
}

static void
on_clear(struct world *w, uint32_t reason)
{
    struct reader *r = &w->reader;

    trace(w, " clear:%s", kve_reason_str(reason));
    r->has = false;
    r->mixed = false;
    r->lost = reason == KVE_REASON_LOST;
    r->unreadable = false;
    if (reason == KVE_REASON_LOST)
        return;
    r->expected = 0;
    r->any = false;
    r->reset = reason == KVE_REASON_RESET;
}

static void
on_ask(struct world *w, const struct kve_action *a)
{
    trace(w, " %s%" PRIu64, a->probe ? "probe" : "ask", a->first);
    EXPECT(w, w->opts.has_replay);
    EXPECT(w, w->answer.ask == 0);
    memset(&w->answer, 0, offsetof(struct answer, items));
    w->answer.n = 0;
    w->answer.at = 0;
    w->answer.ask = a->ask;
    w->answer.from = a->first;
    w->asks += !a->probe;
}

static void
execute(struct world *w, const struct kve_action *a)
{
    switch (a->type) {
    case KVE_ACTION_APPLY:
        on_apply(w, &a->msg);
        break;
    case KVE_ACTION_ASK:
        on_ask(w, a);
        break;
    case KVE_ACTION_STOP:
        EXPECT(w, a->ask == w->answer.ask);
        trace(w, " stop");
        w->old_ask = a->ask;
        w->answer.ask = 0;
        break;
    case KVE_ACTION_CLEAR:
        on_clear(w, a->reason);
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

static void
check_live(struct world *w, const struct kve_source_info *info)
{
    const struct reader *r = &w->reader;

    EXPECT(w, w->told);
    EXPECT(w, !r->lost);
    EXPECT(w, !r->unreadable);
    if (r->has && can_tell(w) && !(w->life > w->link_life && w->resets)) {
        EXPECT(w, !r->mixed);
        EXPECT(w, r->life >= w->link_life && r->life <= w->life);
    }
    if (!info->tail_confirmed || w->opts.tail_probe_ns == KVE_NEVER)
        return;
    if (info->confirmed_at_ns == w->now && w->probe_end && !w->link_heard)
        EXPECT(w, r->expected >= w->newest);
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
    if (info.tail_confirmed)
        EXPECT(w, w->told && w->opts.has_replay);
    if (info.state == KVE_STATE_LIVE)
        check_live(w, &info);
    w->probe_end = false;
}

/* ---- the publisher ------------------------------------------------- */

static void
publish(struct world *w, unsigned drop)
{
    struct item item = { w->life, w->next++, w->link, false };

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
    w->next = 0;
    w->n_buffer = 0;
    trace(w, "\nrestart/%" PRIu64 "(%" PRIu64 ")", w->life, n);
    while (n-- > 0)
        publish(w, 0);
}

/* The reset message itself is never lost, nor is the batch after it. */
static void
reset(struct world *w)
{
    struct item item = { 0 };

    if (!w->up || !w->subscribed || w->n_queue + 2 > QUEUE)
        return;
    w->life++;
    w->next = draw(&w->rng, 2);
    w->n_buffer = 0;
    item.life = w->life;
    item.link = w->link;
    item.reset = true;
    trace(w, "\nreset/%" PRIu64, w->life);
    w->queue[(w->first + w->n_queue++) % QUEUE] = item;
    if (is_hole(w, w->life, w->next))
        w->next++;
    if (w->next < 2)
        publish(w, 0);
}

/* ---- the live link ------------------------------------------------- */

static struct kve_machine_msg
message(const struct item *item)
{
    struct kve_machine_msg msg = { item->number,
        digest_of(item->life, item->number), { NULL, 0 },
        { (const uint8_t *)&item->life, sizeof(item->life) }, NULL };

    return msg;
}

/* Hand over the oldest message of the queue. */
static void
deliver(struct world *w)
{
    if (w->n_queue == 0)
        return;

    struct item item = w->queue[w->first];
    struct kve_machine_msg msg = message(&item);
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
        trace(w, "\nL%" PRIu64 "/%" PRIu64, item.number, item.life);
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
    if (!w->leftovers || w->opts.tail_probe_ns == KVE_NEVER || w->cap == 0)
        w->n_queue = 0;
    trace(w, "\nD");
    kve_machine_disconnected(w->m, w->now);
    pull(w);
}

/* ---- answers ------------------------------------------------------- */

static void
serve(struct world *w, unsigned fault)
{
    struct answer *a = &w->answer;
    bool wrong = chance(&w->rng, fault);

    if (a->ask == 0 || a->served)
        return;
    a->served = true;
    a->ending = !wrong ? WHOLE : (enum ending)draw(&w->rng, 4);
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

static void
answer_more(struct world *w)
{
    struct answer *a = &w->answer;
    struct item item;

    if (a->ask == 0 || !a->served)
        return;
    if (a->at < a->n) {
        item = a->items[a->at++];
        struct kve_machine_msg msg = message(&item);
        trace(w, "\nR%" PRIu64 "/%" PRIu64, item.number, item.life);
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

/* Late frames of a request that is over change nothing. */
static void
answer_late(struct world *w)
{
    struct item item = { w->life, draw(&w->rng, w->next + 1), 0, false };
    struct kve_machine_msg msg = message(&item);
    struct kve_action a;

    if (w->old_ask == 0 || w->old_ask == w->answer.ask)
        return;
    kve_machine_replay(w->m, w->now, w->old_ask, &msg);
    EXPECT(w, !kve_machine_next(w->m, &a));
    kve_machine_replay_end(w->m, w->now, w->old_ask);
    EXPECT(w, !kve_machine_next(w->m, &a));
}

/* ---- time ---------------------------------------------------------- */

/* Up to the next deadline. Messages do not wait that long, nor do answers
 * where none goes wrong. */
static void
pass_time(struct world *w)
{
    while (w->n_queue > 0)
        deliver(w);
    while (w->fault == 0 && w->answer.ask != 0) {
        serve(w, 0);
        answer_more(w);
    }

    int64_t deadline = kve_machine_deadline(w->m);
    if (deadline == KVE_NEVER)
        return;
    if (deadline > w->now)
        w->now = deadline;
    /* A request that is over may be followed by one that is due; no more. */
    for (int i = 0; kve_machine_deadline(w->m) <= w->now; i++) {
        EXPECT(w, i < 2);
        trace(w, "\nT");
        kve_machine_timer(w->m, w->now);
        pull(w);
    }
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
    w->cap = caps[draw(rng, 6)];
    o->has_replay = chance(rng, 85);
    o->rebuild = chance(rng, 50);
    o->start = chance(rng, 80)              ? KVE_START_DEFAULT
        : chance(rng, 50) || !o->has_replay ? KVE_START_LIVE
                                            : KVE_START_NUMBER;
    o->first_number = draw(rng, 20);
    o->hold_items = chance(rng, 50) ? 1 + (uint32_t)draw(rng, 5) : 1000;
    o->hold_bytes = chance(rng, 80) ? 1 << 20 : 300;
    o->replay_timeout_ns = 5000 * KVE_MS;
    o->tail_probe_ns = chance(rng, 90) ? 500 * KVE_MS : KVE_NEVER;
    o->counters = &w->counters;
    w->reader.any = o->start == KVE_START_LIVE;
    w->reader.expected = o->start == KVE_START_NUMBER ? o->first_number : 0;
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
        serve(w, w->fault);
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
        serve(w, 0);
        answer_more(w);
        if (!moved && w->answer.ask == 0) {
            pass_time(w);
            still += w->reader.state == KVE_STATE_LIVE ||
                w->reader.state == KVE_STATE_DEGRADED ||
                kve_machine_deadline(w->m) == KVE_NEVER;
        }
        if (w->answer.ask != 0 && w->answer.served &&
            w->answer.ending != WHOLE && w->answer.at == w->answer.n)
            pass_time(w);
    }
    EXPECT(w, w->asks < 300);
}

static void
finish(struct world *w)
{
    trace(w, "\nquiet");
    go_up(w);
    w->subscribed = true;
    tell_up(w);
    rest(w);
    for (int i = 0; i < 2; i++) {
        do
            publish(w, 0);
        while (is_hole(w, w->life, w->next - 1));
        rest(w);
    }
    EXPECT(w, w->reader.expected == w->next);
    EXPECT(w, w->reader.life == w->life);
    EXPECT(w,
        w->reader.state == KVE_STATE_LIVE ||
            w->reader.state == KVE_STATE_DEGRADED);
    if (w->reader.state == KVE_STATE_DEGRADED &&
        w->opts.tail_probe_ns != KVE_NEVER && w->cap == BUFFER &&
        w->fault == 0 && w->opts.has_replay && !w->resets)
        EXPECT(w, w->reader.lost || w->reader.unreadable || w->reader.mixed);
}

static size_t
run_world(uint64_t seed)
{
    static struct world w;

    create(&w, seed);
    while (w.steps < WORLD_STEPS)
        step(&w);
    finish(&w);
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
