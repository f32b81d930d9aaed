#!/usr/bin/env python3
# ctest-timeout: 4200
# ctest-label: long
# ctest-serial: yes
"""Several publishers with snapshots and heartbeats under faults, for long.

One publisher stays; three others are killed (SIGKILL) or paused (SIGSTOP) at
random moments and started anew or let go on, at the same endpoints. One reader
stays, another is killed at random; both follow all four. Live messages are
withheld all the time, and the buffers for replay are short, so that snapshots
have work. Judged:

  * order: what a reader prints of a source follows number by number, in what
    is visible and in the twin, except behind a notice that says why;
  * memory: the resident size of the reader and the publisher that stay is
    flat: the median over the last quarter is at most 5 % or 4 MiB above the
    median over the second quarter;
  * the end: when nothing is killed any more, every source becomes live;
  * no process ends by itself.

    faults.py [--seconds N] [--seed N] [--rate N]
"""

import argparse
import collections
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

from _soak import ROOT, endpoints, flat, rss, spawn, spawn_publisher

sys.path.insert(0, str(ROOT / "tests" / "interop"))

import _cache

BATCHES = 2000      # of the file that publishers repeat
BUFFER = 500        # batches kept for replay
# Live messages withheld: single ones, and now and then more than the buffer.
DROP = ",".join([*(str(n) for n in range(50, 20_000, 97)),
                 *(f"{n}-{n + BUFFER + 100}"
                   for n in range(3000, 200_000, 5000))])
PAUSES = (0.5, 3, 8)    # seconds; heartbeats are missed after 5


def write_stream(path, seed):
    """A cache's life that ends empty, as JSON lines."""
    cache = _cache.Cache(seed)

    def as_json(value):
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, list):
            return [as_json(item) for item in value]
        if isinstance(value, dict):
            return {name: as_json(item) for name, item in value.items()}
        return value

    with open(path, "w", encoding="utf-8") as file:
        def put(events):
            file.write(json.dumps({"ts": 1.5, "events": as_json(events)}) +
                       "\n")

        for _ in range(BATCHES):
            put(cache.batch())
        for place, copies in cache.truth.cached().items():
            medium, locality, ownership, group, value = place
            event = {"type": "BlockRemoved", "block_hashes": [value] * copies,
                     "medium": medium, "locality": locality,
                     "ownership": ownership, "group_idx": group}
            put([{name: value for name, value in event.items()
                  if value is not None}])


class Publisher:
    def __init__(self, stream, rate):
        self.arguments = [str(stream), "--loop", "--rate", str(rate),
                          "--buffer-steps", str(BUFFER), "--drop", DROP]
        self.at = endpoints(3)
        self.starts = 0
        self.start()

    def start(self):
        live, replay, snapshot = self.at
        self.process = spawn_publisher(
            "snapshots on", 60, *self.arguments, "-e", live, "-r", replay,
            "--snapshot-endpoint", snapshot)
        self.starts += 1

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Place:
    """Where a reader is with one source."""

    def __init__(self):
        self.visible = self.twin = None     # the number that is due
        self.building = False
        self.state = None

    def judge(self, entry):
        """An entry; None, or what is wrong about it."""
        if entry["kind"] == "notice":
            getattr(self, "_" + entry["type"], lambda entry: None)(entry)
            return None
        number, hidden = entry["seq"], entry["hidden"]
        if hidden and not self.building:
            return f"batch {number} of a twin that there is not"
        due = self.twin if hidden else self.visible
        if entry["snapshot"]:
            self.twin = number + 1
            return None
        if hidden:
            self.twin = number + 1
        else:
            self.visible = number + 1
        if due is not None and number != due:
            return f"batch {number} where {due} was due"
        return None

    def _begin(self, _):
        self.building, self.twin = True, None

    def _swap(self, _):
        self.building, self.visible, self.twin = False, self.twin, None

    def _abort(self, _):
        self.building, self.twin = False, None

    def _clear(self, _):
        self.building, self.visible, self.twin = False, None, None

    def _lost(self, entry):
        if self.building:
            self.twin = entry["last"] + 1
        else:
            self.visible = entry["last"] + 1

    def _state(self, entry):
        self.state = entry["state"]


class Reader:
    """kvevents watch of all publishers, its output judged as it comes."""

    def __init__(self, publishers):
        self.publishers = publishers
        self.seen = collections.Counter()
        self.starts = 0
        self.faults = []
        self.start()

    def start(self):
        arguments = ["watch", "--format", "json", "--no-tokens", "--quiet"]
        for publisher in self.publishers:
            live, replay, snapshot = publisher.at
            arguments += [live, "--replay", replay, "--snapshot", snapshot]
        self.process = spawn(*arguments, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
        self.starts += 1
        self.places = collections.defaultdict(Place)
        self.thread = threading.Thread(
            target=self.judge, args=(self.process, self.places), daemon=True)
        self.thread.start()

    def judge(self, process, places):
        for line in process.stdout:
            # A killed process may leave half a line, and only as its last.
            if not line.endswith("\n"):
                break
            entry = json.loads(line)
            wrong = places[entry["source"]].judge(entry)
            if wrong:
                self.faults.append(f"{entry['source']}: {wrong}")
            self.seen[entry.get("type", "chunk" if entry.get("snapshot")
                                else "batch")] += 1

    def states(self):
        return [self.places[publisher.at[0]].state
                for publisher in self.publishers]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.thread.join(20)


def disturb(who, rng):
    """One fault of one process."""
    if isinstance(who, Publisher) and rng.random() < 0.4:
        who.process.send_signal(signal.SIGSTOP)
        time.sleep(rng.choice(PAUSES))
        who.process.send_signal(signal.SIGCONT)
        return "pauses"
    who.kill()
    time.sleep(rng.choice((0, 0.1, 1)))
    who.start()
    return "kills"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=int, default=150)
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = random.randrange(2 ** 32)
    print(f"seed {seed}, {options.seconds:.0f} s", flush=True)
    rng = random.Random(seed)

    with tempfile.TemporaryDirectory() as folder:
        stream = pathlib.Path(folder) / "stream.jsonl"
        write_stream(stream, seed)
        good = soak(options, rng, stream)
    sys.exit(0 if good else 1)


def soak(options, rng, stream):
    staying, *others = [Publisher(stream, options.rate) for _ in range(4)]
    reader = Reader([staying, *others])
    killed = Reader([staying, *others])
    everybody = [staying, *others, reader, killed]
    memory = {"reader": [], "publisher": []}
    done = collections.Counter()
    good = True

    start = time.monotonic()
    due = {who: start + rng.uniform(5, 40) for who in (*others, killed)}
    while good and time.monotonic() < start + options.seconds:
        time.sleep(1)
        for who in everybody:
            if who.process.poll() is not None:
                print(f"FAILED: a process ended with {who.process.poll()}",
                      flush=True)
                good = False
        for name, who in (("reader", reader), ("publisher", staying)):
            memory[name].append(rss(who.process.pid) or 0)
        for who, at in due.items():
            if good and time.monotonic() > at:
                done[disturb(who, rng)] += 1
                due[who] = time.monotonic() + rng.uniform(5, 40)

    # Nothing is killed any more.
    until = time.monotonic() + 120
    while {*reader.states(), *killed.states()} != {"live"} and \
            time.monotonic() < until:
        time.sleep(0.2)
    states = reader.states() + killed.states()
    calm = set(states) == {"live"}
    print(f"{'ok' if calm else 'FAILED'}: in the end the sources are "
          f"{', '.join(map(str, states))}", flush=True)
    for who in reversed(everybody):
        who.kill()

    for name, who in (("stays", reader), ("is killed", killed)):
        fine = not who.faults and who.seen["batch"] > 0
        good &= fine
        print(f"{'ok' if fine else 'FAILED'}: the reader that {name}: "
              f"{who.starts} lives, {dict(who.seen)}; {len(who.faults)} out "
              "of order" + "".join(f"\n  {fault}"
                                   for fault in who.faults[:5]), flush=True)
    print(f"{dict(done)}, lives of the publishers: "
          f"{[who.starts for who in (staying, *others)]}", flush=True)
    for name, samples in memory.items():
        good &= flat(name, samples)
    return good and calm


main()
