#!/usr/bin/env python3
"""Snapshots and heartbeats of kvevents publish, and what watch makes of them.

ctest-timeout: 300
"""

import collections
import json
import signal
import subprocess
import sys
import time

from _cache import Cache
from _command import (FIXTURES, LIMIT, Publisher, Running, lines_of, main,
                      ports_to_keep, run)

FILE = str(FIXTURES / "mp-chunked-sha256_cbor-bytes-seed0.jsonl")
FREE = "tcp://127.0.0.1:0"
LIFE = "00112233445566778899aabbccddeeff"


def store(hash_, parent=None):
    return json.dumps({
        "type": "BlockStored", "block_hashes": [hash_],
        "parent_block_hash": parent, "token_ids": [hash_, hash_ + 1],
        "block_size": 2, "medium": "GPU"})


def remove(hash_):
    return json.dumps({"type": "BlockRemoved", "block_hashes": [hash_],
                       "medium": "GPU"})


def truth_of(path):
    """{hash as printed: copies} after the events of a recording."""
    held = collections.Counter()
    for line in lines_of(path):
        for event in line["wire"][1]:
            if event["type"] == "AllBlocksCleared":
                held.clear()
                continue
            step = 1 if event["type"] == "BlockStored" else -1
            for hash_ in event["block_hashes"]:
                name = hash_["$bytes"] if isinstance(hash_, dict) else \
                    str(hash_)
                held[name] = max(0, held[name] + step)
    return +held


def wait_until(watcher, condition):
    """Feed a cache with what watch prints until the condition is true."""
    end = time.monotonic() + LIMIT
    while True:
        cache = Cache()
        for line in list(watcher.out):
            cache.take(json.loads(line))
        if condition(cache):
            return cache
        assert time.monotonic() < end, (cache.log, watcher.err)
        time.sleep(0.05)


def is_live(cache, source):
    return cache.states.get((source, None)) == "live"


def test_a_late_reader_starts_from_a_snapshot():
    """The replay buffer has 3 batches of 27: only a snapshot knows the rest.
    Then it goes on live."""
    truth = truth_of(FILE)
    assert truth
    lines = open(FILE, encoding="utf-8").read().splitlines()
    with Publisher("-", "--snapshot-endpoint", FREE, "--buffer-steps", "3",
                   "--publisher-id", LIFE, stdin=subprocess.PIPE) as publisher:
        assert publisher.id == LIFE and publisher.snapshot.startswith("tcp:")
        publisher.say(*lines)
        with Running("watch", publisher.live, "-r", publisher.replay,
                     "--snapshot", publisher.snapshot, "-f", "json") as \
                watcher:
            cache = wait_until(
                watcher, lambda c: is_live(c, publisher.live)
                and c.of(publisher.live) == truth)
            assert "begin" in cache.log and "swap" in cache.log, cache.log
            publisher.say(store(777001), store(777002, 777001))
            cache = wait_until(
                watcher, lambda c: c.of(publisher.live)["777002"] == 1)
            assert cache.of(publisher.live) == \
                truth + collections.Counter(["777001", "777002"])
            assert is_live(cache, publisher.live), cache.states
            batches = [json.loads(x) for x in watcher.out
                       if x.startswith('{"kind":"batch"')]
            live = [b for b in batches if not b["snapshot"]]
            assert all(b["publisher_id"] == LIFE for b in live), live
            assert not any(b["hidden"] for b in live[-2:]), live


def test_what_the_terminal_says_of_a_snapshot():
    with Publisher("-", "--snapshots", "--buffer-steps", "1", "-t", "kv",
                   stdin=subprocess.PIPE) as publisher:
        assert publisher.snapshot == publisher.replay
        publisher.say(store(1), store(2, 1), remove(2), store(3, 1))
        with Running("watch", publisher.live, "-r", publisher.replay,
                     "--snapshot", "replay", "--verbose") as watcher:
            watcher.wait_for(r"^Received event batch at \S+:  # snapshot "
                             r"after number \d+$", watcher.out)
            name = f"^source {publisher.live}"
            watcher.wait_for(f"{name}: asking for a snapshot$")
            watcher.wait_for(f"{name}: builds a twin, hidden until it is "
                             "complete: snapshot$")
            watcher.wait_for(f"{name}: the twin is complete and replaces what "
                             "was known: snapshot$")
            watcher.wait_for(f"{name} \\w+ -> live: ")
            watcher.wait_for(r":  # heartbeat, number \d+$", watcher.out)
            watcher.signal()
            assert watcher.end() == 130
    assert "; snapshots: 1" in watcher.err[-1], watcher.err


def test_asking_where_there_are_none_is_harmless():
    with Publisher(FILE) as publisher:
        publisher.wait_for("serving replay until interrupted")
        done = run("watch", publisher.live, "-r", publisher.replay,
                   "--snapshot", "replay", "-f", "json", "-n", "27",
                   "--timeout", "50")
    assert done.returncode == 0, done
    assert done.stderr.count("the publisher knows no snapshots") == 1, \
        done.stderr
    seqs = [o["seq"] for o in map(json.loads, done.stdout.splitlines())
            if o["kind"] == "batch"]
    assert seqs == list(range(27)), done


def test_a_snapshot_over_its_limit_is_none():
    with Publisher("-", "--snapshot-endpoint", FREE, "--snapshot-max-bytes",
                   "100", stdin=subprocess.PIPE) as publisher:
        publisher.say(*(store(n) for n in range(50)))
        with Running("watch", publisher.live, "-r", publisher.replay,
                     "--snapshot", publisher.snapshot, "-f", "json") as \
                watcher:
            cache = wait_until(
                watcher, lambda c: len(c.of(publisher.live)) == 50
                and is_live(c, publisher.live))
    assert "snapshot_failed" in cache.log and "swap" not in cache.log, \
        cache.log


def test_a_loss_is_mended_by_a_snapshot():
    """Batches that neither the live stream nor replay has: degraded, then
    whole again."""
    first = ports_to_keep(3)
    live, replay, snapshot = (f"tcp://127.0.0.1:{first + i}"
                              for i in range(3))
    with Publisher("-", "--snapshot-endpoint", snapshot, "--buffer-steps",
                   "1", "--drop", "5-8", endpoint=live, replay=replay,
                   stdin=subprocess.PIPE) as publisher:
        publisher.say(store(0))
        with Running("watch", live, "-r", replay, "--snapshot", snapshot,
                     "-f", "json") as watcher:
            wait_until(watcher, lambda c: is_live(c, live))
            # Of 11 batches 4 are withheld, and replay has the last one only.
            publisher.say(*(store(n) for n in range(1, 12)))
            cache = wait_until(watcher, lambda c: len(c.of(live)) == 12
                               and is_live(c, live))
            watcher.signal()
            assert watcher.end() == 130
    assert cache.of(live) == collections.Counter(
        str(n) for n in range(12)), cache.of(live)
    assert cache.log.count("swap") == 2, cache.log  # at the start, and after
    assert watcher.err[-1].endswith("; snapshots: 2"), watcher.err[-1]


def test_kill_and_restart_are_seen_as_one_restart():
    """D2's other half: the port comes back. Without an id another batch under
    a known number tells, with one the id does."""
    for args, reasons in ([], r"restart"), (["--snapshots"],
                                            r"(?:new id|restart)"):
        first = ports_to_keep(2)
        where = {"endpoint": f"tcp://127.0.0.1:{first}",
                 "replay": f"tcp://127.0.0.1:{first + 1}"}
        with Running("watch", where["endpoint"], "-r", where["replay"], "-f",
                     "json", "--stats") as watcher:
            with Publisher("-", *args, **where, stdin=subprocess.PIPE) as one:
                one.say(store(1), store(2, 1), store(3, 2))
                wait_until(watcher, lambda c: is_live(c, one.live)
                           and len(c.of(one.live)) == 3)
                one.signal(signal.SIGKILL)
            with Publisher("-", *args, **where, stdin=subprocess.PIPE) as two:
                two.say(store(7), store(8, 7))
                cache = wait_until(
                    watcher, lambda c: is_live(c, two.live) and
                    set(c.of(two.live)) == {"7", "8"})
                watcher.signal()
                assert watcher.end() == 130
        assert cache.of(two.live) == {"7": 1, "8": 1}
        told = [x for x in watcher.err
                if f"source {one.live} " in x
                and x.split(": ")[-1] in ("restart", "new id")]
        assert len(told) == 1, (args, watcher.err)
        stats = json.loads(watcher.out[-1])
        assert stats["counters"]["restarts"] == 1, stats["counters"]
        assert "; restarts: 1" in watcher.err[-1], watcher.err


def test_heartbeats_that_stop():
    """A publisher that stands still is stale; heard again it is not."""
    with Publisher("-", "--snapshots", "--heartbeat", "0.2",
                   stdin=subprocess.PIPE) as publisher:
        publisher.say(store(1))
        with Running("watch", publisher.live, "-r", publisher.replay,
                     "--heartbeat-timeout", "2", "-f", "json",
                     "--stats=1") as watcher:
            wait_until(watcher, lambda c: is_live(c, publisher.live))
            end = time.monotonic() + LIMIT
            while not any(json.loads(x)["counters"]["heartbeats_received"]
                          for x in list(watcher.out)
                          if x.startswith('{"kind":"stats"')):
                assert time.monotonic() < end, watcher.out
                time.sleep(0.05)
            publisher.signal(signal.SIGSTOP)
            watcher.wait_for(f"^source {publisher.live}: stale: its "
                             "heartbeats stopped$")
            publisher.signal(signal.SIGCONT)
            watcher.wait_for(f"^source {publisher.live}: heard again")
            watcher.signal()
            assert watcher.end() == 130
    kinds = [json.loads(x).get("type") for x in watcher.out]
    assert kinds.index("stale") < kinds.index("fresh"), kinds


def test_heartbeats_are_no_batches_for_people():
    """They are not printed as text, and --count does not count them."""
    with Publisher("-", "--publisher-id", LIFE, "--heartbeat", "0.05",
                   stdin=subprocess.PIPE) as publisher:
        with Running("watch", publisher.live, "-n", "1") as watcher:
            watcher.wait_for(f"^source {publisher.live} \\w+ -> ")
            time.sleep(0.5)
            assert len(watcher.out) == 1, watcher.out
            publisher.say(store(1))
            assert watcher.end() == 0, watcher.err
    assert len(watcher.out) == 3, watcher.out
    assert watcher.err[-1].startswith("1 batches, 1 events; "), watcher.err


def test_recorded_messages_get_the_id():
    """And nothing else of them changes; without an id nothing does."""
    want = [line["payload"] for line in lines_of(FILE)]
    for args, tail in ([], ""), (["--publisher-id", LIFE], "c410" + LIFE):
        with Publisher(FILE, *args) as publisher:
            done = run("watch", publisher.live, "-r", publisher.replay, "-f",
                       "raw", "-n", "27", "--timeout", "50")
        got = [json.loads(x)["payload"] for x in done.stdout.splitlines()]
        head = "94" if tail else "93"
        assert got == [head + p[2:] + tail for p in want], (args, done)
    # An id that was recorded makes place for the new one.
    other = LIFE[::-1]
    recorded = done.stdout
    with Publisher("-", "--publisher-id", other, stdin=subprocess.PIPE) as \
            publisher:
        publisher.process.stdin.write(recorded)
        publisher.process.stdin.close()
        done = run("watch", publisher.live, "-r", publisher.replay, "-f",
                   "raw", "-n", "27", "--timeout", "50")
    again = [json.loads(x)["payload"] for x in done.stdout.splitlines()]
    assert again == [p.replace(LIFE, other) for p in got], done


if __name__ == "__main__":
    main(sys.modules[__name__])
