#!/usr/bin/env python3
# ctest-timeout: 300
"""Snapshots of our publisher, asked for by plain pyzmq.

A subscriber that follows the proposal's example bootstraps while publishing
goes on; what it folds is compared with what the publisher's cache holds. The
reply itself is read to the letter, and wrong requests are sent.

    test_snapshot_serve.py [--reference] [SCENARIO...]

With --reference the proposal's publisher in plain Python takes ours' place:
the judges are checked by it.
"""

import argparse
import contextlib
import json
import sys
import threading
import time
import traceback

import zmq

import _batches
import _cache
import _fold
import _harness
import _kve_ctypes
import _proposal
from _harness import PATIENCE, Checks, eventually
from _pyzmq import answer, dealer, free_ports, number, receive, start, sub

HEARTBEAT_MS = 200
check = Checks()
reference = False


class Source:
    """A publisher and the cache it speaks of."""

    def __init__(self, seed=1, clears=True, **options):
        self.cache = _cache.Cache(seed, clears)
        if reference:
            self.pub = _proposal.Publisher(heartbeat=HEARTBEAT_MS / 1000)
            self.live, self.replay = self.pub.live, self.pub.replay
            self.snapshot, self.id = self.pub.snapshot, self.pub.id
            return
        options.setdefault("replay_endpoint", "tcp://127.0.0.1:0")
        options.setdefault("snapshot_endpoint", "tcp://127.0.0.1:0")
        options.setdefault("heartbeat_ms", HEARTBEAT_MS)
        self.pub = _kve_ctypes.Publisher(**options)
        self.live, self.replay = self.pub.endpoint, self.pub.replay_endpoint
        self.snapshot = self.pub.snapshot_endpoint
        self.id = self.pub.publisher_id

    def publish(self, batches, pause=0.0):
        for _ in range(batches):
            self.send(self.cache.batch())
            if pause:
                time.sleep(pause)

    def send(self, events):
        self.pub.publish(events)

    def ask(self, at=None, request=(b"", b"snapshot"), seconds=PATIENCE):
        """(number, id, chunks) of a reply, or None."""
        with dealer(at or self.snapshot) as reader:
            reader.send_multipart(request)
            got = receive(reader, 1, seconds)
        if not got:
            return None
        frames = got[0]
        return (int.from_bytes(frames[1], "big", signed=True), frames[2],
                frames[3:])

    def ask_until(self, right):
        """The first reply that is right; the recorder is a moment behind."""
        got = []

        def one():
            got[:] = [self.ask()]
            return got[0] and right(got[0])

        eventually(one)
        return got[0]

    def close(self):
        self.pub.close()


@contextlib.contextmanager
def source(**options):
    at = Source(**options)
    try:
        yield at
    finally:
        at.close()


def events_of(chunks):
    return [event for chunk in chunks
            for event in _batches.plain_wire(_proposal.unpack(chunk)[1])]


def folded(chunks):
    fold = _fold.Fold(gpu_only=True)
    fold.apply(events_of(chunks))
    return fold


# ---------------------------------------------------------------------------


def bootstraps(kind):
    """By the example's protocol, while publishing goes on."""
    name = "REQ" if kind == zmq.REQ else "DEALER"
    with source(seed=kind) as at:
        at.publish(600)
        more = threading.Thread(target=at.publish, args=(600, 0.003))
        more.start()
        reader = _proposal.Subscriber(at.live, at.snapshot, kind)
        check(f"{name}: bootstrapped while publishing goes on",
              eventually(reader.shown) and more.is_alive())
        more.join()

        def equal():
            shown = reader.shown()
            return shown and shown[1] == at.cache.truth.cached()

        right = eventually(equal)
        shown = reader.shown()
        check(f"{name}: then equal to the truth", right,
              f"{len(at.cache.truth.copies)} places" if right else
              shown and _fold.differences(shown[1],
                                          at.cache.truth.cached()))
        at.publish(200, 0.002)
        check(f"{name}: and after further batches", eventually(equal))
        check.equal(f"{name}: at the first attempt",
                    (reader.bootstraps, dict(reader.restarts)), (1, {}))
        told, life, chunks = reader.replies[0]
        check(f"{name}: from the middle of the stream",
              600 <= told < 1200 and life == at.id and chunks, told)
        reader.close()


def with_req():
    bootstraps(zmq.REQ)


def with_dealer():
    bootstraps(zmq.DEALER)


def parts_of(events):
    """The program's parts: complete stores, removals, stores without tokens,
    removals."""
    kinds = [(event["type"] == "BlockStored") +
             bool(event.get("token_ids")) for event in events]
    parts, at = [], 0
    for kind in (2, 0, 1, 0):
        begin = at
        while at < len(events) and kinds[at] == kind:
            at += 1
        parts.append(events[begin:at])
    return parts, at == len(events)


def program():
    """A reply at rest, to the letter (B22)."""
    with source(seed=3, clears=False) as at:
        at.publish(1500)
        for event in (events := at.cache.batch()):
            if event["type"] == "BlockStored":
                event["session_id"] = "secret"
        at.send(events)
        _, life, chunks = at.ask_until(lambda got: got[0] >= 1500)
        events = events_of(chunks)
        check.equal("program: the publisher's id", life, at.id)
        batches = [_proposal.unpack(chunk) for chunk in chunks]
        check("program: chunks are [ts, events, rank]",
              all(len(batch) == 3 and isinstance(batch[0], float) and
                  batch[2] is None for batch in batches))
        check("program: at most 256 events a chunk, 1,024 hashes an event",
              all(0 < len(batch[1]) <= 256 for batch in batches) and
              all(0 < len(event["block_hashes"]) <= 1024
                  for event in events),
              [len(batch[1]) for batch in batches])
        check("program: no session", "session_id" not in str(events))
        parts, whole = parts_of(events)
        check("program: its four parts in order", whole and parts[0] and
              parts[2] and parts[3], [len(part) for part in parts])
        taught(at, parts[0])
        dead = {value for event in parts[1]
                for value in event["block_hashes"]}
        check("program: dead ancestors are stored and removed", dead and
              not dead & {key[4] for key in folded(chunks).copies},
              f"{len(dead)} of them")
        check("program: stores of the third part have no tokens, no parent, "
              "no size", all(
                  event["block_size"] == 0 and
                  event.get("parent_block_hash") is None
                  for event in parts[2]))
        check.equal("program: nothing is removed that is not there",
                    folded(chunks).below, 0)


def taught(at, stores):
    """The complete stores teach what was taught, parents first."""
    got = _cache.taught_by(stores)
    wrong = [(value, one, at.cache.taught.get(value))
             for value, one in got.items()
             if one != {**at.cache.taught.get(value, {})}]
    check("program: tokens, parents, adapters and keys as they were taught",
          got and not wrong, _harness.shortened(wrong[:1], 1500) if wrong
          else f"{len(got)} blocks")
    seen, early = set(), []
    times = {}
    for event in stores:
        parent = event.get("parent_block_hash")
        if parent is not None and _fold.bits(parent) not in seen:
            early.append(event)
        for value in event["block_hashes"]:
            times[value] = times.get(value, 0) + 1
            seen.add(_fold.bits(value))
    check("program: parents first", not early, early[:1])
    check("program: each block once", set(times.values()) == {1})


def counts():
    """At rest the program alone makes exactly the counts there are."""
    with source(seed=4) as at:
        for _ in range(5):
            at.publish(300)
            truth = at.cache.truth.cached()
            got = at.ask_until(lambda got: folded(got[2]).cached() == truth)
            check.equal("counts: the program makes the truth",
                        got and _fold.differences(
                            folded(got[2]).cached(), truth), "equal")


def older_form():
    """The eight letters on the replay socket in place of a number."""
    with source(seed=5) as at:
        at.publish(300)
        truth = at.cache.truth.cached()
        at.ask_until(lambda got: folded(got[2]).cached() == truth)
        got = at.ask(at.replay)
        check("older form: answered", got is not None and got[1] == at.id)
        check("older form: the same program",
              folded(got[2]).cached() == truth)
        with dealer(at.replay) as reader:
            replay = answer(reader, b"", start(290))
        check("older form: replays are served as before",
              len(replay) > 10 and number(replay[0]) == 290)
    if reference:
        return
    with source(seed=5, snapshot_endpoint=None, snapshots=1) as at:
        at.publish(100)
        truth = at.cache.truth.cached()
        check("older form: without a socket for snapshots", eventually(
            lambda: folded(at.ask(at.replay)[2]).cached() == truth))
    with source(seed=5, snapshot_endpoint=None, heartbeat_ms=0) as at:
        at.publish(10)
        with dealer(at.replay) as reader:
            got = answer(reader, b"", b"snapshot")
        check.equal("older form: asked of a publisher without snapshots, it "
                    "does no harm", [frames[-2:] for frames in got],
                    [[b"\xff" * 8, b""]])


def wrong_requests():
    """Anything but the two frames gets no answer, and does no harm."""
    wrong = ([b"snapshot"], [b"", b"snapshot", b"more"], [b"", b""],
             [b"", b"Snapshot"], [b"", b"\0" * 8], [b"x", b"snapshot"],
             [b"", b"snapshots"], [b"", b"", b"snapshot"])
    with source(seed=6) as at:
        at.publish(50)
        with dealer(at.snapshot) as reader:
            for frames in wrong:
                reader.send_multipart(frames)
            check.equal("wrong requests: no answer to any",
                        receive(reader, 1, 1.0), [])
            if not reference:
                check.equal("wrong requests: counted",
                            at.pub.counter("PUB_SNAPSHOT_BAD"), len(wrong))
            reader.send_multipart([b"", b"snapshot"])
            check("wrong requests: a right one behind them is answered",
                  len(receive(reader, 1)) == 1)


def nothing_yet():
    """Before the first batch the number is -1."""
    with source(seed=7, heartbeat_ms=_kve_ctypes.NONE) as at:
        check.equal("nothing yet: -1 and no chunks", at.ask(),
                    (-1, at.id, []))
        at.publish(1)
        got = at.ask_until(lambda got: got[0] == 0)
        check("nothing yet: then the first batch", got[0] == 0 and
              folded(got[2]).cached() == at.cache.truth.cached(), got[:1])


def limit(what, **options):
    """Too large: -2; it fits again: served again, by itself."""
    with source(seed=8, clears=False, **options) as at:
        at.publish(400)
        got = at.ask_until(lambda got: got[0] == -2)
        check.equal(f"{what}: -2 and no chunks", got, (-2, at.id, []))
        # It is counted when the reply was handed over, perhaps after it came.
        check(f"{what}: counted", eventually(
            lambda: at.pub.counter("PUB_SNAPSHOT_UNAVAILABLE") > 0))
        reader = _proposal.Subscriber(at.live, at.snapshot)
        check(f"{what}: a reader is told", eventually(
            lambda: reader.restarts["unavailable"]))
        while at.cache.truth.copies:
            *place, value = min(at.cache.truth.copies, key=str)
            event = {"type": "BlockRemoved", "block_hashes": [value]}
            event.update((name, part) for name, part in zip(
                ("medium", "locality", "ownership", "group_idx"), place)
                if part is not None)
            at.cache.truth.apply([event])
            at.send([event])
        for _ in range(5):
            at.publish(1)
        truth = at.cache.truth.cached()
        got = at.ask_until(lambda got: got[0] >= 0 and
                           folded(got[2]).cached() == truth)
        check(f"{what}: once it fits, served again and right",
              got[0] >= 0 and folded(got[2]).cached() == truth, got[0])
        check(f"{what}: the reader came back by itself", eventually(
            lambda: reader.shown() and reader.shown()[1] == truth))
        reader.close()


def limit_of_bytes():
    limit("limit of bytes", snapshot_max_bytes=8_000)


def limit_of_blocks():
    limit("limit of blocks", snapshot_max_blocks=100)


def heartbeats():
    """An idle publisher sends empty batches with its id and the next
    number; they are in replay."""
    with source(seed=9) as at, sub(at.live, "") as reader:
        at.publish(3)
        got = receive(reader, 3 + 4)
        empty = [frames for frames in got
                 if not _proposal.unpack(frames[2])[1]]
        check("heartbeats: while idle", len(empty) >= 3, len(empty))
        numbers = [int.from_bytes(frames[1], "big") for frames in got]
        check.equal("heartbeats: they have numbers of their own", numbers,
                    list(range(numbers[0], numbers[0] + len(got))))
        check("heartbeats: every batch has the id", all(
            _proposal.unpack(frames[2])[3] == at.id for frames in got))
        with dealer(at.replay) as asks:
            replay = answer(asks, b"", start(numbers[-1]))
        check("heartbeats: they are in replay", len(replay) >= 2 and
              not _proposal.unpack(replay[0][-1])[1])


def of_the_command():
    """kvevents publish --snapshot-endpoint, fed JSON lines."""
    def as_json(value):
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, list):
            return [as_json(item) for item in value]
        if isinstance(value, dict):
            return {name: as_json(item) for name, item in value.items()}
        return value

    port = free_ports(3)
    live, replay, snapshot = (f"tcp://127.0.0.1:{port + k}" for k in range(3))
    command = _harness.Process([
        _harness.command(), "publish", "-", "--endpoint", live,
        "--replay-endpoint", replay, "--snapshot-endpoint", snapshot])
    cache = _cache.Cache(10)
    reader = _proposal.Subscriber(live, snapshot, zmq.DEALER)
    for _ in range(300):
        command.child.stdin.write(json.dumps(
            {"ts": time.time(), "events": as_json(cache.batch())}) + "\n")
    command.child.stdin.close()
    right = eventually(lambda: reader.shown() and
                       reader.shown()[1] == cache.truth.cached())
    check("command: bootstrapped, equal to the truth", right,
          reader.shown() and _fold.differences(reader.shown()[1],
                                               cache.truth.cached()))
    reader.close()
    command.kill()


SCENARIOS = (with_req, with_dealer, program, counts, older_form,
             wrong_requests, nothing_yet, limit_of_bytes, limit_of_blocks,
             heartbeats, of_the_command)
# Those that ask the publisher for what only ours has.
OURS = (nothing_yet, limit_of_bytes, limit_of_blocks, of_the_command)


def main():
    global reference
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("scenarios", nargs="*")
    arguments = parser.parse_args()
    reference = arguments.reference
    for scenario in SCENARIOS:
        if arguments.scenarios and \
                scenario.__name__ not in arguments.scenarios:
            continue
        if reference and scenario in OURS:
            continue
        try:
            scenario()
        except Exception:
            check(scenario.__name__, False, traceback.format_exc())
    check.finish()


if __name__ == "__main__":
    sys.exit(main())
