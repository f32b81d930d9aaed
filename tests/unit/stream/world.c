/*
 * world.c - see world.h.
 */
#include "world.h"

#include "arena.h"
#include "base/clock.h"
#include "stream/machine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MAX_ACTIONS 32 /* of one message */
#define QUIET_ROUNDS 120
#define QUIET_ASKS 24

#define TAIL_PROBE (500 * KVE_MS)
#define TIMEOUT (5000 * KVE_MS)

#define BIT(n) (UINT64_C(1) << (n))
#define EVEN UINT64_C(0x5555555555555555)

/* There is one machine at a time; it lives in the arena. */
static struct kve_machine *machine;
static struct kve_sub_counters counters;
static const struct config *config;
static FILE *trace_to;
static unsigned n_asks; /* replays and snapshots, in the quiet time */
static const void *ring;
static bool said_lost; /* by this input */

static const char letters[] = {
#define X(name, letter, text) letter,
    LETTER_MAP(X)
#undef X
};

static const char *const texts[] = {
#define X(name, letter, text) text,
    LETTER_MAP(X)
#undef X
};

char
letter_char(enum letter letter)
{
    return letters[letter];
}

const char *
letter_text(enum letter letter)
{
    return texts[letter];
}

enum letter
letter_of(char c)
{
    size_t i = 0;

    while (i < N_LETTERS && letters[i] != c)
        i++;
    return (enum letter)i;
}

static void
trace(const char *fmt, ...)
{
    va_list ap;

    if (trace_to == NULL)
        return;
    va_start(ap, fmt);
    (void)vfprintf(trace_to, fmt, ap);
    va_end(ap);
}

#define EXPECT(w, condition)                       \
    do {                                           \
        if (!(condition) && (w)->broken == NULL) { \
            (w)->broken = #condition;              \
            trace("   <- not so: %s", #condition); \
        }                                          \
    } while (0)

/* ---- what is true -------------------------------------------------- */

/* What a batch that clears everything clears. A publisher with an id empties
 * its fastest tier only, where batches of even numbers put what they store. */
static uint64_t
cleared_set(void)
{
    return config->ids ? EVEN : ~UINT64_C(0);
}

/* What a copy holds that got everything up to number of this life. */
static uint64_t
truth(const struct world *w, unsigned life, unsigned number)
{
    const struct life *l = &w->lives[life];
    uint64_t upto = number >= 63 ? ~UINT64_C(0) : BIT(number + 1) - 1;
    uint64_t set = upto & ~(BIT(l->base) - 1);
    uint64_t clears = l->clears & upto;

    if (clears != 0)
        set &=
            ~(((BIT(63 - __builtin_clzll(clears)) << 1) - 1) & cleared_set());
    return set & ~l->holes & ~l->empty & ~l->clears;
}

static bool
is_whole(const struct world *w, const struct copy *c)
{
    return !c->has || (!c->mixed && c->set == truth(w, c->life, c->last));
}

static const uint8_t *
id_of(unsigned life)
{
    static uint8_t ids[MAX_LIVES][16];

    memset(ids[life], (int)(0xa0 + life), sizeof(ids[life]));
    return ids[life];
}

static struct kve_machine_msg
message(const struct world *w, const struct item *item)
{
    struct kve_machine_msg msg = { 0 };

    msg.number = item->number;
    msg.digest = (item->life + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15) ^
        item->number;
    msg.payload.data = (const uint8_t *)item;
    msg.payload.len = sizeof(*item);
    msg.publisher_id = config->ids ? id_of(item->life) : NULL;
    msg.empty = (w->lives[item->life].empty & BIT(item->number)) != 0;
    return msg;
}

/* ---- the reader ---------------------------------------------------- */

static void
apply(struct world *w, const struct kve_action *a)
{
    struct copy *c = a->hidden ? &w->twin : &w->visible;
    struct item item;

    EXPECT(w, !a->hidden || w->building);
    EXPECT(w, a->msg.payload.len == sizeof(item));
    memcpy(&item, a->msg.payload.data, sizeof(item));
    trace(" apply%s %u/%c", a->hidden ? "(twin)" : "", item.number,
        'a' + item.life);

    const struct life *l = &w->lives[item.life];
    EXPECT(w, item.number == a->msg.number);
    EXPECT(w, item.number == c->next || (c->one && item.number == 1));
    if (c->has && c->life != item.life) {
        if (!a->replayed && !config->ids && !config->replay)
            c->excused = true;
        c->mixed = true;
    }
    c->has = true;
    c->one = false;
    c->life = item.life;
    c->last = item.number;
    c->next = (uint8_t)(item.number + 1);
    if ((l->clears & BIT(item.number)) != 0) {
        c->set &= ~cleared_set();
        c->mixed = c->mixed && config->ids;
        c->excused = c->excused && config->ids;
        kve_machine_cleared(machine, w->now);
    } else if ((l->unreadable & BIT(item.number)) != 0) {
        kve_machine_unreadable(machine, w->now);
    } else if ((l->empty & BIT(item.number)) == 0) {
        EXPECT(w, c->mixed || (c->set & BIT(item.number)) == 0);
        c->set |= BIT(item.number);
    }
    w->unbroken = w->unbroken || (w->up && !a->hidden);
    if (w->state == KVE_STATE_LIVE && !a->hidden &&
        (l->unreadable & BIT(item.number)) == 0)
        EXPECT(w, c->excused || is_whole(w, c));
}

/* A part of a snapshot: its even numbers, or its odd ones. */
static void
apply_part(struct world *w, const struct kve_action *a)
{
    struct copy *c = &w->twin;
    uint8_t part[3];

    EXPECT(w, a->hidden && w->building);
    EXPECT(w, a->msg.payload.len == sizeof(part));
    memcpy(part, a->msg.payload.data, sizeof(part));
    trace(" part %u of %u/%c", part[2], part[1], 'a' + part[0]);
    EXPECT(w, a->msg.number == part[1]);
    EXPECT(w, !c->has || (c->life == part[0] && c->last == part[1]));
    c->has = true;
    c->life = part[0];
    c->last = part[1];
    c->next = (uint8_t)(part[1] + 1);
    c->set |= truth(w, part[0], part[1]) & (part[2] == 0 ? EVEN : ~EVEN);
}

static void
lost(struct world *w, const struct kve_action *a)
{
    struct copy *c = w->building ? &w->twin : &w->visible;

    EXPECT(w, a->first == c->next && a->last >= a->first);
    c->next = (uint8_t)(a->last + 1);
}

static void
begin_copy(struct copy *c, bool one)
{
    memset(c, 0, sizeof(*c));
    c->one = one;
}

static void
cleared(struct world *w, uint32_t reason)
{
    uint8_t next = w->visible.next;

    w->building = false;
    memset(&w->twin, 0, sizeof(w->twin));
    begin_copy(&w->visible, reason == KVE_REASON_RESET);
    w->faults = w->faults && reason == KVE_REASON_LOST;
    if (reason == KVE_REASON_LOST) {
        w->visible.next = next;
    }
}

/* A twin that is filled by replay goes on where the source is; one that is
 * filled by a snapshot goes on behind its number. */
static void
begin_twin(struct world *w, uint32_t reason)
{
    uint8_t next = w->building ? w->twin.next : w->visible.next;

    begin_copy(&w->twin, false);
    w->building = true;
    if (reason == KVE_REASON_LOST) {
        w->twin.next = next;
    } else if (w->snapshot.number >= 0) {
        w->twin.has = true;
        w->twin.life = w->snapshot.life;
        w->twin.last = (uint8_t)w->snapshot.number;
        w->twin.next = (uint8_t)(w->snapshot.number + 1);
    }
}

/* Without ids nothing but an unbroken connection says that a snapshot with a
 * lower number is of the same life. */
static bool
is_older(const struct world *w)
{
    const struct copy *twin = &w->twin;
    const struct copy *visible = &w->visible;

    return (config->ids || w->unbroken) && twin->has && visible->has &&
        !visible->mixed && twin->life == visible->life &&
        twin->next < visible->next;
}

static void
ask(struct world *w, const struct kve_action *a)
{
    if (a->kind == KVE_ASK_SNAPSHOT) {
        trace(" ask-snapshot");
        EXPECT(w, config->snapshot);
        EXPECT(w, w->snapshot.ask == 0);
        memset(&w->snapshot, 0, sizeof(w->snapshot));
        w->snapshot.ask = a->ask;
    } else {
        trace(" %s %" PRIu64, a->kind == KVE_ASK_PROBE ? "probe" : "ask",
            a->first);
        EXPECT(w, config->replay);
        EXPECT(w, w->answer.ask == 0);
        EXPECT(w, a->first <= MAX_NUMBER);
        memset(&w->answer, 0, sizeof(w->answer));
        w->answer.ask = a->ask;
        w->answer.from = (uint8_t)a->first;
    }
    if (a->kind != KVE_ASK_PROBE)
        n_asks++;
    kve_machine_asked(machine, w->now, a->ask);
}

static void
stop(struct world *w, const struct kve_action *a)
{
    trace(" stop");
    if (w->answer.ask == a->ask)
        memset(&w->answer, 0, sizeof(w->answer));
    else if (w->snapshot.ask == a->ask)
        memset(&w->snapshot, 0, sizeof(w->snapshot));
    else
        EXPECT(w, !"what is stopped was asked for");
}

/* A loss of which no number is said: what proved the life is gone. From then on
 * nothing tells the lives that follow apart. */
static void
note_unknown_life(struct world *w, const struct kve_action *a)
{
    if (a->reason == KVE_REASON_LOST && !said_lost)
        w->faults = true;
}

static void
execute(struct world *w, const struct kve_action *a)
{
    switch (a->type) {
    case KVE_ACTION_APPLY:
        if (a->snapshot)
            apply_part(w, a);
        else
            apply(w, a);
        break;
    case KVE_ACTION_ASK:
        ask(w, a);
        break;
    case KVE_ACTION_STOP:
        stop(w, a);
        break;
    case KVE_ACTION_CLEAR:
        trace(" clear:%s", kve_reason_str(a->reason));
        cleared(w, a->reason);
        break;
    case KVE_ACTION_BEGIN:
        note_unknown_life(w, a);
        trace(" begin:%s", kve_reason_str(a->reason));
        begin_twin(w, a->reason);
        break;
    case KVE_ACTION_SWAP:
        trace(" swap:%s", kve_reason_str(a->reason));
        EXPECT(w, w->building);
        EXPECT(w, !is_older(w));
        w->visible = w->twin;
        w->building = false;
        memset(&w->twin, 0, sizeof(w->twin));
        break;
    case KVE_ACTION_ABORT:
        trace(" abort:%s", kve_reason_str(a->reason));
        EXPECT(w, w->building);
        w->building = false;
        memset(&w->twin, 0, sizeof(w->twin));
        break;
    case KVE_ACTION_STATE:
        trace(" %s:%s", kve_state_str(a->state), kve_reason_str(a->reason));
        EXPECT(w, a->old_state == w->state);
        note_unknown_life(w, a);
        w->state = a->state;
        if (a->state == KVE_STATE_LIVE)
            EXPECT(w, w->visible.excused || is_whole(w, &w->visible));
        break;
    case KVE_ACTION_NOTICE:
        if (a->notice == KVE_NOTICE_LOST) {
            trace(" lost %" PRIu64 "-%" PRIu64, a->first, a->last);
            lost(w, a);
            said_lost = true;
        }
        break;
    }
}

/* A copy that lacks something, or holds what is of two lives, must be known to:
 * a position is kept for longer than the state. One whose last batch is of a
 * life that is over will be found out by that. */
static void
check_position(struct world *w)
{
    const struct copy *c = &w->visible;
    struct kve_position position;
    struct item item = { c->life, c->last, 0, 0 };

    kve_machine_position(machine, &position);
    if (!position.started)
        return;
    EXPECT(w, !w->building);
    EXPECT(w, c->has || position.degraded);
    if (!c->has)
        return;
    EXPECT(w, position.number == c->last);
    EXPECT(
        w, !position.has_digest || position.digest == message(w, &item).digest);
    EXPECT(w, position.number < c->next);
    EXPECT(w,
        position.degraded || position.doubted || c->excused ||
            c->life != w->life || is_whole(w, c));
}

/* For all that a subscriber can know: three lives in a row that showed nothing
 * are enough for that, or nine where something was shown before. */
static bool
keeps_nothing(const struct world *w)
{
    return !config->replay || w->empty > (w->kept ? 9 : 3);
}

static void
check_live(struct world *w, const struct kve_source_info *info)
{
    const struct copy *c = &w->visible;

    EXPECT(w, w->up);
    EXPECT(w, !w->building);
    EXPECT(w, info->started == c->has);
    if (!c->has)
        return;
    EXPECT(w, info->last_number == c->last);
    EXPECT(w, c->excused || is_whole(w, c));
    EXPECT(w, c->life >= w->link_life || (w->leftovers && keeps_nothing(w)));
}

/* Pull everything that an input brought about, and look at the result. */
static void
pull(struct world *w)
{
    struct kve_source_info info;
    struct kve_action a;
    unsigned room = MAX_ACTIONS;
    unsigned n = 0;

    said_lost = false;
    while (w->broken == NULL && kve_machine_next(machine, &a)) {
        if (n == 0 && ring == NULL && a.type == KVE_ACTION_ASK)
            ring = kve_arena_find(&a, sizeof(a));
        /* A held message that is applied may bring actions of its own. */
        if (a.type == KVE_ACTION_APPLY)
            room += MAX_ACTIONS;
        EXPECT(w, ++n <= room);
        execute(w, &a);
        check_position(w);
    }
    if (ring != NULL)
        kve_arena_mask(ring, (n < MAX_ACTIONS ? n : MAX_ACTIONS) * sizeof(a));

    /* One more may be what the last action pointed to. */
    EXPECT(w, kve_arena_small() <= config->hold_items + 1U);
    EXPECT(w, kve_machine_held_bytes(machine) <= config->hold_items * 512U);
    memset(&info, 0, sizeof(info));
    kve_machine_info(machine, &info);
    EXPECT(w, info.state == w->state);
    EXPECT(w, info.connected == w->up);
    if (info.state == KVE_STATE_LIVE)
        check_live(w, &info);
}

/* ---- the publisher ------------------------------------------------- */

static struct item
publish(struct world *w)
{
    struct life *l = &w->lives[w->life];
    struct item item = { w->life, l->next++, 0, 0 };

    if (w->n_buffer == config->cap) {
        memmove(w->buffer, w->buffer + 1,
            (config->cap - 1U) * sizeof(w->buffer[0]));
        w->n_buffer--;
    }
    w->buffer[w->n_buffer++] = item;
    return item;
}

/* On the live link, if there is one. */
static void
send(struct world *w, struct item item)
{
    if (w->up && w->n_queue < MAX_QUEUE)
        w->queue[w->n_queue++] = item;
}

static void
new_life(struct world *w, unsigned base)
{
    w->life++;
    w->lives[w->life].base = (uint8_t)base;
    w->lives[w->life].next = (uint8_t)base;
    w->n_buffer = 0;
    memset(w->buffer, 0, sizeof(w->buffer));
}

/* ---- the live link ------------------------------------------------- */

static void
read_one(struct world *w)
{
    struct item item = w->queue[0];
    struct kve_machine_msg msg = message(w, &item);

    w->n_queue--;
    memmove(w->queue, w->queue + 1, w->n_queue * sizeof(item));
    memset(w->queue + w->n_queue, 0, sizeof(item));
    w->can_repeat = w->up && !item.old && !item.reset;
    w->leftovers = w->leftovers || item.old;
    memset(&w->last_read, 0, sizeof(item));
    if (w->can_repeat)
        w->last_read = item;
    if (item.reset) {
        trace("\n    reset");
        if (!item.old)
            w->link_life = item.life;
        kve_machine_reset(machine, w->now);
    } else {
        trace("\n    live %u/%c:", item.number, 'a' + item.life);
        kve_machine_live(machine, w->now, &msg);
    }
    pull(w);
    memset(&item, 0xee, sizeof(item)); /* what was borrowed is gone */
}

static void
read_all(struct world *w)
{
    while (w->n_queue > 0 && w->broken == NULL)
        read_one(w);
}

static void
again(struct world *w)
{
    struct item item = w->last_read;
    struct kve_machine_msg msg = message(w, &item);

    kve_machine_live(machine, w->now, &msg);
    pull(w);
    memset(&item, 0xee, sizeof(item));
}

static void
go_up(struct world *w)
{
    w->up = true;
    w->leftovers = false;
    w->link_life = w->life;
    kve_machine_connected(machine, w->now);
    pull(w);
}

static void
go_down(struct world *w)
{
    w->up = false;
    w->unbroken = false;
    w->can_repeat = false;
    memset(&w->last_read, 0, sizeof(w->last_read));
    for (size_t i = 0; i < w->n_queue; i++)
        w->queue[i].old = 1;
    kve_machine_disconnected(machine, w->now);
    pull(w);
}

static void
restart(struct world *w, unsigned n)
{
    if (w->up)
        go_down(w);
    new_life(w, 0);
    while (n-- > 0)
        (void)publish(w);
}

static void
reset(struct world *w, unsigned base)
{
    struct item item = { 0 };

    new_life(w, base);
    item.life = w->life;
    item.reset = 1;
    send(w, item);
    send(w, publish(w));
    read_all(w);
}

/* ---- replay answers ------------------------------------------------ */

static void
serve(struct world *w)
{
    struct answer *a = &w->answer;

    if (a->served)
        return;
    a->served = 1;
    for (size_t i = 0; i < w->n_buffer; i++)
        if (w->buffer[i].number >= a->from)
            a->items[a->n++] = w->buffer[i];
}

static void
answer_one(struct world *w)
{
    struct item item = w->answer.items[w->answer.at++];
    struct kve_machine_msg msg = message(w, &item);

    w->kept = true;
    w->empty = 0;
    trace("\n    replay %u/%c:", item.number, 'a' + item.life);
    kve_machine_replay(machine, w->now, w->answer.ask, &msg);
    pull(w);
    memset(&item, 0xee, sizeof(item));
}

/* Late frames of a request that is over change nothing. */
static void
answer_late(struct world *w, uint32_t ask)
{
    struct item item = { w->life, 0, 0, 0 };
    struct kve_machine_msg msg = message(w, &item);
    struct kve_action a;

    kve_machine_replay(machine, w->now, ask, &msg);
    EXPECT(w, !kve_machine_next(machine, &a));
    kve_machine_replay_end(machine, w->now, ask);
    EXPECT(w, !kve_machine_next(machine, &a));
}

static void
answer(struct world *w)
{
    uint32_t ask = w->answer.ask;

    serve(w);
    if (w->answer.n == 0 && w->empty < MAX_EMPTY)
        w->empty++;
    while (
        w->answer.ask == ask && w->answer.at < w->answer.n && w->broken == NULL)
        answer_one(w);
    if (w->answer.ask == ask && w->broken == NULL) {
        trace("\n    end:");
        kve_machine_replay_end(machine, w->now, ask);
        pull(w);
    }
    if (w->answer.ask != ask && w->broken == NULL)
        answer_late(w, ask);
}

/* A queue that is full drops what comes late; never all of an answer. */
static void
answer_holed(struct world *w)
{
    struct answer *a = &w->answer;

    serve(w);
    for (size_t i = a->n > 2 ? 1 : a->n - 1U; i + 1U < a->n; i++)
        a->items[i] = a->items[i + 1];
    a->n--;
    memset(&a->items[a->n], 0, sizeof(a->items[0]));
    answer(w);
}

/* Would there be one to leave out? */
static bool
is_long(const struct world *w)
{
    unsigned n = 0;

    for (size_t i = 0; i < w->n_buffer; i++)
        n += w->buffer[i].number >= w->answer.from;
    return n >= 2;
}

/* ---- snapshots ----------------------------------------------------- */

/* The newest number that has a batch, or -1. */
static int8_t
newest(const struct world *w)
{
    const struct life *l = &w->lives[w->life];
    int8_t n = (int8_t)(l->next - 1);

    while (n >= (int8_t)l->base && (l->holes & BIT(n)) != 0)
        n--;
    return n < (int8_t)l->base ? -1 : n;
}

static void
snapshot_part(struct world *w, unsigned i)
{
    struct snapshot *s = &w->snapshot;
    uint8_t part[3] = { s->life, (uint8_t)s->number, (uint8_t)i };
    struct kve_machine_msg msg = { 0 };

    trace("\n    part:");
    msg.number = 12345;
    msg.payload.data = part;
    msg.payload.len = sizeof(part);
    kve_machine_snapshot_chunk(machine, w->now, s->ask, &msg);
    pull(w);
    memset(part, 0xee, sizeof(part));
}

/* Its head, and the first part of two; all of it may lack the newest batch. */
static void
snapshot_begin(struct world *w, bool lacks)
{
    const struct life *l = &w->lives[w->life];
    struct snapshot *s = &w->snapshot;
    uint32_t ask = s->ask;

    s->served = 1;
    s->life = w->life;
    s->number = newest(w);
    if (lacks && s->number >= 0)
        s->number--;
    while (s->number >= 0 && (l->holes & BIT(s->number)) != 0)
        s->number--;
    if (s->number < l->base)
        s->number = -1;
    trace("\n    snapshot %d/%c:", s->number, 'a' + s->life);
    kve_machine_snapshot_begin(machine, w->now, ask, s->number, id_of(w->life));
    pull(w);
    if (s->ask == ask && s->number >= 0 && w->broken == NULL)
        snapshot_part(w, 0);
}

static void
snapshot(struct world *w, bool lacks)
{
    struct snapshot *s = &w->snapshot;
    uint32_t ask = s->ask;

    if (!s->served)
        snapshot_begin(w, lacks);
    if (s->ask == ask && s->number >= 0 && w->broken == NULL)
        snapshot_part(w, 1);
    if (s->ask == ask && w->broken == NULL) {
        trace("\n    end:");
        kve_machine_snapshot_end(machine, w->now, ask);
        pull(w);
    }
}

static void
snapshot_none(struct world *w)
{
    kve_machine_snapshot_begin(
        machine, w->now, w->snapshot.ask, -2, id_of(w->life));
    pull(w);
}

/* ---- the reader's processes ---------------------------------------- */

static void
create_machine(void)
{
    struct kve_machine_opts opts = { 0 };

    opts.has_replay = config->replay;
    opts.has_snapshot = config->snapshot;
    opts.rebuild = config->rebuild;
    opts.start = KVE_START_DEFAULT;
    opts.hold_bytes = config->hold_items * 512U;
    opts.hold_items = config->hold_items;
    opts.replay_timeout_ns = TIMEOUT;
    opts.snapshot_timeout_ns = TIMEOUT;
    opts.tail_probe_ns = TAIL_PROBE;
    opts.heartbeat_timeout_ns = TIMEOUT;
    opts.counters = &counters;
    kve_arena_reset();
    if (kve_machine_create(&opts, &machine, NULL) != KVE_OK)
        abort();
}

static void
save(struct world *w)
{
    memset(&w->saved, 0, sizeof(w->saved));
    kve_machine_position(machine, &w->saved.position);
    if (!w->saved.position.started)
        return;
    w->saved.copy = w->visible;
    /* What is found out about it later was wrong then, too. */
    w->saved.faults = w->faults || w->saved.position.degraded;
    trace(" at %" PRIu64, w->saved.position.number);
}

/* Everything that the process before knew is gone, with its connection. */
static void
resume(struct world *w)
{
    kve_machine_destroy(machine);
    create_machine();
    w->up = false;
    w->can_repeat = false;
    w->building = false;
    w->leftovers = false;
    w->unbroken = false;
    w->kept = false;
    w->empty = 0;
    w->n_queue = 0;
    w->state = KVE_STATE_COLD;
    w->faults = w->faults || w->saved.faults;
    memset(w->queue, 0, sizeof(w->queue));
    memset(&w->last_read, 0, sizeof(w->last_read));
    memset(&w->answer, 0, sizeof(w->answer));
    memset(&w->snapshot, 0, sizeof(w->snapshot));
    memset(&w->twin, 0, sizeof(w->twin));
    w->visible = w->saved.copy;
    w->visible.next = (uint8_t)(w->saved.position.number + 1);
    EXPECT(w, kve_machine_resume(machine, w->now, &w->saved.position));
    pull(w);
    EXPECT(w, w->state != KVE_STATE_COLD && w->state != KVE_STATE_LIVE);
}

/* ---- time ---------------------------------------------------------- */

static void
timer(struct world *w)
{
    int64_t deadline = kve_machine_deadline(machine);

    if (deadline > w->now)
        w->now = deadline;
    /* A request that is over may be followed by one that is due; no more. */
    for (int i = 0; w->broken == NULL && w->now >= deadline; i++) {
        EXPECT(w, i < 3);
        kve_machine_timer(machine, w->now);
        pull(w);
        deadline = kve_machine_deadline(machine);
    }
}

/* ---- letters ------------------------------------------------------- */

static bool
may_publish(const struct world *w)
{
    return w->lives[w->life].next < MAX_NUMBER && w->n_queue + 2 <= MAX_QUEUE;
}

static bool
may_restart(const struct world *w)
{
    return w->life + 1 < MAX_LIVES && w->lives[w->life].next < MAX_NUMBER;
}

bool
world_possible(const struct world *w, enum letter letter)
{
    switch (letter) {
    case LETTER_PUBLISH:
    case LETTER_WAITS:
        return w->up && may_publish(w);
    case LETTER_LOST:
    case LETTER_UNREADABLE:
    case LETTER_CLEAR:
        return may_publish(w);
    case LETTER_HEARTBEAT:
        return config->ids && may_publish(w);
    case LETTER_HOLE:
        return w->lives[w->life].next < MAX_NUMBER;
    case LETTER_READ:
        return w->n_queue > 0;
    case LETTER_AGAIN:
        return w->can_repeat;
    case LETTER_CONNECT:
        return !w->up;
    case LETTER_CUT:
        return w->up;
    case LETTER_RESTART:
    case LETTER_RESTART_SAME:
    case LETTER_RESTART_ABOVE:
        return may_restart(w);
    case LETTER_RESET:
    case LETTER_RESET_1:
        return w->up && may_restart(w) && may_publish(w);
    case LETTER_ANSWER_ONE:
        return w->answer.ask != 0 &&
            (w->answer.served ? w->answer.at < w->answer.n
                              : w->n_buffer > 0 &&
                        w->buffer[w->n_buffer - 1].number >= w->answer.from);
    case LETTER_ANSWER:
    case LETTER_FAIL:
        return w->answer.ask != 0;
    case LETTER_ANSWER_HOLED:
        return w->answer.ask != 0 && !w->answer.served && is_long(w);
    case LETTER_TIMER:
        return w->n_queue == 0 && kve_machine_deadline(machine) != KVE_NEVER;
    case LETTER_SNAPSHOT:
    case LETTER_SNAPSHOT_FAIL:
        return w->snapshot.ask != 0;
    case LETTER_SNAPSHOT_PART:
    case LETTER_SNAPSHOT_NONE:
        return w->snapshot.ask != 0 && !w->snapshot.served;
    case LETTER_SNAPSHOT_OLD:
        return w->snapshot.ask != 0 && !w->snapshot.served && newest(w) >= 0;
    case LETTER_SAVE:
        return w->visible.has;
    case LETTER_RESUME:
        return w->saved.position.started;
    case N_LETTERS:
        break;
    }
    return false;
}

static void
publish_and_read(struct world *w, uint64_t *mark)
{
    *mark |= BIT(w->lives[w->life].next);
    send(w, publish(w));
    read_all(w);
}

/* Lives that nothing refers to any more are all alike. */
static void
forget_lives(struct world *w)
{
    unsigned used = BIT(w->life) | BIT(w->visible.life) | BIT(w->twin.life) |
        BIT(w->snapshot.life) | BIT(w->last_read.life) |
        BIT(w->saved.copy.life);

    for (size_t i = 0; i < w->n_buffer; i++)
        used |= BIT(w->buffer[i].life);
    for (size_t i = 0; i < w->n_queue; i++)
        used |= BIT(w->queue[i].life);
    for (size_t i = 0; i < w->answer.n; i++)
        used |= BIT(w->answer.items[i].life);
    for (unsigned i = 0; i < w->life; i++)
        if ((used & BIT(i)) == 0)
            memset(&w->lives[i], 0, sizeof(w->lives[i]));
}

static void
take(struct world *w, enum letter letter)
{
    struct life *l = &w->lives[w->life];
    uint64_t nothing = 0;

    trace("\n%c  %s", letters[letter], texts[letter]);
    switch (letter) {
    case LETTER_PUBLISH:
        publish_and_read(w, &nothing);
        break;
    case LETTER_UNREADABLE:
        publish_and_read(w, &l->unreadable);
        break;
    case LETTER_CLEAR:
        publish_and_read(w, &l->clears);
        break;
    case LETTER_HEARTBEAT:
        w->heartbeats = true;
        publish_and_read(w, &l->empty);
        break;
    case LETTER_WAITS:
        send(w, publish(w));
        break;
    case LETTER_LOST:
        (void)publish(w);
        break;
    case LETTER_HOLE:
        l->holes |= BIT(l->next);
        l->next++;
        break;
    case LETTER_READ:
        read_one(w);
        break;
    case LETTER_AGAIN:
        again(w);
        break;
    case LETTER_CONNECT:
        go_up(w);
        break;
    case LETTER_CUT:
        go_down(w);
        break;
    case LETTER_RESTART:
        restart(w, 0);
        break;
    case LETTER_RESTART_SAME:
        restart(w, l->next);
        break;
    case LETTER_RESTART_ABOVE:
        restart(w, l->next + 1U);
        break;
    case LETTER_RESET:
        reset(w, 0);
        break;
    case LETTER_RESET_1:
        reset(w, 1);
        break;
    case LETTER_ANSWER_ONE:
        serve(w);
        answer_one(w);
        break;
    case LETTER_ANSWER:
        answer(w);
        break;
    case LETTER_ANSWER_HOLED:
        answer_holed(w);
        break;
    case LETTER_FAIL:
        kve_machine_replay_failed(machine, w->now, w->answer.ask);
        pull(w);
        break;
    case LETTER_TIMER:
        timer(w);
        break;
    case LETTER_SNAPSHOT:
        snapshot(w, false);
        break;
    case LETTER_SNAPSHOT_PART:
        snapshot_begin(w, false);
        break;
    case LETTER_SNAPSHOT_OLD:
        snapshot(w, true);
        break;
    case LETTER_SNAPSHOT_NONE:
        snapshot_none(w);
        break;
    case LETTER_SNAPSHOT_FAIL:
        kve_machine_snapshot_failed(machine, w->now, w->snapshot.ask);
        pull(w);
        break;
    case LETTER_SAVE:
        save(w);
        break;
    case LETTER_RESUME:
        resume(w);
        break;
    case N_LETTERS:
        break;
    }
}

/* Does a request for a replay go wrong now? */
static bool
is_fault(const struct world *w, enum letter letter)
{
    return letter == LETTER_FAIL || letter == LETTER_ANSWER_HOLED ||
        (letter == LETTER_TIMER && w->answer.ask != 0);
}

void
world_step(struct world *w, enum letter letter)
{
    bool fault = is_fault(w, letter);

    w->faults = w->faults || fault;
    take(w, letter);
    w->faults = w->faults || fault; /* a CLEAR may be what it brought about */
    forget_lives(w);
}

/* ---- beginning and end --------------------------------------------- */

void
world_begin(struct world *w, const struct config *the_config, FILE *out)
{
    memset(w, 0, sizeof(*w));
    config = the_config;
    trace_to = out;
    w->now = KVE_MS;
    create_machine();
}

/* A snapshot mends everything, sooner or later. */
static bool
may_stay(const struct world *w)
{
    if (w->state == KVE_STATE_LIVE)
        return true;
    if (kve_machine_deadline(machine) == KVE_NEVER)
        return true;
    return w->state == KVE_STATE_DEGRADED && !config->snapshot;
}

/* Let everything come that is on its way, until time alone would pass. */
static void
rest(struct world *w)
{
    unsigned rounds = 0;
    unsigned standing = 0;
    unsigned still = 0;

    while (still < 3 && w->broken == NULL) {
        EXPECT(w, ++rounds < QUIET_ROUNDS);
        read_all(w);
        if (w->broken != NULL)
            return;
        if (w->answer.ask != 0) {
            answer(w);
        } else if (w->snapshot.ask != 0) {
            snapshot(w, false);
        } else {
            if (w->heartbeats && still == 0 && may_publish(w))
                world_step(w, LETTER_HEARTBEAT);
            still += may_stay(w);
            if (kve_machine_deadline(machine) == KVE_NEVER) {
                w->now += 2 * TIMEOUT;
            } else {
                int64_t before = w->now;
                trace("\nT");
                timer(w);
                standing = w->now > before ? 0 : standing + 1;
                EXPECT(w, standing < 3); /* time moves on */
            }
        }
    }
}

/* All of the publisher's life can be had, was readable, and no request went
 * wrong since the source was begun anew: there is nothing to excuse. One that
 * began at 1 after a reset may always have begun at 0, and one that has nothing
 * to show may be one that keeps nothing. */
static bool
must_be_exact(const struct world *w)
{
    const struct life *l = &w->lives[w->life];

    return config->replay && !w->faults && l->base == 0 && l->holes == 0 &&
        l->unreadable == 0 && l->next > 0 && w->n_buffer == l->next;
}

void
world_quiet(struct world *w)
{
    trace("\nquiet");
    n_asks = 0;
    if (!w->up)
        go_up(w);
    rest(w);
    EXPECT(w, n_asks <= QUIET_ASKS);
    EXPECT(w, !must_be_exact(w) || w->state == KVE_STATE_LIVE);
}

/* What makes a source whole again in any case. */
static void
begin_anew(struct world *w)
{
    if (config->ids) {
        world_step(w, LETTER_RESTART);
        world_step(w, LETTER_CONNECT);
        world_step(w, LETTER_PUBLISH);
    } else {
        world_step(w, LETTER_CLEAR);
    }
    rest(w);
    EXPECT(w, w->state == KVE_STATE_LIVE);
    EXPECT(w, w->visible.has && w->visible.next == w->lives[w->life].next);
}

void
world_end(struct world *w)
{
    const struct copy *c = &w->visible;

    n_asks = 0;
    for (int i = 0; i < 2 && may_publish(w) && w->broken == NULL; i++) {
        world_step(w, LETTER_PUBLISH);
        rest(w);
    }
    EXPECT(w, n_asks <= QUIET_ASKS);
    EXPECT(w, w->state == KVE_STATE_LIVE || w->state == KVE_STATE_DEGRADED);
    EXPECT(w, c->has && c->life == w->life);
    EXPECT(w, c->next == w->lives[w->life].next);
    if (config->snapshot)
        EXPECT(w, w->state == KVE_STATE_LIVE);
    if (may_publish(w) && may_restart(w) && w->broken == NULL)
        begin_anew(w);
    trace("\n");
    kve_machine_destroy(machine);
    EXPECT(w, kve_arena_blocks() == 0);
}

/* ---- points -------------------------------------------------------- */

struct world_point {
    struct world world;
    struct kve_machine *machine;
    unsigned char arena[];
};

struct world_point *
world_point_create(void)
{
    struct world_point *point = calloc(1, sizeof(*point) + kve_arena_size());

    if (point == NULL)
        abort();
    return point;
}

void
world_point_destroy(struct world_point *point)
{
    free(point);
}

void
world_save(const struct world *w, struct world_point *point)
{
    point->world = *w;
    point->machine = machine;
    kve_arena_save(point->arena);
}

void
world_load(struct world *w, const struct world_point *point)
{
    *w = point->world;
    machine = point->machine;
    kve_arena_load(point->arena);
}

uint64_t
world_hash(const struct world *w)
{
    return kve_arena_hash() ^ XXH3_64bits(w, sizeof(*w));
}
