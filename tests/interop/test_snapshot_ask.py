#!/usr/bin/env python3
# ctest-timeout: 600
"""kvevents watch --snapshot, bootstrapped by a publisher in plain Python.

The publisher follows the snapshot proposal with a recorder of its own, or
breaks it in ways that are named here. What watch --format json says it
received is folded, the twin apart from what is visible, and compared with
what the publisher's cache holds.

    test_snapshot_ask.py [SCENARIO...]
"""

import concurrent.futures
import sys
import threading
import time
import traceback

import _cache
import _fold
import _harness
import _proposal
import _vllm_class
from _harness import PATIENCE, Checks, ReplayTap, VllmPeer, ranges

WORD = int.from_bytes(_proposal.WORD, "big")
checks = Checks()


class Stage:
    """A publisher, its cache, and readers; all ended with the stage."""

    def __init__(self, name, **options):
        self.name = name
        self.cache = _cache.Cache(name)
        self.pub = _proposal.Publisher(**options)
        self.readers = []

    def check(self, what, right, detail=""):
        return checks(f"{self.name}: {what}", right, detail)

    def equal(self, what, got, wanted):
        return checks.equal(f"{self.name}: {what}", got, wanted)

    def publish(self, batches, pause=0.0):
        if not pause:
            self.pub.publish(*(self.cache.batch() for _ in range(batches)))
            return
        for _ in range(batches):
            self.pub.publish(self.cache.batch())
            time.sleep(pause)

    def reader(self, *options, snapshot=None):
        got = _harness.Watch(self.pub.live, self.pub.replay, "",
                             "--snapshot", snapshot or self.pub.snapshot,
                             *options)
        got.follower = _fold.Follower(gpu_only=True)
        self.readers.append(got)
        return got

    def follow(self, reader):
        return reader.follower.take(reader.items)

    def is_right(self, reader):
        now = self.follow(reader)
        return now.state == "live" and \
            now.visible.cached() == self.cache.truth.cached()

    def comes_right(self, reader, what, seconds=2 * PATIENCE):
        """Live, and the fold is the truth."""
        right = reader.wait(lambda r: self.is_right(r), seconds)
        now = self.follow(reader)
        return self.check(
            what, right, f"{len(self.cache.truth.copies)} places" if right
            else f"{now.state}, at {now.number} of {self.pub.next - 1}, " +
            _fold.differences(now.visible.cached(),
                              self.cache.truth.cached()))

    def end(self):
        for reader in self.readers:
            self.follow(reader)
            self.equal("interrupted, the reader ends with 130",
                       reader.close(), 130)
            self.check("every line was understood", not reader.unreadable,
                       _harness.shortened(reader.unreadable))
            self.equal("twins begin before they are built",
                       reader.follower.odd, [])
        self.pub.close()


# ---------------------------------------------------------------------------


def while_publishing(stage):
    """It starts in the middle of traffic."""
    stage.publish(500)
    more = threading.Thread(target=stage.publish, args=(500, 0.004))
    more.start()
    reader = stage.reader()
    came = reader.wait(lambda r: r.of("swap"))
    stage.check("bootstrapped while publishing goes on",
                came and more.is_alive())
    more.join()
    stage.comes_right(reader, "then live and equal to the truth")
    stage.publish(200, 0.002)
    stage.comes_right(reader, "and after further batches")
    stage.check("by a snapshot", reader.of("chunk"))
    stage.equal("one request for it", stage.pub.requests["snapshot"], 1)
    stage.equal("nothing was lost", reader.lost(), [])


def while_publishing_no_replay(stage):
    while_publishing(stage)


def late_idle(stage):
    """200 batches were published, then nothing (B16): no live message comes
    that could be waited for."""
    stage.publish(200)
    begun = time.monotonic()
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    stage.check("by a snapshot", reader.of("chunk") and
                not reader.replayed() - {199},
                f"{time.monotonic() - begun:.2f} s after the start, replayed "
                f"{ranges(sorted(reader.replayed()))}")


def late_idle_heartbeats(stage):
    """The same with a publisher that sends heartbeats."""
    stage.publish(200)
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    stage.check("by a snapshot", reader.of("chunk"))
    stage.check("heartbeats come", reader.wait(
        lambda r: r.numbers() and max(r.numbers()) > stage.pub.next - 2))


def gap_no_replay(stage):
    """Live messages are lost, and there is no replay to repair them."""
    stage.publish(100)
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    for _ in range(3):
        at = stage.pub.next
        gone = range(at + 5, at + 8)
        stage.pub.withhold = lambda number: number in gone
        stage.publish(20, 0.002)
        stage.comes_right(reader, f"whole again after {ranges(gone)} were "
                          "lost")
    stage.check("by snapshots", len(reader.of("swap")) >= 4,
                f"{len(reader.of('swap'))} swaps")
    stage.check("few requests", stage.pub.requests["snapshot"] <= 8,
                stage.pub.requests["snapshot"])


def gap_beyond_buffer(stage):
    """The gap is longer than the replay buffer."""
    stage.publish(100)
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    at = stage.pub.next
    stage.pub.withhold = lambda number: at <= number < at + 30
    stage.publish(40, 0.002)
    stage.comes_right(reader, "whole again")
    stage.check("by a snapshot", len(reader.of("swap")) >= 2)


def restart(stage):
    """Another life, under a lower, a higher and the next number."""
    stage.publish(50)
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    for k, (what, first) in enumerate((
            ("from 0", 0), ("from a higher number", 1000),
            ("from the next number", None))):
        stage.pub.restart(stage.pub.next if first is None else first)
        stage.cache = _cache.Cache(f"{stage.name}-{k}")
        stage.publish(20, 0.002)
        stage.comes_right(reader, f"{what}: live, and nothing of the old "
                          "life is left")
    reader.close()
    stage.equal("restarts seen", reader.counters["restarts"], 3)
    stage.check("by the id", reader.counters["restarts_id"] >= 1,
                {name: n for name, n in reader.counters.items()
                 if name.startswith("restarts")})


def restart_no_replay(stage):
    restart(stage)


def long_number(stage):
    """The draft's frame of 24 bytes: number and id."""
    stage.publish(100)
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    stage.publish(50, 0.002)
    stage.comes_right(reader, "and after further batches")
    stage.pub.restart(stage.pub.next)
    stage.cache = _cache.Cache("another")
    stage.publish(50, 0.002)
    stage.comes_right(reader, "after a restart that only the id shows")
    reader.close()
    stage.check("the id was read", reader.counters["restarts_id"] >= 1)


def unavailable(stage):
    """-2, for a while."""
    stage.publish(100)
    reader = stage.reader()
    asked = reader.wait(lambda r: stage.pub.requests["snapshot"] >= 2)
    stage.check("it asks again", asked, stage.pub.requests["snapshot"])
    stage.publish(20, 0.002)
    time.sleep(1)
    stage.check("it does not say live", "live" not in reader.states(),
                reader.states())
    stage.equal("nothing was swapped in", reader.of("swap"), [])
    stage.pub.snapshots = "serve"
    stage.comes_right(reader, "live and equal once there is one",
                      4 * PATIENCE)


def silent(stage):
    """Requests are not answered at all, for a while."""
    stage.publish(100)
    reader = stage.reader()
    stage.check("it asks again", reader.wait(
        lambda r: stage.pub.requests["snapshot"] >= 2, 2 * PATIENCE))
    stage.check("it does not say live", "live" not in reader.states(),
                reader.states())
    stage.pub.snapshots = "serve"
    stage.comes_right(reader, "live and equal once there is one",
                      4 * PATIENCE)


def stale(stage):
    """Heartbeats stop, and come again."""
    def said(reader, what):
        return [got for got, in reader.of("other")
                if got.get("type") == what]

    stage.publish(20)
    reader = stage.reader()
    stage.comes_right(reader, "live and equal to the truth")
    reader.wait(lambda r: r.has(stage.pub.next - 1))
    time.sleep(1)
    stage.equal("not stale", said(reader, "stale"), [])
    stage.pub.heartbeat = 0
    stage.check("stale when they stop",
                reader.wait(lambda r: said(r, "stale"), 2 * PATIENCE))
    stage.pub.heartbeat = 0.3
    stage.check("fresh when they come again",
                reader.wait(lambda r: said(r, "fresh")))
    stage.comes_right(reader, "right all the time")


def _chunk(change):
    return lambda right: [*right[:2], change(right[2]), *right[3:]]


MALFORMED = {
    "no id": lambda right: right[:1],
    "a short id": lambda right: [right[0], b"short", *right[2:]],
    "a short number": lambda right: [b"\0\0\1", *right[1:]],
    "number -3": lambda right: [_proposal.signed(-3), *right[1:]],
    "nothing": lambda right: [],
    "an empty chunk": _chunk(lambda chunk: b""),
    "garbage": _chunk(lambda chunk: b"\xc1" * 40),
    "a cut chunk": _chunk(lambda chunk: chunk[:-20]),
    "a chunk that is no batch": _chunk(lambda chunk: b"\x2a"),
    "an event that cannot be read": _chunk(lambda chunk: _proposal.pack(
        [1.0, [{"type": "BlockStored", "block_hashes": "none"}], None])),
    "another life's id": lambda right: [right[0], b"\x55" * 16, *right[2:]],
    "a number of long ago": lambda right: [
        _proposal.signed(int.from_bytes(right[0], "big") - 50), *right[1:]],
}
# What only a live message shows to be wrong.
SEEN_LATER = ("another life's id", "a number of long ago")


def malformed(stage, change):
    """The reply is wrong in one way, for a while."""
    stage.publish(100)
    stage.pub.snapshots = change
    reader = stage.reader()
    stage.check("it asks", reader.wait(
        lambda r: stage.pub.requests["snapshot"] >= 1))
    stage.publish(20, 0.002)
    time.sleep(1.5)
    stage.check("it does not say live", "live" not in reader.states(),
                reader.states())
    stage.check("nothing was swapped in", not reader.of("swap") or
                any(change is MALFORMED[what] for what in SEEN_LATER))
    stage.pub.snapshots = "serve"
    stage.comes_right(reader, "live and equal once it is right",
                      4 * PATIENCE)


def wrong_while_live(stage):
    """A gap asks for a snapshot, and what only a live message shows to be
    wrong was shown before."""
    for what in SEEN_LATER:
        stage.publish(60)
        reader = stage.reader()
        stage.comes_right(reader, "live and equal to the truth")
        swaps = len(reader.of("swap"))
        stage.pub.snapshots = MALFORMED[what]
        asked = stage.pub.requests["snapshot"]
        at = stage.pub.next
        stage.pub.withhold = lambda number, at=at: number == at + 3
        stage.publish(60, 0.002)
        stage.check(f"{what}: it asks", reader.wait(
            lambda r, asked=asked: stage.pub.requests["snapshot"] > asked))
        time.sleep(1)
        # Another id may be a restart, whose live messages are yet to come.
        stage.check(f"{what}: nothing was swapped in",
                    what == "another life's id" or
                    len(reader.of("swap")) == swaps)
        stage.check(f"{what}: it does not say live",
                    reader.states()[-1] != "live", reader.states())
        stage.pub.snapshots = "serve"
        stage.comes_right(reader, f"{what}: whole again", 4 * PATIENCE)


def of_a_publisher_without(release):
    """The real vLLM class knows no snapshots: asked at its replay endpoint,
    it answers with the end only, and all comes by replay."""
    name = f"vLLM {release}, which has none"
    peer = VllmPeer(release)
    peer.open(topic="kv-events")
    tap = ReplayTap(peer.replay)
    peer.publish(0, 200)
    reader = _harness.Watch(peer.live, tap.endpoint, "", "--snapshot",
                            "replay")
    checks(f"{name}: the last batch came", reader.wait(lambda r: r.has(199)))
    checks.equal(f"{name}: all, in order, each once",
                 ranges(reader.numbers()), "0..199")
    checks(f"{name}: live", reader.wait(
        lambda r: r.states()[-1:] == ["live"]), reader.states())
    peer.publish(200, 50, pause=0.01)
    checks(f"{name}: and goes on", reader.wait(lambda r: r.has(249)))
    time.sleep(2)
    checks.equal(f"{name}: still live", reader.states()[-1:], ["live"])
    checks.equal(f"{name}: nothing was lost", reader.lost(), [])
    asked = tap.starts.count(WORD)
    checks(f"{name}: asked, and not again and again", 1 <= asked <= 4, asked)
    checks.equal(f"{name}: interrupted, the reader ends with 130",
                 reader.close(), 130)
    checks(f"{name}: the publisher runs", peer.do("alive")["alive"])
    tap.close()
    peer.kill()


SCENARIOS = (
    (stale, {}),
    (silent, {"snapshots": "silent", "replay": False}),
    (wrong_while_live, {"replay": False}),
    (restart, {}),
    (restart_no_replay, {"replay": False}),
    (while_publishing, {}),
    (while_publishing_no_replay, {"replay": False}),
    (late_idle, {"heartbeat": 0}),
    (late_idle_heartbeats, {"buffer_steps": 8}),
    (gap_no_replay, {"replay": False}),
    (gap_beyond_buffer, {"buffer_steps": 8}),
    (long_number, {}),
    (unavailable, {"snapshots": "unavailable", "replay": False}),
)


def play(scenario, name, options, *arguments):
    stage = None
    try:
        stage = Stage(name, **options)
        scenario(stage, *arguments)
    except Exception:
        checks(name, False, traceback.format_exc())
    finally:
        if stage:
            stage.end()


def guarded(call, *arguments):
    try:
        call(*arguments)
    except Exception:
        checks(call.__name__, False, traceback.format_exc())


def main():
    _harness.command()
    chosen = sys.argv[1:]
    have, lines = _vllm_class.available()
    # Mostly waiting, so several at a time even on two cores.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for scenario, options in SCENARIOS:
            name = scenario.__name__
            if not chosen or name in chosen:
                pool.submit(play, scenario, name.replace("_", " "), options)
        for what, change in MALFORMED.items():
            if not chosen or "malformed" in chosen:
                pool.submit(play, malformed, f"reply with {what}",
                            {"replay": False}, change)
        for release in have:
            if not chosen or "vllm" in chosen:
                pool.submit(guarded, of_a_publisher_without, release)
    for line in lines:
        print(f"not tested with {line}")
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
