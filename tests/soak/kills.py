#!/usr/bin/env python3
# ctest-timeout: 4200
# ctest-label: long
# ctest-serial: yes
"""Publisher and subscriber under random kills, for a long time.

Two pairs run at once. In the first the publisher is killed (SIGKILL) at
random moments and started anew on the same ports while one reader stays; in
the second the reader is killed and one publisher stays. Some live messages are
withheld all the time. Judged:

  * order: what a reader prints follows number by number, except behind a
    notice that says why (lost, clear);
  * memory: the resident size of the two processes that stay is flat: the
    median over the last quarter is at most 5 % or 4 MiB above the median over
    the second quarter;
  * no process ends by itself.

    kills.py [--seconds N] [--seed N] [--rate N]
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import threading
import time

from _soak import ROOT, endpoints, flat, rss, spawn, spawn_publisher

STREAM = ROOT / "tests" / "wire" / "fixtures" / "sha256-int-defaults.jsonl"
# Live messages withheld: every 97th of the first twenty thousand.
DROP = ",".join(str(n) for n in range(50, 20_000, 97))


class Publisher:
    def __init__(self, rate):
        self.rate = rate
        self.live, self.replay = endpoints(2)
        self.starts = 0
        self.start()

    def start(self):
        self.process = spawn_publisher(
            "replay on", 20, str(STREAM), "--loop", "--rate", str(self.rate),
            "-e", self.live, "-r", self.replay, "--drop", DROP)
        self.starts += 1

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Reader:
    """kvevents watch, its output judged as it comes."""

    def __init__(self, publisher):
        self.publisher = publisher
        self.batches = self.lost = self.clears = self.repaired = 0
        self.starts = 0
        self.faults = []
        self.start()

    def start(self):
        self.process = spawn(
            "watch", self.publisher.live, "--replay", self.publisher.replay,
            "--format", "json", "--no-tokens", "--quiet",
            stdout=subprocess.PIPE)
        self.starts += 1
        self.thread = threading.Thread(
            target=self.judge, args=(self.process,), daemon=True)
        self.thread.start()

    def judge(self, process):
        expected = None
        for line in process.stdout:
            try:
                entry = json.loads(line)
            except ValueError:
                # A killed process may leave half a line, and only as its last.
                if process.poll() is None and line.endswith("\n"):
                    self.faults.append(f"no JSON: {line[:100]}")
                continue
            if entry["kind"] == "batch":
                if expected is not None and entry["seq"] != expected:
                    self.faults.append(
                        f"batch {entry['seq']} where {expected} was due")
                expected = entry["seq"] + 1
                self.batches += 1
            elif entry.get("type") == "clear":
                self.clears += 1
                expected = None
            elif entry.get("type") == "lost":
                self.lost += entry["last"] - entry["first"] + 1
                expected = entry["last"] + 1
            elif entry.get("type") == "repaired":
                self.repaired += 1

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.thread.join(20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=int, default=300)
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = random.randrange(2 ** 32)
    print(f"seed {seed}, {options.seconds:.0f} s", flush=True)
    rng = random.Random(seed)

    killed_publisher = Publisher(options.rate)
    staying_reader = Reader(killed_publisher)
    staying_publisher = Publisher(options.rate)
    killed_reader = Reader(staying_publisher)
    memory = {"reader": [], "publisher": []}
    good = True

    start = time.monotonic()
    next_kill = {killed_publisher: start + rng.uniform(5, 40),
                 killed_reader: start + rng.uniform(5, 40)}
    while good and time.monotonic() < start + options.seconds:
        time.sleep(1)
        for name, who in (("reader", staying_reader),
                          ("publisher", staying_publisher)):
            size = rss(who.process.pid)
            if who.process.poll() is not None or size is None:
                print(f"FAILED: the {name} that stays ended with "
                      f"{who.process.poll()}", flush=True)
                good = False
            else:
                memory[name].append(size)
        for who, at in next_kill.items():
            if time.monotonic() < at:
                continue
            if who.process.poll() is not None:
                print(f"FAILED: a process ended with {who.process.poll()} "
                      "before it was killed", flush=True)
                good = False
            who.kill()
            time.sleep(rng.choice((0, 0.1, 1)))
            who.start()
            next_kill[who] = time.monotonic() + rng.uniform(5, 40)
    # A last look when nothing is killed any more.
    time.sleep(2)
    for who in (staying_reader, killed_reader, killed_publisher,
                staying_publisher):
        who.kill()

    for name, reader in (("stays", staying_reader),
                         ("is killed", killed_reader)):
        faults = reader.faults
        good &= not faults and reader.batches > 0
        print(f"{'FAILED' if faults else 'ok'}: the reader that {name}: "
              f"{reader.batches} batches in {reader.starts} lives of the "
              f"reader and {reader.publisher.starts} of the publisher, "
              f"{reader.clears} clears, {reader.repaired} repairs, "
              f"{reader.lost} lost; {len(faults)} out of order"
              + "".join(f"\n  {fault}" for fault in faults[:5]), flush=True)
    for name, samples in memory.items():
        good &= flat(name, samples)
    sys.exit(0 if good else 1)


main()
