/*
 * test_machine.c - the order of one source, as stories.
 *
 * A row is one story: what happens, in words of the alphabet below, and the
 * exact actions that the machine wants done, in order. Payload digests are
 * made from a number and a life ('a' unless said), so that "L3b" is number 3
 * of another publisher than "L3". A capital letter gives that life an id, too:
 * "L3B" is the same batch as "L3b", and says whose it is.
 *
 *   C D        connected, disconnected          L3 L3b   live batch 3
 *   R3 R3b     replay batch 3                   E        end of the answer
 *   F          the answer failed                T        the deadline comes
 *   X          reset message                    H3A      live, empty: heartbeat
 *   U Z        unreadable, cleared              O3       late: batch 3 of the
 *                                                        request before
 *   S7A S-2A   a snapshot of life A at 7        P N      a part, its end
 *   G          no snapshot came                 W        it has left
 *   +500       half a second passes             Q        the request is sent
 *                                                        (at once if not
 *                                                        LATE_ASK)
 *   V          it is said where the reader      B        a new machine goes on
 *              stands, and kept                          from there
 *
 *   l3 r3      apply 3, live or replayed        ?3 p3    ask from 3, probe
 *   part7      apply a part of a snapshot at 7  snap?    ask for a snapshot
 *   ~l3        it belongs to the twin           no-snap  none was to be had
 *   begin:why swap abort                        clear:why
 *   !          close the request                stale fresh
 *   live:why recovering:why ...  state          gap1-2 lost1-2:why fixed1-2
 *   failed3 full3                               tail, no-tail (when asked: K)
 *   never, in500                                the next deadline (asked: J)
 *   missing1-2                                  what is missing (asked: M)
 *   at3 at3?1 at3:why nowhere                   where the reader stands (asked:
 *                                               V); in doubt since after 1;
 *                                               degraded
 *   @3 @-                                       the same after each action that
 *                                               calls back (if WHERE)
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
    NO_PROBE = 32,
    SNAP = 64,
    LATE_ASK = 128,
    WHERE = 256
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
        "l0 live:caught_up gap1-2 lost1-2:no_replay degraded:no_replay l3 l4" },
    { "gap, cleared afterwards: whole again", 0, "C L0 L3 Z L4",
        "l0 live:caught_up gap1-2 lost1-2:no_replay degraded:no_replay l3 "
        "live:cleared l4" },
    { "repeat", 0, "C L0 L1 L1 L0 L2", "l0 live:caught_up l1 l2" },
    { "restart from zero", 0, "C L0 L1 L0b L1b",
        "l0 live:caught_up l1 clear:restart l0 l1" },
    { "restart without the first ones", 0, "C L0 L1 L2 L1b",
        "l0 live:caught_up l1 l2 clear:restart lost0-0:late_start "
        "degraded:late_start l1" },
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
        "l7 live:caught_up l8 gap9-9 lost9-9:no_replay degraded:no_replay "
        "l10" },

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
        "begin:lost lost1-6:lost ~r7 ~r8 ~r9 ! fixed7-8 swap degraded:lost "
        "l10" },
    { "older than the buffer, keep", REPLAY | KEEP, "C E L0 L9 R7 R8 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap ?0 "
        "lost1-6:lost r7 r8 ! fixed7-8 l9 degraded:lost" },
    { "the buffer has nothing of it", REPLAY, "C E L0 L4 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap ?0 "
        "! begin:lost lost1-3:lost ~l4 swap degraded:lost" },
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
        "begin:lost ~r1 ~r2 ! fixed1-2 swap degraded:lost" },
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
        "lost2-18446744073709551613:no_replay degraded:no_replay "
        "l18446744073709551614 clear:restart lost0-1:late_start l2 "
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
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 ! "
        "failed1 ?0 ! failed1 ?0 ! failed1 begin:lost ~l1 swap "
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
        "recovering:starting ?0 ! l0 live:caught_up gap1-1 recovering:gap ?0 "
        "! begin:lost lost1-1:lost ~l2 swap degraded:lost l3 "
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

    /* ---- ids ---- */
    { "B7: a restart from zero without a replay endpoint", 0,
        "C L0 L1 L2 L0b L1b", "l0 live:caught_up l1 l2 clear:restart l0 l1" },
    { "B8: a restart that does not go backwards", REPLAY,
        "C E L0 D C L5b R0b R0b R1b R2b R3b R4b E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "?0 ! clear:restart recovering:restart ?0 r0 r1 r2 r3 r4 ! l5" },
    { "the id changes while the numbers go on", 0, "C L0A L1A L2B L3B",
        "l0 live:caught_up l1 clear:new_id lost0-1:late_start "
        "degraded:late_start l2 l3" },
    { "the id changes, from the first batch on", 0, "C L0A L1A L0B L1B",
        "l0 live:caught_up l1 clear:new_id l0 l1" },
    { "the id changes, numbers go on: asked from the first", REPLAY,
        "C E L0A L1A L2B R0B R1B E",
        "recovering:starting ?0 ! l0 live:caught_up l1 clear:new_id "
        "recovering:new_id ?0 r0 r1 ! l2 live:caught_up" },
    { "the id changes, and the answer is still of the life before", REPLAY,
        "C E L0A L1A L2B R0A T R0B R1B E",
        "recovering:starting ?0 ! l0 live:caught_up l1 clear:new_id "
        "recovering:new_id ?0 ! failed0 ?0 r0 r1 ! l2 live:caught_up" },
    { "the same id whatever the number: a repeat", 0,
        "C L0A L1A L2A L0A L1A L3A", "l0 live:caught_up l1 l2 l3" },
    { "the same id whatever the bytes", 0, "C L0A L1A L1A L2A",
        "l0 live:caught_up l1 l2" },
    { "no id in a life that has one: number and digest judge", 0,
        "C L0A L1a L1a L0b", "l0 live:caught_up l1 clear:restart l0" },
    { "an id that is learnt later", 0, "C L0 L1A L2B",
        "l0 live:caught_up l1 clear:new_id lost0-1:late_start "
        "degraded:late_start l2" },
    { "a message with the id ends the doubt", REPLAY, "C E L0A D C R0A E L1A K",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "?0 ! l1 live:caught_up tail" },
    { "one without an id does not", REPLAY, "C E L0A D C R0A E L1 T R0A R1A E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "?0 ! l1 p0 ! live:caught_up" },
    { "reconnect: the id of the answer proves where the batch is gone", REPLAY,
        "C E L0A D C R1A R2A E L3A",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "?0 r1 r2 ! fixed1-2 l3 live:caught_up" },
    { "B26: the batch asked for is gone, and there is no id", REPLAY,
        "C E L0 D C R1 R2 E L3",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "?0 begin:lost ~r1 ~r2 ! fixed1-2 swap degraded:lost l3" },
    { "B26: behind a clear only the clear needs a proof", REPLAY,
        "C E L0 D C R1 R2 E L3 Z L4 T R3 R4 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "?0 begin:lost ~r1 ~r2 ! fixed1-2 swap degraded:lost l3 l4 p3 ! "
        "live:caught_up" },
    { "an answer of another id", REPLAY, "C E L0A L3A R0B R0B R1B E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-2 recovering:gap "
        "?0 ! clear:new_id recovering:new_id ?0 r0 r1 !" },
    { "leftovers of the life before, by their id", 0,
        "C L0A D C L0B L1A L1B L2A L2B",
        "l0 live:caught_up recovering:reconnect clear:new_id l0 "
        "live:caught_up recovering:new_id l1 live:caught_up "
        "recovering:new_id l2 live:caught_up" },
    { "the life before comes back for good: it was no leftover", 0,
        "C L0A L1A L0B L2A +4000 L3A +2000 L4A",
        "l0 live:caught_up l1 clear:new_id l0 recovering:new_id "
        "clear:new_id lost0-3:late_start l4 degraded:late_start" },
    { "a held one of a life that the answer has left behind", REPLAY,
        "C E L0A D L1A C L7A R0B R0B R1B E L2B",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect "
        "l1 ?1 ! clear:new_id recovering:new_id ?0 r0 r1 ! l2 "
        "live:caught_up" },
    { "the replay endpoint of another publisher, with ids", REPLAY,
        "C R0X R1X E L5A L6A +6000 L7A R0X T R0X T R0X L8A",
        "recovering:starting ?0 r0 r1 ! clear:new_id recovering:new_id ?0 "
        "! failed0 ?0 ! failed0 ?0 ! failed0 lost0-6:replay_failed l7 "
        "degraded:replay_failed l8" },
    { "what was applied without an id was of another life", 0,
        "C L0A D C L1b L1A L2A",
        "l0 live:caught_up recovering:reconnect l1 live:caught_up "
        "clear:restart lost0-0:late_start degraded:late_start l1 l2" },

    /* ---- twin ---- */
    { "B14: a gap older than the buffer", REPLAY, "C E L0 L9 R7 R8 R9 E L10 Z",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap "
        "?0 begin:lost lost1-6:lost ~r7 ~r8 ~r9 ! fixed7-8 swap "
        "degraded:lost l10 live:cleared" },
    { "B13: a small gap touches nothing else", REPLAY,
        "C E L0 L1 L3 R1 R2 E L4",
        "recovering:starting ?0 ! l0 live:caught_up l1 gap2-2 "
        "recovering:gap ?1 r2 ! fixed2-2 l3 live:caught_up l4" },
    { "a restart while a twin is built", REPLAY,
        "C E L0 L9 R5 R6 D C R6b R0b R1b E R1b E T R1b E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap "
        "?0 begin:lost lost1-4:lost ~r5 ~r6 ! fixed5-6 "
        "recovering:reconnect ?6 ! abort clear:restart recovering:restart "
        "?0 r0 r1 ! ?1 ! p1 ! live:caught_up" },
    { "a reset message while a twin is built", REPLAY, "C E L0 L9 R5 R6 X L0b",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap "
        "?0 begin:lost lost1-4:lost ~r5 ~r6 ! fixed5-6 abort clear:reset "
        "cold:reset l0 live:caught_up" },
    { "gone again while a twin is built: it is begun again", REPLAY,
        "C E L0 L9 R5 F T R8 R9 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap "
        "?0 begin:lost lost1-4:lost ~r5 ! fixed5-5 failed6 ?5 begin:lost "
        "lost6-7:lost ~r8 ~r9 ! fixed8-8 swap degraded:lost" },
    { "the rebuild breaks: what came is what there is", REPLAY,
        "C E L0 L9 R5 T T T T T T T",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap "
        "?0 begin:lost lost1-4:lost ~r5 ! fixed5-5 failed6 ?5 ! failed6 "
        "?5 ! failed6 ?5 ! failed6 lost6-8:replay_failed ~l9 swap "
        "degraded:replay_failed" },
    { "B10: a late answer changes nothing", 0, "C L0 L2 R1 L3",
        "l0 live:caught_up gap1-1 lost1-1:no_replay degraded:no_replay l2 "
        "l3" },
    { "B10: replay times out, comes later", REPLAY,
        "C E L0 L4 T T O2 R0 R1 R2 R3 E O1",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap "
        "?0 ! failed1 ?0 r1 r2 r3 ! fixed1-3 l4 live:caught_up" },
    { "B11: live and replay overlap", REPLAY, "C L4 R0 R1 R2 R3 R4 E L4 L5",
        "recovering:starting ?0 r0 r1 r2 r3 r4 ! live:caught_up l5" },
    { "B15: too far behind is no plain error", REPLAY,
        "C E L0 L102 R100 R101 E L103",
        "recovering:starting ?0 ! l0 live:caught_up gap1-101 "
        "recovering:gap ?0 begin:lost lost1-99:lost ~r100 ~r101 ! "
        "fixed100-101 ~l102 swap degraded:lost l103" },
    { "B16: warm and idle", REPLAY, "C R0 R1 E T R1 E K",
        "recovering:starting ?0 r0 r1 ! p1 ! live:caught_up tail" },
    { "B24: reset, then zero", REPLAY, "C R0 R1 E L2 X L0b L1b",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset l0 live:caught_up l1" },
    { "B24: reset, then one, and the replay has no other", REPLAY,
        "C R0 R1 E L2 X L1b R1b E L2b",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset l1 p0 ! live:caught_up l2" },
    { "after a reset the first was lost: the replay has it", REPLAY,
        "C R0 R1 E L2 X L1b R0b R1b R0b R1b E T R1b E",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset l1 p0 ! begin:gap gap0-0 recovering:gap ?0 ~r0 ~r1 ! "
        "fixed0-0 swap p1 ! live:caught_up" },
    { "after a reset the replay is still the old one", REPLAY,
        "C R0 R1 E L2 X L1b R0 R1 R2 E L2b",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset l1 p0 ! live:caught_up l2" },
    { "after a reset the check does not come through", REPLAY,
        "C R0 R1 E L2 X L1b F L2b",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset l1 p0 ! failed2 live:caught_up l2" },
    { "after a reset the check is cut by a gap", REPLAY,
        "C R0 R1 E L2 X L1b L3b R1b R2b E R0b R1b R0b R1b R2b R3b E",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset l1 p0 gap2-2 ! recovering:gap ?1 r2 ! fixed2-2 l3 p0 "
        "! begin:gap gap0-0 ?0 ~r0 ~r1 ~r2 ~r3 ! fixed0-0 swap" },
    { "B25: a number without a batch", REPLAY, "C E L0 L4 R0 R1 R3 R3 E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap "
        "?0 r1 fixed1-1 ! ?2 lost2-2:lost r3 ! fixed3-3 l4 degraded:lost" },
    { "the replay endpoint of another publisher, without ids", REPLAY,
        "C E L0 +6000 L1 T R1b R0b R1b R2b E T R2b E +6000 L1 L2",
        "recovering:starting ?0 ! l0 live:caught_up l1 p1 ! clear:restart "
        "recovering:restart ?0 r0 r1 r2 ! p2 ! live:caught_up "
        "clear:restart lost0-0:late_start degraded:late_start l1 l2" },
    { "the same, the live stream is ahead", REPLAY,
        "C E L0 +6000 L1 T R1b R0b R1b E T R1b E +6000 L5 R1b E E L6 D C "
        "R6 E",
        "recovering:starting ?0 ! l0 live:caught_up l1 p1 ! clear:restart "
        "recovering:restart ?0 r0 r1 ! p1 ! live:caught_up gap2-4 "
        "recovering:gap ?1 ! ?2 ! clear:restart lost0-4:replay_failed l5 "
        "degraded:replay_failed l6 recovering:reconnect ?6 ! "
        "degraded:replay_failed" },

    { "what is missing begins anew with a rebuild", REPLAY,
        "C E L0 L4 R3 R4 E M L9 R9 E M",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap "
        "?0 begin:lost lost1-2:lost ~r3 ~r4 ! fixed3-3 swap degraded:lost "
        "missing1-2 gap5-8 recovering:gap ?4 begin:lost lost5-8:lost ~r9 ! "
        "swap degraded:lost missing5-8" },
    { "what is missing adds up where it is kept", REPLAY | KEEP,
        "C E L0 L4 R3 R4 E M L9 R9 E M",
        "recovering:starting ?0 ! l0 live:caught_up gap1-3 recovering:gap "
        "?0 lost1-2:lost r3 r4 ! fixed3-3 degraded:lost missing1-2 gap5-8 "
        "recovering:gap ?4 lost5-8:lost r9 ! degraded:lost missing1-8" },

    { "after a reset an answer that begins with one proves nothing", REPLAY,
        "C R0 R1 E L2 X D C R1b R2b E",
        "recovering:starting ?0 r0 r1 ! l2 live:caught_up clear:reset "
        "cold:reset recovering:reconnect ?0 lost0-0:late_start r1 r2 ! "
        "fixed1-2 degraded:late_start" },

    /* ---- snapshots ---- */
    { "first contact by a snapshot, live after the next one", SNAP,
        "C S4A P P N L5A K",
        "recovering:starting snap? begin:snapshot part4 part4 ! swap l5 "
        "live:caught_up no-tail" },
    { "first contact: live ones meanwhile follow it", SNAP,
        "C L4A L5A L6A S4A P N",
        "recovering:starting snap? begin:snapshot part4 ! ~l5 ~l6 swap "
        "live:caught_up" },
    { "a snapshot that is level with the live stream", SNAP, "C L4A S4A P N",
        "recovering:starting snap? begin:snapshot part4 ! swap "
        "live:caught_up" },
    { "nothing was ever published", SNAP, "C S-1A N L0A",
        "recovering:starting snap? begin:snapshot ! swap l0 "
        "live:caught_up" },
    { "none is to be had", SNAP, "C S-2A J L0A L1A",
        "recovering:starting snap? ! no-snap in4999 l0 live:caught_up l1" },
    { "none is to be had, and the first ones are missed", SNAP,
        "C S-2A L5A T S5A P N L6A",
        "recovering:starting snap? ! no-snap lost0-4:late_start l5 "
        "degraded:late_start snap? begin:snapshot part5 ! swap "
        "recovering:snapshot l6 live:caught_up" },
    { "it does not come: tried again ever more seldom", SNAP,
        "C G J T G J T G J T G J T G J T G J T G J T G J",
        "recovering:starting snap? ! no-snap in999 snap? ! no-snap in1999 "
        "snap? ! no-snap in3999 snap? ! no-snap in7999 snap? ! no-snap "
        "in15999 snap? ! no-snap in31999 snap? ! no-snap in59999 snap? ! "
        "no-snap in59999" },
    { "a first message before the word of the connection", SNAP,
        "L4A C S4A P N L5A",
        "recovering:starting snap? begin:snapshot part4 ! swap "
        "live:caught_up l5" },
    { "first contact fails: a replay of all", REPLAY | SNAP,
        "C G R0 R1 E T R1 E",
        "recovering:starting snap? ! no-snap ?0 r0 r1 ! p1 ! "
        "live:caught_up" },
    { "first contact, confirmed by a probe", REPLAY | SNAP,
        "C S4A P N T R4A E K",
        "recovering:starting snap? begin:snapshot part4 ! swap p4 ! "
        "live:caught_up tail" },
    { "first contact, the probe finds another life by its id", REPLAY | SNAP,
        "C S4A P N T R4B R0B R1B E L2B",
        "recovering:starting snap? begin:snapshot part4 ! swap p4 ! "
        "clear:new_id recovering:new_id ?0 r0 r1 ! l2 live:caught_up" },
    { "a hole behind the snapshot", REPLAY | SNAP, "C L7A S4A P N R5A R6A E",
        "recovering:starting snap? begin:snapshot part4 ! ?5 ~r5 ~r6 ! "
        "~l7 swap live:caught_up" },
    { "a hole behind the snapshot that nobody has", REPLAY | SNAP,
        "C L7A S4A P N R7A R0A R1A E R7A E T R7A E T S9A P N L10A",
        "recovering:starting snap? begin:snapshot part4 ! ?5 ! abort "
        "no-snap ?0 r0 r1 ! ?2 lost2-6:lost r7 ! degraded:lost p7 ! snap? "
        "begin:snapshot part9 ! swap recovering:snapshot l10 "
        "live:caught_up" },
    { "a hole behind the snapshot, no replay endpoint", SNAP,
        "C L7A S4A P N T S7A P N L8A",
        "recovering:starting snap? begin:snapshot part4 ! abort no-snap "
        "gap0-6 lost0-6:late_start l7 degraded:late_start snap? "
        "begin:snapshot part7 ! swap recovering:snapshot l8 "
        "live:caught_up" },
    { "a gap", SNAP, "C S0A P N L1A L5A L6A S6A P N L7A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-4 recovering:gap snap? begin:snapshot part6 "
        "! swap live:caught_up l7" },
    { "B14: a gap, the snapshot is not far enough yet", SNAP,
        "C S0A P N L1A L5A S3A P N T S5A P N L6A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-4 recovering:gap snap? begin:snapshot part3 "
        "! abort no-snap lost2-4:no_replay l5 degraded:no_replay snap? "
        "begin:snapshot part5 ! swap recovering:snapshot l6 "
        "live:caught_up" },
    { "B12: one recovery for one gap", SNAP,
        "C S0A P N L1A L5A S5A P N L5A L6A L7A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-4 recovering:gap snap? begin:snapshot part5 "
        "! swap live:caught_up l6 l7" },
    { "a gap, and no snapshot", SNAP, "C S0A P N L1A L5A G L6A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-4 recovering:gap snap? ! no-snap "
        "lost2-4:no_replay l5 degraded:no_replay l6" },
    { "a restart with a number above zero", SNAP,
        "C S0A P N L1A L5B S5B P N L6B",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up clear:new_id recovering:new_id snap? "
        "begin:snapshot part5 ! swap live:caught_up l6" },
    { "a restart with zero", SNAP, "C S0A P N L1A L0B L1B",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up clear:new_id l0 l1" },
    { "the snapshot is of a newer life", SNAP, "C S0A P N L1A L5A S3B P N L4B",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-4 recovering:gap snap? clear:new_id "
        "recovering:new_id begin:snapshot part3 ! swap l4 live:caught_up" },
    { "the snapshot is of the life before", SNAP,
        "C S0A P N L1A L0B L5B S7A T S5B P N L6B",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up clear:new_id l0 gap1-4 recovering:gap snap? ! "
        "no-snap lost1-4:no_replay l5 degraded:no_replay snap? "
        "begin:snapshot part5 ! swap recovering:snapshot l6 "
        "live:caught_up" },
    { "a restart while the snapshot is made", SNAP, "C L4A S4A L0B P N L1B",
        "recovering:starting snap? begin:snapshot part4 ! abort "
        "clear:new_id l0 live:caught_up l1" },
    { "B14: history gone, a snapshot instead", REPLAY | SNAP,
        "C S0A P N L1A L9A R7A S9A P N L10A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-8 recovering:gap ?1 ! snap? begin:snapshot "
        "part9 ! swap live:caught_up l10" },
    { "B14: history gone, and no snapshot: rebuilt", REPLAY | SNAP,
        "C S0A P N L1A L9A R7A S-2A R7A R8A E T",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-8 recovering:gap ?1 ! snap? ! no-snap ?1 "
        "begin:lost lost2-6:lost ~r7 ~r8 ! fixed7-8 ~l9 swap "
        "degraded:lost p9" },
    { "B25: a hole for good is mended by a snapshot", REPLAY | SNAP,
        "C S0A P N L1A L4A R1A R3A R3A E T S4A P N L5A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-3 recovering:gap ?1 ! ?2 lost2-2:lost r3 ! "
        "fixed3-3 l4 degraded:lost snap? begin:snapshot part4 ! swap "
        "recovering:snapshot l5 live:caught_up" },
    { "unreadable is mended by a snapshot", SNAP,
        "C S0A P N L1A U T S1A P N L2A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up degraded:unreadable snap? begin:snapshot part1 ! "
        "swap recovering:snapshot l2 live:caught_up" },
    { "what is never readable makes no loop", SNAP,
        "C S0A P N L1A U T S1A P N L2A U T J S2A P N J L3A U J T S3A P N "
        "J L4A U J",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up degraded:unreadable snap? begin:snapshot part1 ! "
        "swap recovering:snapshot l2 live:caught_up degraded:unreadable "
        "snap? in3999 begin:snapshot part2 ! swap recovering:snapshot "
        "never l3 live:caught_up degraded:unreadable in1996 snap? "
        "begin:snapshot part3 ! swap recovering:snapshot never l4 "
        "live:caught_up degraded:unreadable in3996" },
    { "an unreadable part", SNAP, "C S4A P U L5A T S5A P N L6A",
        "recovering:starting snap? begin:snapshot part4 ! abort no-snap "
        "lost0-4:late_start l5 degraded:late_start snap? begin:snapshot "
        "part5 ! swap recovering:snapshot l6 live:caught_up" },
    { "a clear does not mend what has an id", SNAP, "C S0A P N L1A L3A G Z L4A",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-2 recovering:gap snap? ! no-snap "
        "lost2-2:no_replay l3 degraded:no_replay l4" },
    { "a clear mends what has none", 0, "C L0 L3 Z",
        "l0 live:caught_up gap1-2 lost1-2:no_replay degraded:no_replay l3 "
        "live:cleared" },
    { "time-outs: no beginning", SNAP, "C T J",
        "recovering:starting snap? ! no-snap in999" },
    { "time-outs: it began and stopped", SNAP, "C S4A P T",
        "recovering:starting snap? begin:snapshot part4 ! abort no-snap" },
    { "it waits for its turn", SNAP | LATE_ASK, "C J Q J S4A P N",
        "recovering:starting snap? never in3999 begin:snapshot part4 ! "
        "swap" },
    { "late parts of an old one", SNAP, "C G T S4A P N P N",
        "recovering:starting snap? ! no-snap snap? begin:snapshot part4 ! "
        "swap" },
    { "an answer to the wrong question", SNAP, "C R1 E F S4A P N L5A S4A P N",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up" },
    { "it begins twice", SNAP, "C S4A S4A",
        "recovering:starting snap? begin:snapshot ! abort no-snap" },
    { "reconnected meanwhile", SNAP, "C D C S4A P N L5A",
        "recovering:starting snap? ! recovering:reconnect snap? "
        "begin:snapshot part4 ! swap l5 live:caught_up" },
    { "reconnected while parts of it come", SNAP, "C S4A P D C S5A P N L6A",
        "recovering:starting snap? begin:snapshot part4 ! abort "
        "recovering:reconnect snap? begin:snapshot part5 ! swap l6 "
        "live:caught_up" },
    { "reconnected twice meanwhile: not asked for at once", SNAP,
        "C D C D C L1A",
        "recovering:starting snap? ! recovering:reconnect snap? ! "
        "lost0-0:late_start l1 degraded:late_start" },
    { "reconnected meanwhile, and there is a replay endpoint", REPLAY | SNAP,
        "C S4A P N L5A L7A R6A R7A E U T D C R7A E L8A",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up gap6-6 recovering:gap ?5 r6 r7 ! fixed6-6 "
        "live:caught_up degraded:unreadable snap? ! recovering:reconnect ?7 "
        "! degraded:unreadable l8" },
    { "reconnect with ids: the next message tells", SNAP,
        "C S4A P N L5A D C J L6A",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up recovering:reconnect never l6 live:caught_up" },
    { "reconnect with ids: a gap", SNAP, "C S4A P N L5A D C L8A S8A P N L9A",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up recovering:reconnect gap6-7 recovering:gap snap? "
        "begin:snapshot part8 ! swap live:caught_up l9" },
    { "reconnect with ids: another life", SNAP,
        "C S4A P N L5A D C L6B S6B P N L7B",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up recovering:reconnect clear:new_id "
        "recovering:new_id snap? begin:snapshot part6 ! swap "
        "live:caught_up l7" },
    { "reconnect without ids: a snapshot", SNAP, "C G L0 +2000 D C S5A P N L6A",
        "recovering:starting snap? ! no-snap l0 live:caught_up "
        "recovering:reconnect snap? begin:snapshot part5 ! swap l6 "
        "live:caught_up" },
    { "reconnect without ids, and no snapshot", SNAP, "C G L0 +2000 D C G L1",
        "recovering:starting snap? ! no-snap l0 live:caught_up "
        "recovering:reconnect snap? ! no-snap l1 live:caught_up" },
    { "reconnect with a replay endpoint: asked there", REPLAY | SNAP,
        "C S4A P N L5A D C R5A R6A E L7A",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up recovering:reconnect ?5 r6 ! fixed6-6 l7 "
        "live:caught_up" },
    { "reconnect after a snapshot, the proof has no id", REPLAY | SNAP,
        "C S4A P N D C R4 S5A P N L6A",
        "recovering:starting snap? begin:snapshot part4 ! swap "
        "recovering:reconnect ?4 ! snap? begin:snapshot part5 ! swap l6 "
        "live:caught_up" },
    { "what was applied agrees, but the proof before it is not there", REPLAY,
        "C E L0 D C R0b R0b R1b E L2b T R2b E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! clear:restart recovering:restart ?0 r0 r1 ! l2 p1 "
        "recovering:reconnect begin:lost ! swap degraded:lost" },
    { "below the number to start with, of a life that a snapshot named",
        REPLAY | SNAP | FROM_5, "C L9A R9A S3A P N E E L4A R0A R1A R2A R3A E",
        "recovering:starting ?5 ! snap? begin:snapshot part3 ! ?4 ! abort "
        "no-snap ?5 ! clear:restart recovering:restart ?0 r0 r1 r2 r3 ! l4 "
        "live:caught_up" },
    { "what was applied agrees, and nothing was before it", REPLAY | LIVE_ONLY,
        "C D C L5 T R5 E L6", "l5 p4 ! live:caught_up l6" },
    { "the proof has no id, and there is no snapshot", REPLAY | SNAP,
        "C S4A P N D C R4 G R4 R5 E",
        "recovering:starting snap? begin:snapshot part4 ! swap "
        "recovering:reconnect ?4 ! snap? ! no-snap ?4 begin:lost ~r5 ! "
        "fixed5-5 swap degraded:lost" },
    { "more than can be held", SNAP | HOLD_2,
        "C L4A L5A L6A S4A P N T S7A P N L8A",
        "recovering:starting snap? full6 begin:snapshot part4 ! abort "
        "no-snap gap0-3 lost0-3:late_start l4 l5 lost6-6:no_replay "
        "degraded:no_replay snap? begin:snapshot part7 ! swap "
        "recovering:snapshot l8 live:caught_up" },
    { "more than can be held, then replayed", REPLAY | SNAP | HOLD_2,
        "C L5A L6A L7A S4A P N R6A R7A E L8A",
        "recovering:starting snap? full7 begin:snapshot part4 ! ~l5 ~l6 "
        "recovering:gap ?6 ~r7 ! swap l8 live:caught_up" },
    { "older than what is visible, no replay endpoint", SNAP,
        "C S4A P N L5A L6A U T S5A P N T S6A P N L7A",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up l6 degraded:unreadable snap? begin:snapshot part5 "
        "! abort no-snap snap? begin:snapshot part6 ! swap "
        "recovering:snapshot l7 live:caught_up" },
    { "older than what is visible: filled by replay", REPLAY | SNAP,
        "C S4A P N L5A L6A U T S5A P N R6A E L7A",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up l6 degraded:unreadable snap? begin:snapshot part5 "
        "! recovering:gap ?6 ~r6 ! swap l7 live:caught_up" },
    { "older than what is visible, and the replay has it not", REPLAY | SNAP,
        "C S4A P N L5A L6A U T S5A P N E R6A E",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up l6 degraded:unreadable snap? begin:snapshot part5 "
        "! recovering:gap ?6 ! abort no-snap ?6 ! degraded:unreadable" },
    { "what followed a twin that is dropped does not make it live", SNAP,
        "C G L0 L1 L2 L3 +70000 L5 D C S0A P L1b N L2b",
        "recovering:starting snap? ! no-snap l0 live:caught_up l1 l2 l3 gap4-4 "
        "recovering:gap snap? ! recovering:reconnect snap? begin:snapshot "
        "part0 ! ~l1 abort no-snap clear:restart lost0-1:late_start l2 "
        "degraded:late_start" },
    { "start live: no snapshot before a gap", LIVE_ONLY | SNAP,
        "C L7A L8A L11A S11A P N L12A",
        "l7 live:caught_up l8 gap9-10 recovering:gap snap? begin:snapshot "
        "part11 ! swap live:caught_up l12" },
    { "a degraded source is mended when the time has come", REPLAY | SNAP,
        "C G R3 R4 E T R4 E T S4A P N T R4A E",
        "recovering:starting snap? ! no-snap ?0 lost0-2:late_start r3 r4 "
        "! degraded:late_start p4 ! snap? begin:snapshot part4 ! swap "
        "recovering:snapshot p4 ! live:caught_up" },
    { "the hold was of old connections", SNAP, "C L4a D C S4A P N L5A",
        "recovering:starting snap? ! recovering:reconnect snap? "
        "begin:snapshot part4 ! swap l5 live:caught_up" },

    { "what is held is not spent on a snapshot that it cannot follow", SNAP,
        "C S0A P N L1A L3A L4A L6A S2A P N",
        "recovering:starting snap? begin:snapshot part0 ! swap l1 "
        "live:caught_up gap2-2 recovering:gap snap? begin:snapshot part2 ! "
        "abort no-snap lost2-2:no_replay l3 l4 lost5-5:no_replay l6 "
        "degraded:no_replay" },
    { "the answer has what was asked for as a proof, and no more",
        REPLAY | SNAP, "C S4A P N L5A L6A U T D S5A P N R5A E R6A E",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up l6 degraded:unreadable snap? begin:snapshot part5 ! "
        "recovering:gap ?5 ! abort no-snap ?6 ! degraded:unreadable" },

    /* ---- heartbeats ---- */
    { "heartbeats, and the life is in doubt: a probe", REPLAY,
        "C E H0A D C R0A E J H1A J",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 "
        "! in499 l1 live:caught_up in2999" },
    { "heartbeats confirm the tail", 0, "C L0A K H1A K J",
        "l0 live:caught_up no-tail l1 tail in2998" },
    { "heartbeats end the probes", REPLAY, "C E L0A J H1A J K H2A",
        "recovering:starting ?0 ! l0 live:caught_up in499 l1 in2999 tail "
        "l2" },
    { "silence after heartbeats: stale, and probed", REPLAY,
        "C E H0A T J R0A E J T R0A E J H1A J K",
        "recovering:starting ?0 ! l0 live:caught_up stale p0 in4999 ! "
        "in996 p0 ! in1997 fresh l1 in2999 tail" },
    { "silence after heartbeats, nothing to probe", 0, "C H0A T J K L1A K",
        "l0 live:caught_up stale never no-tail fresh l1 tail" },
    { "a heartbeat shows a lost batch", REPLAY, "C E H0A H2A R1A E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-1 recovering:gap "
        "?0 r1 ! fixed1-1 l2 live:caught_up" },
    { "without an id it is no heartbeat", 0, "C H0 J",
        "l0 live:caught_up never" },
    { "a restart forgets the heartbeats", REPLAY, "C E H0A L0B J",
        "recovering:starting ?0 ! l0 live:caught_up clear:new_id l0 in499" },
    { "after a repair the next heartbeat makes it live", REPLAY,
        "C E H0A H3A R0A R1A R2A R3A E",
        "recovering:starting ?0 ! l0 live:caught_up gap1-2 recovering:gap "
        "?0 r1 r2 r3 ! fixed1-2 live:caught_up" },
    { "stale while a request runs", REPLAY, "C E H0A H3A T J R0A T",
        "recovering:starting ?0 ! l0 live:caught_up gap1-2 recovering:gap "
        "?0 stale in1999 ! failed1" },
    { "probes that failed are mended though there are heartbeats", REPLAY,
        "C E H0A T T T T T T T H1A T R1A E",
        "recovering:starting ?0 ! l0 live:caught_up stale p0 ! failed1 p0 "
        "! failed1 p0 ! failed1 degraded:replay_failed p0 fresh l1 stale "
        "! live:caught_up" },

    /* ---- gone ---- */
    { "gone: nothing is asked or applied any more", REPLAY,
        "C E L0 T W L1 R0 E T J C D X",
        "recovering:starting ?0 ! l0 live:caught_up p0 ! gone:silent "
        "never" },
    { "gone while a twin is built", REPLAY, "C E L0 L9 R5 W",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap "
        "?0 begin:lost lost1-4:lost ~r5 ! fixed5-5 abort gone:silent" },
    { "gone while a snapshot comes", SNAP, "C S4A P W N",
        "recovering:starting snap? begin:snapshot part4 ! abort "
        "gone:silent" },

    /* ---- going on from a position ---- */
    { "it goes on, and exactly what is missing comes", REPLAY,
        "C E L0 L1 V B C R1 R2 R3 E T R3 E K L4",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 r2 r3 ! fixed2-3 p3 ! live:caught_up tail l4" },
    { "nothing came meanwhile", REPLAY, "C E L0 L1 V B C R1 E T R1 E L2",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! p1 ! live:caught_up l2" },
    { "live goes on while it is asked", REPLAY,
        "C E L0 L1 V B C L3 R1 R2 R3 E L4 T R1 R2 R3 R4 E",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 r2 r3 ! fixed2-2 l4 p3 ! live:caught_up" },
    { "another life with the same numbers", REPLAY,
        "C E L0 L1 V B C R1b R0b R1b R2b E T R2b E",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! clear:restart recovering:restart ?0 r0 r1 r2 ! p2 ! "
        "live:caught_up" },
    { "another life that has nothing yet", REPLAY,
        "C E L0 L1 V B C E E T E L0b",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! clear:restart recovering:restart ?0 ! p0 ! live:caught_up l0" },
    { "another life that has come further, live first", REPLAY,
        "C E L0 L1 V B L2b C R1b R0b R1b R2b E L3b T R2b R3b E",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! ?1 ! clear:restart recovering:restart ?0 r0 r1 r2 ! l3 p2 ! "
        "live:caught_up" },
    { "a live message before the connection is told", REPLAY,
        "C E L0 L1 V B L2 C R1 R2 E T R2 E",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! ?1 r2 ! p2 ! live:caught_up" },
    { "the buffer does not reach back", REPLAY, "C E L0 L1 V B C R4 R5 E L6",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 begin:lost lost2-3:lost ~r4 ~r5 ! fixed4-5 swap degraded:lost l6" },
    { "the buffer does not reach back, keep", REPLAY | KEEP,
        "C E L0 L1 V B C R4 R5 E L6 V",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 lost2-3:lost r4 r5 ! fixed4-5 degraded:lost l6 at6:lost" },
    { "all but the proof is there", REPLAY, "C E L0 L1 V B C R2 R3 E L4",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 begin:lost ~r2 ~r3 ! fixed2-3 swap degraded:lost l4" },
    { "the replay endpoint does not answer", REPLAY,
        "C E L0 L1 V B C L2 T T T T T L3",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! failed2 ?1 ! failed2 ?1 ! failed2 begin:lost ~l2 swap "
        "degraded:replay_failed l3" },
    { "no replay endpoint: live only once a message follows", 0,
        "C L0 L1 V B C K T L2 L3",
        "l0 live:caught_up l1 at1 recovering:resumed no-tail l2 live:caught_up "
        "l3" },
    { "no replay endpoint, missed some", 0, "C L0 L1 V B C L4 V",
        "l0 live:caught_up l1 at1 recovering:resumed gap2-3 lost2-3:no_replay "
        "l4 degraded:no_replay at4:no_replay" },
    { "no replay endpoint, a restart", 0, "C L0 L1 V B C L1b",
        "l0 live:caught_up l1 at1 recovering:resumed clear:restart "
        "lost0-0:late_start l1 degraded:late_start" },
    { "no replay endpoint, the last one again", 0, "C L0 L1 V B C L1 L2",
        "l0 live:caught_up l1 at1 recovering:resumed live:caught_up l2" },
    { "ids prove the life", REPLAY, "C E L0A L1A V B C R1A R2A E L3A",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 r2 ! fixed2-2 l3 live:caught_up" },
    { "another id", REPLAY, "C E L0A L1A V B C R2B R0B R1B R2B E L3B",
        "recovering:starting ?0 ! l0 live:caught_up l1 at1 recovering:resumed "
        "?1 ! clear:new_id recovering:new_id ?0 r0 r1 r2 ! l3 live:caught_up" },
    { "another id, no replay endpoint", 0, "C L0A L1A V B C L2B",
        "l0 live:caught_up l1 at1 recovering:resumed clear:new_id "
        "lost0-1:late_start l2 degraded:late_start" },
    { "the same id, no replay endpoint", 0, "C L0A L1A V B C L2A",
        "l0 live:caught_up l1 at1 recovering:resumed l2 live:caught_up" },
    { "degraded stays so", REPLAY,
        "C E L0 L9 R7 R8 R9 E V B M C R9 R10 E L11 V",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap ?0 "
        "begin:lost lost1-6:lost ~r7 ~r8 ~r9 ! fixed7-8 swap degraded:lost "
        "at9:lost degraded:lost missing1-6 recovering:resumed ?9 r10 ! "
        "fixed10-10 degraded:lost l11 at11:lost" },
    { "degraded for a message that was not read", 0,
        "C L0 U L1 V B C L2 V Z V L3",
        "l0 live:caught_up degraded:unreadable l1 at1:unreadable "
        "degraded:unreadable l2 at2:unreadable live:cleared at2 l3" },
    { "degraded until a clear", 0, "C L0 L3 V B C L4 Z V",
        "l0 live:caught_up gap1-2 lost1-2:no_replay degraded:no_replay l3 "
        "at3:no_replay degraded:no_replay l4 live:cleared at4" },
    { "degraded until a restart", 0, "C L0 L3 V B C L0b V",
        "l0 live:caught_up gap1-2 lost1-2:no_replay degraded:no_replay l3 "
        "at3:no_replay degraded:no_replay clear:restart l0 live:caught_up "
        "at0" },
    { "degraded until a snapshot", REPLAY | SNAP,
        "C S4A P N L5A U V B C R5A E T S5A P N L6A V",
        "recovering:starting snap? begin:snapshot part4 ! swap l5 "
        "live:caught_up degraded:unreadable at5:unreadable degraded:unreadable "
        "recovering:resumed ?5 ! degraded:unreadable snap? begin:snapshot "
        "part5 ! swap recovering:snapshot l6 live:caught_up at6" },
    { "behind a snapshot the id proves", REPLAY | SNAP,
        "C S4A P N V B C R4A R5A E L6A",
        "recovering:starting snap? begin:snapshot part4 ! swap at4 "
        "recovering:resumed ?4 r5 ! fixed5-5 l6 live:caught_up" },
    { "behind a snapshot without ids in the replay", REPLAY | SNAP,
        "C S4A P N V B C R4 R5 G R4 R5 E",
        "recovering:starting snap? begin:snapshot part4 ! swap at4 "
        "recovering:resumed ?4 ! snap? ! no-snap ?4 recovering:reconnect "
        "begin:lost ~r5 ! fixed5-5 swap degraded:lost" },
    { "a snapshot tells where neither replay nor ids do", SNAP,
        "C G L0 L1 V B C S1A P N L2A",
        "recovering:starting snap? ! no-snap l0 live:caught_up l1 at1 "
        "recovering:resumed snap? begin:snapshot part1 ! swap l2 "
        "live:caught_up" },
    { "in doubt, and all is of one life", REPLAY,
        "C E L0 D C R0 E L1 L2 L3 V B C R0 R1 R2 R3 R4 E T R4 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 ! "
        "l1 l2 l3 at3?0 recovering:resumed ?0 r4 ! fixed4-4 p4 ! "
        "live:caught_up" },
    { "in doubt, the last ones are of another life", REPLAY,
        "C E L0 D C R0 E L1b L2b L3b V B C R0b R0b R1b R2b R3b E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 ! "
        "l1 l2 l3 at3?0 recovering:resumed ?0 ! clear:restart "
        "recovering:restart ?0 r0 r1 r2 r3 !" },
    { "in doubt, the first ones are leftovers", REPLAY,
        "C E L0 D C R0 E L1b L2 V B C R0 R1 R0 R1 R2 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 ! "
        "l1 l2 at2?0 recovering:resumed ?0 ! clear:restart recovering:restart "
        "?0 r0 r1 r2 !" },
    { "in doubt, the proof is gone", REPLAY,
        "C E L0 D C R0 E L1 L2 V B C R2 R3 R0 E",
        "recovering:starting ?0 ! l0 live:caught_up recovering:reconnect ?0 ! "
        "l1 l2 at2?0 recovering:resumed ?0 recovering:reconnect begin:lost ~r3 "
        "! fixed3-3 swap degraded:lost" },
    { "nowhere before anything came", REPLAY, "V C V E V L0 V",
        "nowhere recovering:starting ?0 nowhere ! nowhere l0 live:caught_up "
        "at0" },
    { "nowhere while a twin is built", REPLAY, "C E L0 L9 V R7 V R8 R9 V E V",
        "recovering:starting ?0 ! l0 live:caught_up gap1-8 recovering:gap ?0 "
        "at0 begin:lost lost1-6:lost ~r7 nowhere ~r8 ~r9 nowhere ! fixed7-8 "
        "swap degraded:lost at9:lost" },
    { "nowhere after a clear", REPLAY, "C E L0 L0b D C R0c V R0c V",
        "recovering:starting ?0 ! l0 live:caught_up clear:restart l0 "
        "recovering:reconnect ?0 ! clear:restart recovering:restart ?0 nowhere "
        "r0 at0" },
    { "nowhere while it is open whether there was a 0", REPLAY,
        "C E L0 X V L1b V R1b E V",
        "recovering:starting ?0 ! l0 live:caught_up clear:reset cold:reset "
        "nowhere l1 p0 nowhere ! live:caught_up at1" },
    { "nowhere resumes nothing", REPLAY, "V B C R0 E",
        "nowhere recovering:starting ?0 r0 !" },
    { "between the actions of a loss", WHERE | REPLAY, "C E L0 L9 R7 R8 R9 E",
        "recovering:starting @- ?0 @- ! l0 @0 live:caught_up @0 gap1-8 @0 "
        "recovering:gap @0 ?0 @0 begin:lost @- lost1-6:lost @- ~r7 @- ~r8 @- "
        "~r9 @- ! fixed7-8 @- swap @9 degraded:lost @9" },
    { "between the actions of a loss, keep", WHERE, "C L0 L3 D C L4",
        "l0 @0 live:caught_up @0 gap1-2 @0 lost1-2:no_replay @0 "
        "degraded:no_replay @0 l3 @3 l4 @4" },
    { "between the actions of a snapshot", WHERE | SNAP,
        "C S4A P N L5A U T S5A P N L6B",
        "recovering:starting @- snap? @- begin:snapshot @- part4 @- ! swap @4 "
        "l5 @5 live:caught_up @5 degraded:unreadable @5 snap? @5 "
        "begin:snapshot @- part5 @- ! swap @5 recovering:snapshot @5 "
        "clear:new_id @- lost0-5:late_start @- l6 @6 degraded:late_start @6" },
    { "a twin that is dropped, and another", WHERE | REPLAY | SNAP,
        "C S4A P N L5A L6A U T D S5A P N R5A E R6A E",
        "recovering:starting @- snap? @- begin:snapshot @- part4 @- ! swap @4 "
        "l5 @5 live:caught_up @5 l6 @6 degraded:unreadable @6 snap? @6 "
        "begin:snapshot @- part5 @- ! recovering:gap @- ?5 @- ! abort @6 "
        "no-snap @6 ?6 @6 ! degraded:unreadable @6" },
};

/* ---- the player ---------------------------------------------------- */

struct play {
    struct kve_machine *m;
    struct kve_sub_counters counters;
    int64_t now;
    uint32_t ask;
    uint32_t old_ask;
    bool late_ask;
    bool where;
    struct kve_machine_opts opts;
    struct kve_position position;
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
say_position(struct play *p, const struct kve_position *at)
{
    if (!at->started)
        say(p, "nowhere");
    else if (at->doubted)
        say(p, "at%" PRIu64 "?%" PRIu64, at->number, at->proof_number);
    else if (at->degraded)
        say(p, "at%" PRIu64 ":%s", at->number, kve_reason_str(at->reason));
    else
        say(p, "at%" PRIu64, at->number);
}

/* In the callbacks that an action makes. */
static void
say_where(struct play *p, const struct kve_action *a)
{
    struct kve_position at;

    if (!p->where || a->type == KVE_ACTION_ASK || a->type == KVE_ACTION_STOP)
        return;
    kve_machine_position(p->m, &at);
    if (at.started)
        say(p, "@%" PRIu64, at.number);
    else
        say(p, "@-");
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
    case KVE_NOTICE_SNAPSHOT_FAILED:
        say(p, "no-snap");
        break;
    case KVE_NOTICE_STALE:
        say(p, "stale");
        break;
    case KVE_NOTICE_FRESH:
        say(p, "fresh");
        break;
    case KVE_NOTICE_HOLD_FULL:
        say(p, "full%" PRIu64, a->first);
        break;
    case KVE_NOTICE_REPLAY: /* stands beside each ? */
    case KVE_NOTICE_SNAPSHOT:
        break;
    default:
        say(p, "notice%u", a->notice);
        break;
    }
}

static void
say_apply(struct play *p, const struct kve_action *a)
{
    /* What was handed in comes out, also from the hold buffer. */
    assert_int_equal(a->msg.payload.len, 8);
    if (!a->snapshot)
        assert_memory_equal(a->msg.payload.data, &a->msg.digest, 8);
    say(p, "%s%s%" PRIu64, a->hidden && !a->snapshot ? "~" : "",
        a->snapshot       ? "part"
            : a->replayed ? "r"
                          : "l",
        a->msg.number);
}

static void
pull(struct play *p)
{
    struct kve_action a;

    while (kve_machine_next(p->m, &a)) {
        switch (a.type) {
        case KVE_ACTION_APPLY:
            say_apply(p, &a);
            break;
        case KVE_ACTION_ASK:
            p->old_ask = p->ask;
            p->ask = a.ask;
            if (a.kind == KVE_ASK_SNAPSHOT)
                say(p, "snap?");
            else
                say(p, "%c%" PRIu64, a.kind == KVE_ASK_PROBE ? 'p' : '?',
                    a.first);
            if (!p->late_ask)
                kve_machine_asked(p->m, p->now, a.ask);
            break;
        case KVE_ACTION_STOP:
            assert_int_equal(a.ask, p->ask);
            say(p, "!");
            break;
        case KVE_ACTION_CLEAR:
            say(p, "clear:%s", kve_reason_str(a.reason));
            break;
        case KVE_ACTION_BEGIN:
            say(p, "begin:%s", kve_reason_str(a.reason));
            break;
        case KVE_ACTION_SWAP:
            say(p, "swap");
            break;
        case KVE_ACTION_ABORT:
            say(p, "abort");
            break;
        case KVE_ACTION_STATE:
            say(p, "%s:%s", kve_state_str(a.state), kve_reason_str(a.reason));
            break;
        case KVE_ACTION_NOTICE:
            say_notice(p, &a);
            break;
        }
        say_where(p, &a);
    }
}

static void
feed(struct play *p, const char *word)
{
    char *end = NULL;
    uint64_t number = strtoull(word + 1, &end, 10);
    char life = *end != '\0' ? *end : 'a';
    bool has_id = life >= 'A' && life <= 'Z';
    uint64_t digest =
        number * 31 + (uint64_t)(has_id ? life - 'A' + 'a' : life);
    /* Live in this block only, as a received message would. */
    uint64_t bytes = digest;
    uint8_t id[16];
    struct kve_machine_msg msg = { number, digest, { NULL, 0 },
        { (const uint8_t *)&bytes, 8 }, has_id ? id : NULL, word[0] == 'H' };
    struct kve_source_info info = { .struct_size = sizeof(info) };
    int64_t at;

    memset(id, life, sizeof(id));

    p->now += KVE_MS;
    switch (word[0]) {
    case 'C':
        kve_machine_connected(p->m, p->now);
        break;
    case 'D':
        kve_machine_disconnected(p->m, p->now);
        break;
    case 'H':
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
        at = kve_machine_deadline(p->m);
        if (at != KVE_NEVER && at > p->now)
            p->now = at;
        kve_machine_timer(p->m, p->now);
        break;
    case 'K':
        kve_machine_info(p->m, &info);
        say(p, info.tail_confirmed ? "tail" : "no-tail");
        break;
    case 'J':
        at = kve_machine_deadline(p->m);
        if (at == KVE_NEVER)
            say(p, "never");
        else
            say(p, "in%" PRId64, at > p->now ? (at - p->now) / KVE_MS : 0);
        break;
    case 'M':
        kve_machine_info(p->m, &info);
        say(p, "missing%" PRIu64 "-%" PRIu64, info.missing_first,
            info.missing_last);
        break;
    case 'S':
        kve_machine_snapshot_begin(
            p->m, p->now, p->ask, strtoll(word + 1, NULL, 10), id);
        break;
    case 'P':
        kve_machine_snapshot_chunk(p->m, p->now, p->ask, &msg);
        break;
    case 'N':
        kve_machine_snapshot_end(p->m, p->now, p->ask);
        break;
    case 'G':
        kve_machine_snapshot_failed(p->m, p->now, p->ask);
        break;
    case 'Q':
        kve_machine_asked(p->m, p->now, p->ask);
        break;
    case 'W':
        kve_machine_gone(p->m, p->now, KVE_REASON_SILENT);
        break;
    case 'V':
        kve_machine_position(p->m, &p->position);
        say_position(p, &p->position);
        break;
    case 'B':
        kve_machine_destroy(p->m);
        assert_int_equal(kve_machine_create(&p->opts, &p->m, NULL), KVE_OK);
        assert_true(kve_machine_resume(p->m, p->now, &p->position));
        break;
    case '+':
        p->now += (int64_t)number * KVE_MS;
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
        .has_snapshot = (how & SNAP) != 0,
        .rebuild = (how & REPLAY) != 0 && (how & KEEP) == 0,
        .start = (how & LIVE_ONLY) != 0 ? KVE_START_LIVE
            : (how & FROM_5) != 0       ? KVE_START_NUMBER
                                        : KVE_START_DEFAULT,
        .first_number = 5,
        .hold_bytes = 1 << 20,
        .hold_items = (how & HOLD_2) != 0 ? 2 : 1000,
        .replay_timeout_ns = 5000 * KVE_MS,
        .snapshot_timeout_ns = 4000 * KVE_MS,
        .heartbeat_timeout_ns = 3000 * KVE_MS,
        .tail_probe_ns = (how & NO_PROBE) != 0 ? KVE_NEVER : 500 * KVE_MS,
        .counters = &p->counters,
    };
    char words[1024];
    char *rest = NULL;

    p->late_ask = (how & LATE_ASK) != 0;
    p->where = (how & WHERE) != 0;
    p->opts = opts;

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
    int how;
    const char *in;
    enum kve_counter counter;
    uint64_t want;
} counts[] = {
    { REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_GAPS, 1 },
    { REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_MISSED, 2 },
    { REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_REPAIRED, 2 },
    { REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_REPLAYS, 2 },
    { REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_HELD, 1 },
    { REPLAY, "C E L0 L3 R0 R1 R2 R3 E L4", KVE_COUNTER_SUB_REPEATS, 1 },
    /* Held ones with a gap between them that the same answer fills ... */
    { REPLAY, "C E L0 L2 L5 R0 R1 R2 R3 R4 R5 E", KVE_COUNTER_SUB_GAPS, 2 },
    { REPLAY, "C E L0 L2 L5 R0 R1 R2 R3 R4 R5 E", KVE_COUNTER_SUB_MISSED, 3 },
    { REPLAY, "C E L0 L2 L5 R0 R1 R2 R3 R4 R5 E", KVE_COUNTER_SUB_REPAIRED, 3 },
    /* ... or the next one. */
    { REPLAY, "C E L0 L2 R0 R1 L5 E R3 R4 E", KVE_COUNTER_SUB_GAPS, 2 },
    { REPLAY, "C E L0 L2 R0 R1 L5 E R3 R4 E", KVE_COUNTER_SUB_MISSED, 3 },
    { REPLAY, "C E L0 L2 R0 R1 L5 E R3 R4 E", KVE_COUNTER_SUB_REPAIRED, 3 },
    { REPLAY, "C R0 R1 R2 E", KVE_COUNTER_SUB_REPAIRED, 0 },
    { REPLAY, "C R0 R1 R2 E", KVE_COUNTER_SUB_MISSED, 0 },
    { REPLAY, "C E L0 L5 R0 R1 R3 R3 R4 E", KVE_COUNTER_SUB_REPLAYS, 3 },
    { REPLAY, "C E L0 L5 R0 R1 R3 R3 R4 E", KVE_COUNTER_SUB_LOST, 1 },
    { REPLAY, "C E L0 L5 R0 R1 R3 R3 R4 E", KVE_COUNTER_SUB_REPAIRED, 3 },
    { REPLAY, "C E L0 T R0 R1 R2 E", KVE_COUNTER_SUB_MISSED, 2 },
    { REPLAY, "C E L0 T R0 R1 R2 E", KVE_COUNTER_SUB_REPAIRED, 2 },
    { REPLAY, "C E L0 T R0 R1 R2 E", KVE_COUNTER_SUB_PROBES, 1 },
    { REPLAY, "C E L0 L0b", KVE_COUNTER_SUB_RESTARTS, 1 },
    { REPLAY, "C E L0 X", KVE_COUNTER_SUB_RESETS, 1 },
    { REPLAY, "C E L0 X", KVE_COUNTER_SUB_RESTARTS, 0 },
    { REPLAY, "C L2 T T T T T", KVE_COUNTER_SUB_REPLAY_TIMEOUTS, 3 },
    /* Restarts by what showed them, each of them a restart. */
    { REPLAY, "C E L0 L1 L0b", KVE_COUNTER_SUB_RESTARTS_DIGEST, 1 },
    { REPLAY, "C E L0 D C R0b R0b E", KVE_COUNTER_SUB_RESTARTS_DIGEST, 1 },
    { REPLAY, "C E L0A L1A L2B", KVE_COUNTER_SUB_RESTARTS_ID, 1 },
    { REPLAY, "C E L0A L1A L2B", KVE_COUNTER_SUB_RESTARTS, 1 },
    { REPLAY, "C E L0A L1A L2B", KVE_COUNTER_SUB_RESTARTS_DIGEST, 0 },
    { REPLAY, "C E L0A L2A R0B", KVE_COUNTER_SUB_RESTARTS_ID, 1 },
    { REPLAY, "C R0 R1 R2 E T E", KVE_COUNTER_SUB_RESTARTS_ANSWER, 1 },
    { REPLAY | FROM_5, "C E L2 R0 R1 R2 E", KVE_COUNTER_SUB_RESTARTS_NUMBER,
        1 },
    { REPLAY | FROM_5, "C E L2 R0 R1 R2 E", KVE_COUNTER_SUB_RESTARTS, 1 },
    { REPLAY, "C E L0A H1A H1A H2A", KVE_COUNTER_SUB_HEARTBEATS, 3 },
    { REPLAY, "C E L0A H1A T", KVE_COUNTER_SUB_STALES, 1 },
    { REPLAY, "C E L0A H1A T H2A T", KVE_COUNTER_SUB_STALES, 2 },
    { REPLAY, "C E L0 L9 R5 F T R8 R9 E", KVE_COUNTER_SUB_REBUILDS, 2 },
    { REPLAY, "C E L0 L9 R7 E", KVE_COUNTER_SUB_CLEARS, 0 },
    { REPLAY | SNAP, "C G R0 E", KVE_COUNTER_SUB_SNAPSHOTS, 1 },
    { REPLAY | SNAP, "C G R0 E", KVE_COUNTER_SUB_SNAPSHOTS_FAILED, 1 },
    { REPLAY | SNAP, "C S4A P N", KVE_COUNTER_SUB_SNAPSHOTS_TAKEN, 1 },
    { REPLAY | SNAP, "C S4A P N", KVE_COUNTER_SUB_SNAPSHOTS_FAILED, 0 },
    { REPLAY | SNAP, "C L7A S4A P N R7A", KVE_COUNTER_SUB_SNAPSHOTS_TAKEN, 0 },
    { REPLAY | SNAP, "C L7A S4A P N R7A", KVE_COUNTER_SUB_SNAPSHOTS_FAILED, 1 },
    /* One gap, one request for it (B12). */
    { REPLAY | SNAP, "C S4A P N L5A L8A R5A R6A R7A R8A E L9A",
        KVE_COUNTER_SUB_REPLAYS, 1 },
};

static void
test_counters(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(counts); i++) {
        struct play p = { .now = KVE_MS };

        play_row(counts[i].how, counts[i].in, &p);
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

/* All is built anew since a 0 was missed, but the publisher has nothing any
 * more: then nothing came, whatever did before. */
static void
test_built_anew_from_nothing(void **state)
{
    struct kve_source_info info = { .struct_size = sizeof(info) };
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C E L0 X L1b R0b R1b", &p);
    p.got[0] = '\0';
    feed(&p, "E");
    assert_string_equal(p.got, "! swap");
    feed(&p, "T");
    feed(&p, "E");
    kve_machine_info(p.m, &info);
    assert_int_equal(info.state, KVE_STATE_LIVE);
    assert_false(info.started);
    assert_int_equal(info.last_number, 0);
    kve_machine_destroy(p.m);
}

/* ---- positions ----------------------------------------------------- */

/* What would prove it can not be asked for any more: two lives may have been
 * mixed. */
static void
test_doubt_without_probes(void **state)
{
    static const struct {
        bool has_replay;
        const char *want;
    } cases[] = {
        { true, "at2?0 degraded:replay_failed missing3-3" },
        { false, "at2?0 degraded:no_replay missing3-3" },
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct play p = { .now = KVE_MS };

        play_row(REPLAY, "C E L0 D C R0 E L1 L2", &p);
        p.got[0] = '\0';
        feed(&p, "V");
        p.opts.has_replay = cases[i].has_replay;
        p.opts.tail_probe_ns = KVE_NEVER;
        feed(&p, "B");
        feed(&p, "M");
        assert_string_equal(p.got, cases[i].want);
        kve_machine_destroy(p.m);
    }
}

/* So much came in doubt that the digest which would prove it is known no
 * more. */
static void
test_doubt_for_long(void **state)
{
    struct play p = { .now = KVE_MS };

    (void)state;
    play_row(REPLAY, "C E L0 D C R0 E", &p);
    feed_run(&p, "L%u", 1, 255);
    feed(&p, "V");
    assert_string_equal(p.got, "l255 at255?0");
    feed_run(&p, "L%u", 256, 256);
    feed(&p, "V");
    assert_string_equal(p.got, "l256 at256:replay_failed");
    kve_machine_destroy(p.m);
}

/* The first input, and only positions that can have been given out. */
static void
test_resume_refused(void **state)
{
    static const char *const late[] = { "C", "L0", "X", "W", "B" };
    static const struct kve_position bad[] = {
        { .started = true, .number = UINT64_MAX },
        { .started = true,
            .number = 7,
            .has_missing = true,
            .degraded = true,
            .missing_first = 3,
            .missing_last = 2 },
        { .started = true, .number = 7, .doubted = true, .proof_number = 3 },
        { .started = true,
            .number = 7,
            .has_digest = true,
            .doubted = true,
            .proof_number = 7 },
    };
    const struct kve_position good = { .started = true, .number = 7 };

    (void)state;
    for (size_t i = 0; i < N_OF(late); i++) {
        struct play p = { .now = KVE_MS, .position = good };

        play_row(REPLAY, late[i], &p);
        assert_false(kve_machine_resume(p.m, p.now, &good));
        kve_machine_destroy(p.m);
    }
    for (size_t i = 0; i < N_OF(bad); i++) {
        struct play p = { .now = KVE_MS };

        play_row(REPLAY, "", &p);
        assert_false(kve_machine_resume(p.m, p.now, &bad[i]));
        assert_true(kve_machine_resume(p.m, p.now, &good));
        kve_machine_destroy(p.m);
    }
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
        cmocka_unit_test(test_built_anew_from_nothing),
        cmocka_unit_test(test_doubt_without_probes),
        cmocka_unit_test(test_doubt_for_long),
        cmocka_unit_test(test_resume_refused),
    };

    return cmocka_run_group_tests_name("stream/machine", tests, NULL, NULL);
}
