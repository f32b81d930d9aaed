#!/usr/bin/env python3
# ctest-timeout: 1800
# ctest-label: long
# ctest-serial: yes
"""A real vLLM engine, followed through losses, compared with its own truth.

The engine runs real requests on tiny models; a relay withholds three tenths
of its live messages and the last one of every burst, so that the repairs and
the tail probe of kvevents watch have work. The blocks each KV-cache group
holds, with the number of copies, are computed from what watch --format json
printed, and compared with the engine's block pool at each checkpoint, one
probe interval after the engine fell idle.

Then the same with an engine that keeps 8 batches for replay only, and a
watch that is killed (SIGKILL) and started anew at random while the engine
works. What it missed may be gone for good then: at each checkpoint it must be
equal and say live, or say that it is degraded.

With --what index an index follows instead (tests/tools/kve_index_tool.c, a
subscriber that feeds it): at each checkpoint its dump has to equal the block
pool, groups and copies included, and say of every block where it stands. Its
reader is killed in no run; --what watch leaves this part out.

    KVEVENTS_ENGINE_DIR      a folder with env.sh (the environment of Python
                             with vLLM) and models/; without it: skipped
    KVEVENTS_ENGINE_TRAFFIC  the program that runs the engine, default
                             traffic.py in that folder. It prints a line
                             {"checkpoint": k, "cached": [[group, hash,
                             copies]...]} after each round and waits for a
                             line on its standard input.

    run_engine.py [--model M]... [--rounds N] [--seeds N] [--first-seed S]
                  [--all] [--reference] [--only calm|kills]
                  [--what watch|index|both]
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shlex
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] /
                       "interop"))

import _fold
import _harness
import _residency
from _harness import Checks, Relay

PROBE = 0.5         # seconds; watch's default
ENGINE_POLL = 0.1   # how often an idle engine looks at replay requests
SETTLED = 0.3       # the engine has been idle so long at a checkpoint
SLACK = 0.5         # two loaded cores, pipes, Python
LAST = 0.25         # nothing after a message for so long: it was the last
TOPIC = "kv-events"
BLOCKS = {"models/gemma3": 200}


class Reading:
    """What the engine holds, by the events one reader printed."""

    def __init__(self, reader):
        self.reader = reader
        self.follower = _fold.Follower()

    def cached(self):
        """{(group, hash): copies}; group 0 where none is said."""
        self.follower.take(self.reader.items)
        return {(group or 0, value.hex() if isinstance(value, bytes)
                 else value): n for (*_, group, value), n in
                self.follower.visible.cached().items()}

    def state(self):
        self.follower.take(self.reader.items)
        return self.follower.state or "cold"

    def connected(self):
        """When the reader said that it is connected, or None."""
        return next((item[-1] for item in self.reader.items
                     if item[0] == "other" and
                     item[1].get("type") == "connected"), None)


class IndexReading:
    """What an index holds that follows the engine."""

    def __init__(self, live, replay):
        build = os.environ.get("KVEVENTS_BUILD_DIR") or \
            pathlib.Path(__file__).resolve().parents[2] / "build" / "release"
        self.tool = _residency.Tool(
            str(pathlib.Path(build) / "tests" / "kve_index_tool"), "follow",
            live, replay, TOPIC)
        self.odd = []
        self.state = ""
        self.placed = self.held = 0

    def cached(self):
        """{(group, hash): copies}, as Reading.cached()."""
        dumps, self.state = self.tool.dump()
        dump = dumps.get(0) or _residency.Dump([])
        self.odd += dump.odd
        self.held = len(dump.paths)
        self.placed = sum(path is not None and path[0][0] == "root"
                          for path in dump.paths.values())
        return {(group or 0, value.hex() if isinstance(value, bytes)
                 else value): n for (*_, group, value), n in
                dump.copies.items()}

    def close(self):
        return self.tool.close()


def free_port():
    """A port that is free on every interface, as the engine binds them all,
    and that the system gives to nobody else while the engine starts."""
    while True:
        port = random.randrange(2000, 10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


class Engine(_harness.Process):
    def __init__(self, folder, traffic, model, plan, rounds, seed):
        self.port, self.replay_port = free_port(), free_port()
        command = shlex.join([
            "python", str(traffic), "--model", model,
            "--port", str(self.port), "--replay-port", str(self.replay_port),
            "--topic", TOPIC, "--rounds", str(rounds), "--requests", "24",
            "--blocks", str(BLOCKS.get(model, 64)), "--seed", str(seed),
            "--buffer-steps", str(plan.buffer_steps),
            "--reset-every", str(plan.reset_every), "--start-delay", "1"])
        environment = dict(os.environ, PYTHONHASHSEED="0",
                           VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=str(
                               int(plan.as_int)))
        super().__init__(["bash", "-c", f". ./env.sh && exec {command}"],
                         cwd=folder, env=environment)

    def checkpoint(self):
        """The next checkpoint, or None at the end."""
        for line in self.child.stdout:
            if line.startswith('{"checkpoint"'):
                got = json.loads(line)
                return {(group, value): n
                        for group, value, n in got["cached"]}
        return None

    def go_on(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()


def judge(checks, name, reading, truth):
    """One checkpoint. Returns how late the last repair came."""
    idle = time.monotonic() - SETTLED
    deadline = idle + PROBE + ENGINE_POLL + SLACK
    while reading.cached() != truth and time.monotonic() < deadline:
        time.sleep(0.01)
    late = time.monotonic() - idle
    right = reading.cached() == truth
    if right:
        detail = (f"{len(truth)} hashes, {sum(truth.values())} copies, equal "
                  f"{late:.2f} s after the engine fell idle")
    else:
        detail = _fold.differences(reading.cached(), truth)
        came = reading.reader.wait(lambda r: reading.cached() == truth, 10)
        detail += f"; equal after {time.monotonic() - idle:.2f} s" if came \
            else "; not equal 10 s later either"
    checks(name, right, detail)
    # Nothing may move once it is right.
    time.sleep(max(0, deadline - time.monotonic()))
    if right:
        checks(f"{name}, still", reading.cached() == truth,
               _fold.differences(reading.cached(), truth))
    return late


def judge_honesty(checks, name, reading, truth):
    """One checkpoint of a reader that was killed meanwhile, one probe interval
    after the engine fell idle, or after the reader had connected and asked for
    a replay when that was later. Returns what it said and whether it was
    equal."""
    idle = time.monotonic() - SETTLED
    reading.reader.wait(lambda r: reading.connected())
    since = max(idle, (reading.connected() or idle) + ENGINE_POLL)
    deadline = since + PROBE + ENGINE_POLL + 2 * SLACK
    while time.monotonic() < deadline and not (
            reading.state() == "live" and reading.cached() == truth):
        time.sleep(0.01)
    state, equal = reading.state(), reading.cached() == truth
    checks(name, state == "degraded" or state == "live" and equal,
           f"{state}, " + (f"equal, {len(truth)} hashes" if equal else
                           _fold.differences(reading.cached(), truth)))
    return state, equal


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one engine goes through."""
    as_int: bool
    reset_every: int
    kills: bool = False
    index: bool = False

    @property
    def buffer_steps(self):
        return 8 if self.kills else 10_000

    def name(self, model, seed):
        return (f"{model} {'int' if self.as_int else 'bytes'} "
                f"{'resets ' if self.reset_every else ''}"
                f"{'kills ' if self.kills else ''}"
                f"{'index ' if self.index else ''}seed {seed}")


class Killer(threading.Thread):
    """A reader that is killed and started anew while there is traffic."""

    def __init__(self, make, draw):
        super().__init__(daemon=True)
        self.make, self.draw = make, draw
        self.lock = threading.Lock()    # held: no kill
        self.ended = threading.Event()
        self.kills = 0
        self.unreadable = []
        self._new()
        self.start()

    def _new(self):
        self.reading = Reading(self.make())

    def run(self):
        while not self.ended.wait(self.draw.uniform(0.1, 2.0)):
            with self.lock:
                reader = self.reading.reader
                reader.kill()
                reader.thread.join(_harness.PATIENCE)
                self.unreadable += reader.unreadable
                self.kills += 1
                self._new()

    def close(self):
        """End it; the reader's exit status."""
        self.ended.set()
        self.join()
        status = self.reading.reader.close()
        self.unreadable += self.reading.reader.unreadable
        return status


def run_killed(checks, arguments, name, engine, relay, make, draw):
    said = collections.Counter()
    killer = Killer(make, draw)
    try:
        while True:
            truth = engine.checkpoint()
            if truth is None:
                break
            with killer.lock:
                said[judge_honesty(
                    checks, f"{name} checkpoint {said.total()}",
                    killer.reading, truth)] += 1
            engine.go_on()
        checks.equal(f"{name}: checkpoints", said.total(), arguments.rounds)
        right, unsure = said["live", True], said["degraded", True]
        degraded = unsure + said["degraded", False]
        print(f"      {name}: {killer.kills} kills, {len(relay.withheld)} of "
              f"{relay.passed + len(relay.withheld)} withheld; checkpoints: "
              f"live and equal {right}, degraded {degraded} (equal {unsure}), "
              f"wrong {said.total() - right - degraded}", flush=True)
    finally:
        engine.kill()
        checks.equal(f"{name}: interrupted, the reader ends with 130",
                     killer.close(), 130)
        checks(f"{name}: every line was understood", not killer.unreadable,
               _harness.shortened(killer.unreadable))


def run_calm(checks, arguments, name, engine, relay, make):
    reading = Reading(make())
    reader = reading.reader
    late = []
    try:
        while (truth := engine.checkpoint()) is not None:
            late.append(judge(checks, f"{name} checkpoint {len(late)}",
                              reading, truth))
            engine.go_on()
        checks.equal(f"{name}: checkpoints", len(late), arguments.rounds)
        if len(late) < arguments.rounds:
            print(engine.stderr()[-2000:])
        numbers = reader.numbers()
        total = relay.passed + len(relay.withheld)
        checks.equal(f"{name}: every batch, in order, each once",
                     _harness.ranges(numbers),
                     _harness.ranges(range(len(numbers))))
        checks(f"{name}: live messages were withheld",
               len(relay.withheld) >= arguments.rounds,
               f"{len(relay.withheld)} of {total}")
        checks.equal(f"{name}: nothing was lost", reader.lost(), [])
        print(f"      {name}: {len(numbers)} batches, "
              f"{len(relay.withheld)} of {total} withheld, "
              f"{reading.follower.visible.below} removals below zero, latest "
              f"{max(late, default=0):.2f} s", flush=True)
    finally:
        engine.kill()
        checks.equal(f"{name}: interrupted, the reader ends with 130",
                     reader.close(), 130)
        bad = getattr(reader, "unreadable", [])
        checks(f"{name}: every line was understood", not bad,
               _harness.shortened(bad))


def run_index(checks, arguments, name, engine, relay, reading):
    held = []
    try:
        while (truth := engine.checkpoint()) is not None:
            place = f"{name} checkpoint {len(held)}"
            idle = time.monotonic()
            # Nothing moves until go_on(), so there is no hurry.
            right = _harness.eventually(lambda: reading.cached() == truth and
                                        reading.state == "live")
            checks(place, right, _fold.differences(reading.cached(), truth)
                   if not right else
                   f"{len(truth)} hashes, {sum(truth.values())} copies, equal "
                   f"{time.monotonic() - idle:.2f} s after the checkpoint")
            checks.equal(f"{place}: blocks in the chain of a prompt",
                         reading.placed, reading.held)
            checks.equal(f"{place}: state", reading.state, "live")
            held.append(reading.held)
            engine.go_on()
        checks.equal(f"{name}: checkpoints", len(held), arguments.rounds)
        checks(f"{name}: live messages were withheld",
               len(relay.withheld) >= arguments.rounds,
               f"{len(relay.withheld)} of "
               f"{relay.passed + len(relay.withheld)}")
        checks(f"{name}: every dump was whole", not reading.odd,
               _harness.shortened(reading.odd))
        print(f"      {name}: held {held} hashes", flush=True)
    finally:
        engine.kill()
        checks.equal(f"{name}: the tool ended well", reading.close(), 0)


def run(checks, arguments, folder, traffic, model, plan, seed):
    name = plan.name(model, seed)
    draw = random.Random(seed)
    share = 0.05 if plan.kills else 0.3
    engine = Engine(folder, traffic, model, plan, arguments.rounds, seed)
    relay = Relay(f"tcp://127.0.0.1:{engine.port}",
                  lambda number, life: draw.random() < share, LAST)

    def make():
        kind = _harness.Reference if arguments.reference else _harness.Watch
        return kind(relay.endpoint, f"tcp://127.0.0.1:{engine.replay_port}",
                    TOPIC)

    try:
        if plan.index:
            run_index(checks, arguments, name, engine, relay, IndexReading(
                relay.endpoint, f"tcp://127.0.0.1:{engine.replay_port}"))
        elif plan.kills:
            run_killed(checks, arguments, name, engine, relay, make,
                       random.Random(seed + 1))
        else:
            run_calm(checks, arguments, name, engine, relay, make)
    finally:
        relay.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--all", action="store_true",
                        help="both hash forms with and without resets")
    parser.add_argument("--reference", action="store_true",
                        help="a plain pyzmq reader instead of watch")
    parser.add_argument("--only", choices=("calm", "kills"))
    parser.add_argument("--what", choices=("watch", "index", "both"),
                        default="both")
    arguments = parser.parse_args()

    folder = os.environ.get("KVEVENTS_ENGINE_DIR")
    if not folder:
        _harness.skip("KVEVENTS_ENGINE_DIR names no folder with a vLLM engine")
    traffic = pathlib.Path(os.environ.get("KVEVENTS_ENGINE_TRAFFIC") or
                           pathlib.Path(folder) / "traffic.py").resolve()
    for needed in (pathlib.Path(folder) / "env.sh", traffic):
        if not needed.exists():
            _harness.skip(f"no {needed}")
    if not arguments.reference and arguments.what != "index":
        _harness.command()

    # Without --all: integers with resets, bytes without, and kills with
    # resets, which alone make a reader whole again.
    plans = [Plan(*form) for form in itertools.product(
        (True, False), (0, 2))] if arguments.all \
        else [Plan(True, 2), Plan(False, 0)]
    plans += [Plan(as_int, 2, kills=True)
              for as_int in ((True, False) if arguments.all else (True,))]
    if arguments.what == "index":
        plans = []
    if arguments.what != "watch" and not arguments.reference and \
            arguments.only != "kills":
        plans += [Plan(True, 2, index=True), Plan(False, 0, index=True)]
    checks = Checks()
    for seed in range(arguments.first_seed,
                      arguments.first_seed + arguments.seeds):
        for model in arguments.model or ("models/llama", "models/gemma3"):
            for plan in plans:
                if plan.kills and (arguments.reference or
                                   arguments.only == "calm") or \
                        not plan.kills and arguments.only == "kills":
                    continue
                run(checks, arguments, folder, traffic, model, plan, seed)
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
