/*
 * test_machine.c - the order of one source, as stories.
 *
 * A row is one story: what happens, in words of the alphabet below, and the
 * exact actions that the machine wants done, in order. Payload digests are
 * made from a number and a life ('a' unless said), so that "L3b" is number 3
 * of another publisher than "L3".
 *
 *   C D        connected, disconnected          L3 L3b   live batch 3
 *   R3 R3b     replay batch 3                   E        end of the answer
 *   F          the answer failed                T        the deadline comes
 *   T*3        three deadlines in a row         X        reset message
 *   U Z        unreadable, cleared              O3       late: batch 3 of the
 *                                                        request before
 *
 *   l3 r3      apply 3, live or replayed        ?3 p3    ask from 3, probe
 *   !          close the request                clear:why
 *   live:why recovering:why ...  state          gap1-2 lost1-2:why fixed1-2
 *   failed3 full3                               tail, no-tail (when asked: K)
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

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

enum {
    REPLAY = 1,
    KEEP = 2,
    LIVE_ONLY = 4,
    FROM_5 = 8,
    HOLD_2 = 16,
    NO_PROBE = 32
};

static const struct {
    const char *name;
    int how;
    const char *in;
    const char *want;
} rows[] = {
    /* ---- no replay endpoint ---- */
    { "in order from the first", 0, "C L0 L1 K",
        "l0 live:caught_up l1 no-tail" },
    { "late without replay: what was before is lost", 0, "C L3 L4",
        "lost0-2:late_start l3 degraded:late_start l4" },
    { "gap without replay", 0, "C L0 L3 L4",
        "l0 live:caught_up gap1-2 lost1-2:no_replay l3 degraded:no_replay l4" },
    { "gap, cleared afterwards: whole again", 0, "C L0 L3 Z L4",
        "l0 live:caught_up gap1-2 lost1-2:no_replay l3 degraded:no_replay "
        "live:cleared l4" },
    { "repeat", 0, "C L0 L1 L1 L0 L2", "l0 live:caught_up l1 l2" },
    { "restart from zero", 0, "C L0 L1 L0b L1b",
        "l0 live:caught_up l1 clear:restart l0 l1" },
    { "restart without the first ones", 0, "C L0 L1 L2 L1b",
        "l0 live:caught_up l1 l2 clear:restart lost0-0:late_start l1 "
        "degraded:late_start" },
    { "reset message, then zero", 0, "C L0 L1 X L0b",
        "l0 live:caught_up l1 clear:reset cold:reset l0 live:caught_up" },
    { "reset message, then one", 0, "C L0 L1 X L1b L2b",
        "l0 live:caught_up l1 clear:reset cold:reset l1 live:caught_up l2" },
    { "unreadable degrades, a clear mends", 0, "C L0 U L1 Z L2",
        "l0 live:caught_up degraded:unreadable l1 live:cleared l2" },
    { "connection lost and back", 0, "C L0 D C L1",
        "l0 live:caught_up recovering:reconnect l1 live:caught_up" },
    { "a message before the connection is told", 0, "L0 C L1",
        "l0 recovering:starting live:caught_up l1" },
    { "start live: no beginning is missed", LIVE_ONLY, "C L7 L8 L10",
        "l7 live:caught_up l8 gap9-9 lost9-9:no_replay l10 "
        "degraded:no_replay" },

    /* ---- first contact with a replay endpoint ---- */
    { "warm and idle: asked at once, live after a probe", REPLAY,
        "C R0 R1 R2 E T R2 E K",
        "recovering:starting ?0 r0 r1 r2 ! p2 ! live:caught_up tail" },
    { "nothing published yet", REPLAY, "C E T E K L0",
        "recovering:starting ?0 ! p0 ! live:caught_up tail l0" },
    { "live while the first replay runs, once each", REPLAY,
        "C L4 R0 R1 R2 R3 R4 E L5",
        "recovering:starting ?0 r0 r1 r2 r3 r4 ! live:caught_up l5" },
    { "held ones follow the answer and confirm the tail", REPLAY,
        "C L2 L3 R0 R1 E K",
        "recovering:starting ?0 r0 r1 ! l2 l3 live:caught_up tail" },
    { "buffer shorter than history", REPLAY, "C R5 R6 E",
        "recovering:starting ?0 lost0-4:late_start r5 r6 ! "
        "degraded:late_start" },
    { "start at a number", REPLAY | FROM_5, "C R5 R6 E L7",
        "recovering:starting ?5 r5 r6 ! l7 live:caught_up" },
    { "start at a number that is gone", REPLAY | FROM_5, "C R7 E",
        "recovering:starting ?5 lost5-6:late_start r7 ! "
        "degraded:late_start" },
    { "start live asks nothing before a gap", REPLAY | LIVE_ONLY,
        "C L7 L9 R7 R8 E",
        "l7 live:caught_up gap8-8 recovering:gap ?7 r8 ! fixed8-8 l9 "
        "live:caught_up" },
    { "probes off: live after the answer", REPLAY | NO_PROBE, "C R0 E",
        "recovering:starting ?0 r0 ! live:caught_up" },

    /* ---- gaps ---- */
    { "gap inside the buffer", REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4",
        "recovering:starting ?0 ! l0 live:caught_up gap1-2 recovering:gap ?0 "
        "r1 r2 r3 ! fixed1-2 live:caught_up l4" },
    { "the answer ends before the held one", REPLAY, "C E L0 L2 R0 R1 E K",
        "recovering:starting ?0 ! l0 live:caught_up gap1-1 recovering:gap ?0 "
        "r1 ! fixed1-1 l2 live:caught_up tail" },
    { "older than the buffer: start over, degraded", REPLAY,
        "C E L0 L9 R7 R8 R9 E L10",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap ?0 "
        "clear:lost lost1-6:lost r7 r8 r9 ! fixed7-8 degraded:lost l10" },
    { "older than the buffer, keep", REPLAY | KEEP, "C E L0 L9 R7 R8 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap ?0 "
        "lost1-6:lost r7 r8 ! fixed7-8 l9 degraded:lost" },
    { "the buffer has nothing of it", REPLAY, "C E L0 L4 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap ?0 "
        "! clear:lost lost1-3:lost l4 degraded:lost" },
    { "hole for good: one more request, no third", REPLAY,
        "C E L0 L5 R0 R1 R3 R3 R4 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-4 recovering:gap ?0 "
        "r1 fixed1-1 ! ?2 lost2-2:lost r3 r4 ! fixed3-4 l5 degraded:lost" },
    { "hole that the second answer has", REPLAY,
        "C E L0 L5 R0 R1 R3 R2 R3 R4 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-4 recovering:gap ?0 "
        "r1 fixed1-1 ! ?2 r2 r3 r4 ! fixed2-4 l5 live:caught_up" },
    { "hole in the first replay", REPLAY, "C R0 R2 R2 E",
        "recovering:starting ?0 r0 ! ?1 lost1-1:lost r2 ! degraded:lost" },
    { "published between answer and hold", REPLAY, "C E L0 L2 R0 R1 L4 E R3 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-1 recovering:gap ?0 "
        "r1 ! fixed1-1 l2 ?3 r3 ! fixed3-3 l4 live:caught_up" },
    { "an answer with more than asked", REPLAY, "C E L0 L1 L3 R0 R1 R2 R3 E",
        "recovering:starting ?0 ! l0 live:caught_up l1 gap2-2 recovering:gap "
        "?1 r2 r3 ! fixed2-2 live:caught_up" },
    { "late frames of an old request", REPLAY, "C E L0 L2 F T O7 R0 R1 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-1 recovering:gap ?0 "
        "! failed1 ?0 r1 ! fixed1-1 l2 live:caught_up" },
    { "cut answers go on where they stopped", REPLAY,
        "C L5 R0 R1 T T R1 R2 F T R2 R3 R4 E",
        "recovering:starting ?0 r0 r1 ! failed2 ?1 r2 ! failed3 ?2 r3 r4 ! "
        "l5 live:caught_up" },
    { "no answer, ever: given up aloud", REPLAY, "C L2 T T T T T",
        "recovering:starting ?0 ! failed0 ?0 ! failed0 ?0 ! failed0 "
        "lost0-1:replay_failed l2 degraded:replay_failed" },
    { "hold full: dropped, then asked for", REPLAY | HOLD_2,
        "C L2 L3 L4 L5 R0 R1 E R3 R4 R5 E",
        "recovering:starting ?0 full4 r0 r1 ! l2 l3 recovering:gap ?3 r4 r5 "
        "!" },

    /* ---- another life ---- */
    { "restart with a higher number", REPLAY,
        "C E L0 L1 L4b R1b R0b R1b R2b R3b R4b E L5b T R4b "
        "R5b E",
        "recovering:starting ?0 ! l0 live:caught_up l1 gap2-3 recovering:gap "
        "?1 ! clear:restart recovering:restart ?0 r0 r1 r2 r3 r4 ! "
        "l5 p4 ! live:caught_up" },
    { "restart, first message in hand", REPLAY, "C E L0 L1 L0b L1b",
        "recovering:starting ?0 ! l0 live:caught_up l1 clear:restart l0 l1" },
    { "restart, first message missed", REPLAY, "C E L0 L1 L1b R0b R1b E L2b",
        "recovering:starting ?0 ! l0 live:caught_up l1 clear:restart "
        "recovering:restart ?0 r0 r1 ! live:caught_up l2" },
    { "reconnect to the same one", REPLAY, "C E L0 D C R0 E T R0 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! p0 ! live:caught_up" },
    { "reconnect to another one", REPLAY, "C E L0 D C R0b R0b E T R0b E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! clear:restart recovering:restart ?0 r0 ! p0 ! live:caught_up" },
    { "reconnect, the last one has left the buffer", REPLAY,
        "C E L0 D C R1 R2 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "clear:lost r1 r2 ! fixed1-2 degraded:lost" },
    { "reconnect to one that has nothing", REPLAY, "C R0 E T R0 E D C E E T E",
        "recovering:starting ?0 r0 ! p0 ! live:caught_up "
        "recovering:reconnect ?0 ! clear:restart recovering:restart ?0 ! p0 "
        "! live:caught_up" },
    { "reset: old replies are not asked for", REPLAY, "C E L0 X L0b L1b",
        "recovering:starting ?0 ! l0 live:caught_up clear:reset cold:reset "
        "l0 live:caught_up l1" },

    /* ---- the tail ---- */
    { "lost last batch is found by a probe", REPLAY,
        "C E L0 T R0 R1 E T R1 E K",
        "recovering:starting ?0 ! l0 live:caught_up p0 recovering:tail r1 ! "
        "fixed1-1 p1 ! live:caught_up tail" },
    { "the probe finds another life", REPLAY, "C E L0 T R0b R0b E",
        "recovering:starting ?0 ! l0 live:caught_up p0 ! clear:restart "
        "recovering:restart ?0 r0 !" },
    { "live goes on while a probe runs", REPLAY, "C E L0 T L1 R0 R1 E K L2",
        "recovering:starting ?0 ! l0 live:caught_up p0 l1 ! tail l2" },
    { "a gap ends the probe", REPLAY, "C E L0 T L2 R0 R1 E",
        "recovering:starting ?0 ! l0 live:caught_up p0 gap1-1 ! "
        "recovering:gap ?0 r1 ! fixed1-1 l2 live:caught_up" },
    { "a publisher without a buffer: unconfirmed, no loop", REPLAY,
        "C E L0 T E K L1",
        "recovering:starting ?0 ! l0 live:caught_up p0 ! no-tail l1" },
    { "probes that fail degrade, a good one mends", REPLAY,
        "C E L0 T T T T T T T R0 E K",
        "recovering:starting ?0 ! l0 live:caught_up p0 ! failed1 p0 ! failed1 "
        "p0 ! failed1 degraded:replay_failed p0 ! live:caught_up tail" },
    { "no probe while disconnected", REPLAY, "C E L0 D T",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect" },
    /* ---- messages that outlive their publisher ---- */
    { "late start, then a restart", 0, "C L5 L0b L1b",
        "lost0-4:late_start l5 degraded:late_start clear:restart l0 "
        "live:caught_up l1" },
    { "a number as high as can be, then the next ones", 0,
        "C L0 L1 L18446744073709551614 L2 L3",
        "l0 live:caught_up l1 gap2-18446744073709551613 "
        "lost2-18446744073709551613:no_replay l18446744073709551614 "
        "degraded:no_replay clear:restart lost0-1:late_start l2 "
        "degraded:late_start l3" },
    { "a held one that contradicts the answer is dropped", REPLAY,
        "C E L0 L1 D C L1c R1b R0b R1b R2b E T R2b E",
        "recovering:starting ?0 ! l0 live:caught_up l1 recovering:reconnect "
        "?1 ! clear:restart recovering:restart ?0 r0 r1 r2 ! p2 ! "
        "live:caught_up" },
    { "one far beyond all the publisher has is dropped", REPLAY,
        "C R0 R1 E L9b R1 E E T R1 E L2",
        "recovering:starting ?0 r0 r1 ! gap2-8 recovering:gap ?1 ! ?2 ! p1 "
        "! live:caught_up l2" },
    { "an old one that follows by chance is found out", REPLAY,
        "C E L0 L1 D C L2 R1b R0b R1b E T R1b E R0b R1b E T R1b E",
        "recovering:starting ?0 ! l0 live:caught_up l1 recovering:reconnect "
        "?1 ! clear:restart recovering:restart ?0 r0 r1 ! l2 p1 ! "
        "clear:restart ?0 r0 r1 ! p1 ! live:caught_up" },
    { "after a reconnect the order of live is no proof", REPLAY,
        "C E L0 D C R0 E L1 T R0 R1 E L2",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! l1 p0 ! live:caught_up l2" },
    { "a leftover reset", REPLAY, "C E L0 L1 D C X L0c R0b R1b E T R1b E L2b",
        "recovering:starting ?0 ! l0 live:caught_up l1 recovering:reconnect "
        "?1 ! clear:reset recovering:reset ?0 r0 r1 ! p1 ! live:caught_up "
        "l2" },
    { "reconnect after a reset: asked at once", REPLAY,
        "C E L0 X D C R0b R1b E T R1b E",
        "recovering:starting ?0 ! l0 live:caught_up clear:reset cold:reset "
        "recovering:reconnect ?0 r0 r1 ! fixed0-1 p1 ! live:caught_up" },
    { "start live, the first one is of before", REPLAY | LIVE_ONLY,
        "C D C L7 T R7b R0b R1b E T R1b E",
        "l7 p6 ! clear:restart recovering:restart ?0 r0 r1 ! p1 ! "
        "live:caught_up" },
    { "a hole while the life is in doubt", REPLAY, "C E L0 D C R0 R2 R0 R2 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! ?0 lost1-1:lost r2 ! fixed2-2 degraded:lost" },
    { "a hole asked for when the connection goes", REPLAY,
        "C E L0 L4 R0 R2 D R0 R1 R2 R3 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap "
        "?0 ! ?1 ! ?0 r1 r2 r3 ! fixed1-3 l4 recovering:reconnect" },
    { "reconnected, and the one we know is not to be had", REPLAY,
        "C E L0 D C L1 T T T T T L2",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! failed1 ?0 ! failed1 ?0 ! failed1 clear:lost l1 "
        "degraded:replay_failed l2" },
    { "nothing there yet when asked, lost by live, held since", REPLAY,
        "C L1 E R0 R1 E",
        "recovering:starting ?0 ! ?0 r0 r1 ! live:caught_up" },

    /* ---- odd orders of things ---- */
    { "live below the number to start with: another life", REPLAY | FROM_5,
        "C E L2 R0 R1 R2 E",
        "recovering:starting ?5 ! clear:restart recovering:restart ?0 r0 r1 "
        "r2 ! live:caught_up" },
    { "more than asked for, and nothing of it", REPLAY | FROM_5,
        "C L9 R3 R4 E R3 R4 E T R3 R4 E L5",
        "recovering:starting ?5 ! ?5 ! p5 ! live:caught_up l5" },
    { "an answer of lower numbers only is an empty one", REPLAY,
        "C R0 R1 R2 E T R1 R2 E T R1 E",
        "recovering:starting ?0 r0 r1 r2 ! p2 ! live:caught_up p2 ! "
        "clear:restart recovering:restart ?0" },
    { "cleared while disconnected", REPLAY, "C E L0 L2 E E D L3 Z K",
        "recovering:starting ?0 ! l0 live:caught_up gap1-1 recovering:gap "
        "?0 ! clear:lost lost1-1:lost l2 degraded:lost l3 "
        "recovering:reconnect no-tail" },
    { "the connection goes while a probe repairs", REPLAY,
        "C E L0 T R0 R1 D R2 E L3",
        "recovering:starting ?0 ! l0 live:caught_up p0 recovering:tail r1 "
        "r2 ! fixed1-2 l3 recovering:reconnect" },
    { "no proof of the tail while disconnected", REPLAY, "C E L0 D L1 K",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect l1 "
        "no-tail" },
    { "failed probes do not count against a gap", REPLAY,
        "C E L0 T T T T L2 T T R0 R1 E",
        "recovering:starting ?0 ! l0 live:caught_up p0 ! failed1 p0 ! "
        "failed1 gap1-1 recovering:gap ?0 ! failed1 ?0 r1 ! fixed1-1 l2 "
        "live:caught_up" },
    { "nothing answers, the held ones are another life", REPLAY,
        "C E L0 L1 L3 L0b L1b T T T T T",
        "recovering:starting ?0 ! l0 live:caught_up l1 gap2-2 "
        "recovering:gap ?1 ! failed2 ?1 ! failed2 ?1 ! failed2 "
        "lost2-2:replay_failed l3 clear:restart l0 l1 "
        "degraded:replay_failed" },
    { "a probe that finds a hole", REPLAY, "C E L0 T R0 R2 R2 E",
        "recovering:starting ?0 ! l0 live:caught_up p0 recovering:tail ! ?1 "
        "lost1-1:lost r2 ! fixed2-2 degraded:lost" },
    { "what a broken answer repaired is told", REPLAY,
        "C E L0 L4 R0 R1 D C R1 R2 R3 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap "
        "?0 r1 ! fixed1-1 recovering:reconnect ?1 r2 r3 ! fixed2-3 l4" },
    { "unreadable in a replay", REPLAY, "C R0 U R1 E L2",
        "recovering:starting ?0 r0 r1 ! degraded:unreadable l2" },
};

/* ---- the player ---------------------------------------------------- */

struct play {
    struct kve_machine *m;
    struct kve_sub_counters counters;
    int64_t now;
    uint32_t ask;
    uint32_t old_ask;
    char got[2048];
};

static void
say(struct play *p, const char *fmt, ...)
{
    size_t len = strlen(p->got);
    va_list ap;

    if (len > 0 && len + 1 < sizeof(p->got))
        p->got[len++] = ' ';
    va_start(ap, fmt);
    (void)vsnprintf(p->got + len, sizeof(p->got) - len, fmt, ap);
    va_end(ap);
}

static void
say_notice(struct play *p, const struct kve_action *a)
{
    switch (a->notice) {
    case KVE_NOTICE_GAP:
        say(p, "gap%" PRIu64 "-%" PRIu64, a->first, a->last);
        break;
    case KVE_NOTICE_LOST:
        say(p, "lost%" PRIu64 "-%" PRIu64 ":%s", a->first, a->last,
            kve_reason_str(a->reason));
        break;
    case KVE_NOTICE_REPAIRED:
        say(p, "fixed%" PRIu64 "-%" PRIu64, a->first, a->last);
        break;
    case KVE_NOTICE_REPLAY_FAILED:
        say(p, "failed%" PRIu64, a->first);
        break;
    case KVE_NOTICE_HOLD_FULL:
        say(p, "full%" PRIu64, a->first);
        break;
    case KVE_NOTICE_REPLAY: /* stands beside each ? */
        break;
    default:
        say(p, "notice%u", a->notice);
        break;
    }
}

static void
pull(struct play *p)
{
    struct kve_action a;

    while (kve_machine_next(p->m, &a)) {
        switch (a.type) {
        case KVE_ACTION_APPLY:
            /* What was handed in comes out, also from the hold buffer. */
            assert_int_equal(a.msg.payload.len, 8);
            assert_memory_equal(a.msg.payload.data, &a.msg.digest, 8);
            say(p, "%c%" PRIu64, a.replayed ? 'r' : 'l', a.msg.number);
            break;
        case KVE_ACTION_ASK:
            p->old_ask = p->ask;
            p->ask = a.ask;
            say(p, "%c%" PRIu64, a.probe ? 'p' : '?', a.first);
            break;
        case KVE_ACTION_STOP:
            assert_int_equal(a.ask, p->ask);
            say(p, "!");
            break;
        case KVE_ACTION_CLEAR:
            say(p, "clear:%s", kve_reason_str(a.reason));
            break;
        case KVE_ACTION_STATE:
            say(p, "%s:%s", kve_state_str(a.state), kve_reason_str(a.reason));
            break;
        case KVE_ACTION_NOTICE:
            say_notice(p, &a);
            break;
        }
    }
}

static void
feed(struct play *p, const char *word)
{
    char *end = NULL;
    uint64_t number = strtoull(word + 1, &end, 10);
    uint64_t digest = number * 31 + (*end != '\0' ? (uint64_t)*end : 'a');
    /* Lives in this block only, as a received message would. */
    uint64_t bytes = digest;
    struct kve_machine_msg msg = { number, digest, { NULL, 0 },
        { (const uint8_t *)&bytes, 8 }, NULL };
    struct kve_source_info info = { .struct_size = sizeof(info) };

    p->now += KVE_MS;
    switch (word[0]) {
    case 'C':
        kve_machine_connected(p->m, p->now);
        break;
    case 'D':
        kve_machine_disconnected(p->m, p->now);
        break;
    case 'L':
        kve_machine_live(p->m, p->now, &msg);
        break;
    case 'X':
        kve_machine_reset(p->m, p->now);
        break;
    case 'R':
        kve_machine_replay(p->m, p->now, p->ask, &msg);
        break;
    case 'O':
        kve_machine_replay(p->m, p->now, p->old_ask, &msg);
        break;
    case 'E':
        kve_machine_replay_end(p->m, p->now, p->ask);
        break;
    case 'F':
        kve_machine_replay_failed(p->m, p->now, p->ask);
        break;
    case 'U':
        kve_machine_unreadable(p->m, p->now);
        break;
    case 'Z':
        kve_machine_cleared(p->m, p->now);
        break;
    case 'T':
        if (kve_machine_deadline(p->m) != KVE_NEVER)
            p->now = kve_machine_deadline(p->m);
        kve_machine_timer(p->m, p->now);
        break;
    case 'K':
        kve_machine_info(p->m, &info);
        say(p, info.tail_confirmed ? "tail" : "no-tail");
        break;
    default:
        fail_msg("no such word: %s", word);
    }
    pull(p);
}

static void
play_row(int how, const char *in, struct play *p)
{
    struct kve_machine_opts opts = {
        .has_replay = (how & REPLAY) != 0,
        .rebuild = (how & REPLAY) != 0 && (how & KEEP) == 0,
        .start = (how & LIVE_ONLY) != 0 ? KVE_START_LIVE
            : (how & FROM_5) != 0       ? KVE_START_NUMBER
                                        : KVE_START_DEFAULT,
        .first_number = 5,
        .hold_bytes = 1 << 20,
        .hold_items = (how & HOLD_2) != 0 ? 2 : 1000,
        .replay_timeout_ns = 5000 * KVE_MS,
        .tail_probe_ns = (how & NO_PROBE) != 0 ? KVE_NEVER : 500 * KVE_MS,
        .counters = &p->counters,
    };
    char words[512];
    char *rest = NULL;

    assert_int_equal(kve_machine_create(&opts, &p->m, NULL), KVE_OK);
    (void)snprintf(words, sizeof(words), "%s", in);
    for (char *w = strtok_r(words, " ", &rest); w != NULL;
         w = strtok_r(NULL, " ", &rest))
        feed(p, w);
}

static void
test_stories(void **state)
{
    int bad = 0;

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct play p = { .now = KVE_MS };

        play_row(rows[i].how, rows[i].in, &p);
        if (strcmp(p.got, rows[i].want) != 0) {
            print_error("%s: %s\n   got  %s\n   want %s\n", rows[i].name,
                rows[i].in, p.got, rows[i].want);
            bad++;
        }
        kve_machine_destroy(p.m);
    }
    assert_int_equal(bad, 0);
    assert_int_equal(kve_mem_live(), 0);
}

/* ---- counters ------------------------------------------------------ */

static const struct {
    const char *in;
    enum kve_counter counter;
    uint64_t want;
} counts[] = {
    { "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_GAPS, 1 },
    { "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_MISSED, 2 },
    { "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_REPAIRED, 2 },
    { "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_REPLAYS, 2 },
    { "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_HELD, 1 },
    { "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_REPEATS, 1 },
    /* Held ones with a gap between them that the same answer fills ... */
    { "C E L0 L2 L5 R0 R1 R2 R3 R4 R5 E", KVE_COUNTER_SUB_GAPS, 2 },
    { "C E L0 L2 L5 R0 R1 R2 R3 R4 R5 E", KVE_COUNTER_SUB_MISSED, 3 },
    { "C E L0 L2 L5 R0 R1 R2 R3 R4 R5 E", KVE_COUNTER_SUB_REPAIRED, 3 },
    /* ... or the next one. */
    { "C E L0 L2 R0 R1 L5 E R3 R4 E", KVE_COUNTER_SUB_GAPS, 2 },
    { "C E L0 L2 R0 R1 L5 E R3 R4 E", KVE_COUNTER_SUB_MISSED, 3 },
    { "C E L0 L2 R0 R1 L5 E R3 R4 E", KVE_COUNTER_SUB_REPAIRED, 3 },
    { "C R0 R1 R2 E", KVE_COUNTER_SUB_REPAIRED, 0 },
    { "C R0 R1 R2 E", KVE_COUNTER_SUB_MISSED, 0 },
    { "C E L0 L5 R0 R1 R3 R3 R4 E", KVE_COUNTER_SUB_REPLAYS, 3 },
    { "C E L0 L5 R0 R1 R3 R3 R4 E", KVE_COUNTER_SUB_LOST, 1 },
    { "C E L0 L5 R0 R1 R3 R3 R4 E", KVE_COUNTER_SUB_REPAIRED, 3 },
    { "C E L0 T R0 R1 R2 E", KVE_COUNTER_SUB_MISSED, 2 },
    { "C E L0 T R0 R1 R2 E", KVE_COUNTER_SUB_REPAIRED, 2 },
    { "C E L0 T R0 R1 R2 E", KVE_COUNTER_SUB_PROBES, 1 },
    { "C E L0 L0b", KVE_COUNTER_SUB_RESTARTS, 1 },
    { "C E L0 X", KVE_COUNTER_SUB_RESETS, 1 },
    { "C E L0 X", KVE_COUNTER_SUB_RESTARTS, 0 },
    { "C L2 T T T T T", KVE_COUNTER_SUB_REPLAY_TIMEOUTS, 3 },
};

static void
test_counters(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(counts); i++) {
        struct play p = { .now = KVE_MS };

        play_row(REPLAY, counts[i].in, &p);
        uint64_t got = kve_sub_count_get(&p.counters, counts[i].counter);
        if (got != counts[i].want)
            fail_msg("%s: %s is %" PRIu64 ", want %" PRIu64, counts[i].in,
                kve_counter_str(counts[i].counter), got, counts[i].want);
        kve_machine_destroy(p.m);
    }
}

/* Feed a run of numbers; only what the last one brought about is kept. */
static void
feed_run(struct play *p, const char *fmt, unsigned first, unsigned last)
{
    char word[16];

    for (unsigned i = first; i <= last; i++) {
        p->got[0] = '\0';
        (void)snprintf(word, sizeof(word), fmt, i);
        feed(p, word);
    }
}

/* A replay that runs far ahead of a live stream that lags: what the live
 * stream then brings again is no other life, however far behind it is. */
static void
test_live_lags(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C E L0 L3 L4", &p);
    feed_run(&p, "R%u", 0, 2000);
    p.got[0] = '\0';
    feed(&p, "E");
    assert_string_equal(p.got, "! fixed1-2");
    for (unsigned i = 5; i < 2000; i++) {
        feed_run(&p, "L%u", i, i);
        assert_string_equal(p.got, "");
    }
    feed_run(&p, "L%u", 2000, 2000);
    assert_string_equal(p.got, "live:caught_up");
    feed_run(&p, "L%u", 2001, 2001);
    assert_string_equal(p.got, "l2001");
    assert_int_equal(
        kve_sub_count_get(&p.counters, KVE_COUNTER_SUB_RESTARTS), 0);

    /* And one that falls back is another life, however far. */
    feed_run(&p, "L%ub", 0, 0);
    assert_string_equal(p.got, "clear:restart l0");
    kve_machine_destroy(p.m);
}

/* The same, before the live stream brought anything: nothing tells a lagging
 * one from another life but the probe, which is not long in coming. */
static void
test_live_lags_from_the_start(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C", &p);
    feed_run(&p, "R%u", 0, 2000);
    feed(&p, "E");
    for (int i = 0; i < 6; i++) {
        feed(&p, "T");
        feed(&p, "R2000");
        feed(&p, "E");
    }
    assert_true(kve_machine_deadline(p.m) - p.now > 5000 * KVE_MS);
    feed_run(&p, "L%ub", 500, 500);
    assert_string_equal(p.got, "");
    assert_int_equal(kve_machine_deadline(p.m) - p.now, 500 * KVE_MS);
    feed(&p, "T");
    assert_string_equal(p.got, "p2000");
    feed(&p, "E");
    assert_string_equal(p.got, "p2000 ! clear:restart recovering:restart ?0");
    kve_machine_destroy(p.m);
}

/* Probes come at doubling intervals while the source is silent, up to 30 s,
 * and start anew with the next live message. */
static void
test_probe_intervals(void **state)
{
    static const int64_t want_ms[] = { 500, 1000, 2000, 4000, 8000, 16000,
        30000, 30000 };
    struct play p = { .now = KVE_MS };
    int64_t last;

    (void)state;
    play_row(REPLAY, "C E L0", &p);
    last = p.now;
    for (size_t i = 0; i < N_OF(want_ms); i++) {
        int64_t at = kve_machine_deadline(p.m);
        /* Counted from the probe before, whatever its answer took. */
        assert_int_equal((at - last) / KVE_MS, want_ms[i]);
        feed(&p, "T");
        last = p.now;
        feed(&p, "R0");
        feed(&p, "E");
    }
    feed(&p, "L1");
    assert_int_equal((kve_machine_deadline(p.m) - p.now) / KVE_MS, 500);
    kve_machine_destroy(p.m);
}

/* A request that failed is made again after a while, which doubles as long as
 * nothing comes of it. */
static void
test_retry_delays(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C L5", &p);
    for (int ms = 200; ms <= 400; ms *= 2) {
        feed(&p, "F");
        assert_int_equal((kve_machine_deadline(p.m) - p.now) / KVE_MS, ms);
        feed(&p, "T");
    }
    feed(&p, "R0");
    feed(&p, "F");
    assert_int_equal((kve_machine_deadline(p.m) - p.now) / KVE_MS, 100);
    kve_machine_destroy(p.m);
}

/* An answer that only repeats itself is silence: it is not waited for. */
static void
test_answer_goes_round(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C R0 R1", &p);
    int64_t deadline = kve_machine_deadline(p.m);
    feed(&p, "R0");
    feed(&p, "R1");
    assert_int_equal(kve_machine_deadline(p.m), deadline);
    feed(&p, "R2");
    assert_true(kve_machine_deadline(p.m) > deadline);
    kve_machine_destroy(p.m);
}

/* In doubt the probe comes while the digests are still known, however busy
 * the live stream is. */
static void
test_doubt_under_load(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C E L0 D C R0 E", &p);
    feed_run(&p, "L%u", 1, 128);
    assert_true(kve_machine_deadline(p.m) > p.now);
    feed_run(&p, "L%u", 129, 129);
    assert_true(kve_machine_deadline(p.m) <= p.now);
    feed(&p, "T");
    assert_string_equal(p.got, "l129 p0");
    feed_run(&p, "L%u", 130, 200);
    feed_run(&p, "R%u", 0, 200);
    feed(&p, "E");
    assert_string_equal(p.got, "! live:caught_up");
    kve_machine_destroy(p.m);
}

/* The hold buffer is bounded in bytes, and empty when the story is over. */
static void
test_hold_bytes(void **state)
{
    struct play p = { .now = KVE_MS };
    struct kve_machine_opts opts = { .has_replay = true,
        .hold_bytes = 1000,
        .hold_items = 1000,
        .replay_timeout_ns = 5000 * KVE_MS,
        .tail_probe_ns = 500 * KVE_MS,
        .counters = &p.counters };
    char word[16];

    (void)state;
    assert_int_equal(kve_machine_create(&opts, &p.m, NULL), KVE_OK);
    feed(&p, "C");
    for (int i = 1; i < 100; i++) {
        (void)snprintf(word, sizeof(word), "L%d", i);
        feed(&p, word);
        assert_true(kve_machine_held_bytes(p.m) <= 1000);
    }
    assert_true(kve_machine_held_bytes(p.m) > 0);
    feed(&p, "R0");
    feed(&p, "E");
    assert_int_equal(kve_machine_held_bytes(p.m), 0);
    kve_machine_destroy(p.m);
}

/* Memory that is short while messages are held costs a replay, no batch. */
static void
test_hold_without_memory(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C", &p);
    kve_mem_fail_at(1, false);
    feed(&p, "L1");
    kve_mem_fail_at(0, false);
    feed(&p, "R0");
    feed(&p, "E");
    feed(&p, "R0");
    feed(&p, "R1");
    feed(&p, "E");
    assert_string_equal(
        p.got, "recovering:starting ?0 full1 r0 ! recovering:gap ?0 r1 !");
    kve_machine_destroy(p.m);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_live_lags),
        cmocka_unit_test(test_live_lags_from_the_start),
        cmocka_unit_test(test_probe_intervals),
        cmocka_unit_test(test_retry_delays),
        cmocka_unit_test(test_answer_goes_round),
        cmocka_unit_test(test_doubt_under_load),
        cmocka_unit_test(test_hold_bytes),
        cmocka_unit_test(test_hold_without_memory),
    };

    return cmocka_run_group_tests_name("stream/machine", tests, NULL, NULL);
}
