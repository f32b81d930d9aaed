#!/usr/bin/env python3
# ctest-timeout: 900
# ctest-label: long
# ctest-serial: yes
"""A real vLLM engine, followed through losses, compared with its own truth.

The engine runs real requests on tiny models; a relay withholds three tenths
of its live messages and the last one of every burst, so that the repairs and
the tail probe of kvevents watch have work. The blocks each KV-cache group
holds, with the number of copies, are computed from what watch --format json
printed, and compared with the engine's block pool at each checkpoint, one
probe interval after the engine fell idle.

    KVEVENTS_ENGINE_DIR      a folder with env.sh (the environment of Python
                             with vLLM) and models/; without it: skipped
    KVEVENTS_ENGINE_TRAFFIC  the program that runs the engine, default
                             traffic.py in that folder. It prints a line
                             {"checkpoint": k, "cached": [[group, hash,
                             copies]...]} after each round and waits for a
                             line on its standard input.

    run_engine.py [--model M]... [--rounds N] [--seeds N] [--first-seed S]
                  [--all] [--reference]
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import shlex
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] /
                       "interop"))

import _harness
from _harness import Checks, Relay

PROBE = 0.5         # seconds; watch's default
ENGINE_POLL = 0.1   # how often an idle engine looks at replay requests
SETTLED = 0.3       # the engine has been idle so long at a checkpoint
SLACK = 0.5         # two loaded cores, pipes, Python
LAST = 0.25         # nothing after a message for so long: it was the last
TOPIC = "kv-events"
BLOCKS = {"models/gemma3": 200}


class Fold:
    """What the engine holds, by the events a reader printed."""

    def __init__(self):
        self.copies = collections.Counter()
        self.taken = 0
        self.below_zero = 0

    @staticmethod
    def name(value):
        return value.hex() if isinstance(value, bytes) else value

    def take(self, items):
        """Take what was printed since the last call."""
        for item in items[self.taken:]:
            if item[0] == "clear":
                self.copies.clear()
            elif item[0] == "batch":
                for event in item[2]:
                    self._event(event)
        self.taken = len(items)

    def _event(self, event):
        if event["type"] == "AllBlocksCleared":
            self.copies.clear()
            return
        step = 1 if event["type"] == "BlockStored" else -1
        for value in event["block_hashes"]:
            key = event.get("group_idx", 0), self.name(value)
            if step < 0 and not self.copies[key]:
                self.below_zero += 1
                continue
            self.copies[key] += step

    def cached(self):
        return {key: n for key, n in self.copies.items() if n}


def free_port():
    """A port that is free on every interface: the engine binds them all."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Engine(_harness.Process):
    def __init__(self, folder, traffic, model, as_int, reset_every, rounds,
                 seed):
        self.port, self.replay_port = free_port(), free_port()
        command = shlex.join([
            "python", str(traffic), "--model", model,
            "--port", str(self.port), "--replay-port", str(self.replay_port),
            "--topic", TOPIC, "--rounds", str(rounds), "--requests", "24",
            "--blocks", str(BLOCKS.get(model, 64)), "--seed", str(seed),
            "--reset-every", str(reset_every), "--start-delay", "1"])
        environment = dict(os.environ, PYTHONHASHSEED="0",
                           VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=str(
                               int(as_int)))
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


def differences(ours, truth):
    """A few of them, for people."""
    wrong = [f"{key}: {ours.get(key, 0)} for {truth.get(key, 0)}"
             for key in sorted({*ours, *truth}, key=str)
             if ours.get(key, 0) != truth.get(key, 0)]
    return f"{len(wrong)} differ: " + ", ".join(wrong[:5])


def judge(checks, name, reader, fold, truth):
    """One checkpoint. Returns how late the last repair came."""
    idle = time.monotonic() - SETTLED
    deadline = idle + PROBE + ENGINE_POLL + SLACK
    while True:
        fold.take(reader.items)
        if fold.cached() == truth or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    late = time.monotonic() - idle
    right = fold.cached() == truth
    copies = sum(truth.values())
    if right:
        detail = (f"{len(truth)} hashes, {copies} copies, equal {late:.2f} s "
                  "after the engine fell idle")
    else:
        detail = differences(fold.cached(), truth)
        came = reader.wait(lambda r: fold.take(r.items) or
                           fold.cached() == truth, 10)
        detail += f"; equal after {time.monotonic() - idle:.2f} s" if came \
            else "; not equal 10 s later either"
    checks(name, right, detail)
    # Nothing may move once it is right.
    time.sleep(max(0, deadline - time.monotonic()))
    fold.take(reader.items)
    if right:
        checks(f"{name}, still", fold.cached() == truth,
               differences(fold.cached(), truth)
               if fold.cached() != truth else "")
    return late


def run(checks, arguments, folder, traffic, model, as_int, reset_every, seed):
    name = (f"{model} {'int' if as_int else 'bytes'} "
            f"{'resets ' if reset_every else ''}seed {seed}")
    draw = random.Random(seed)
    engine = Engine(folder, traffic, model, as_int, reset_every,
                    arguments.rounds, seed)
    relay = Relay(f"tcp://127.0.0.1:{engine.port}",
                  lambda number, life: draw.random() < 0.3, LAST)
    reader_class = _harness.Reference if arguments.reference \
        else _harness.Watch
    reader = reader_class(relay.endpoint,
                          f"tcp://127.0.0.1:{engine.replay_port}", TOPIC)
    fold = Fold()
    late, judged = [], 0
    try:
        while (truth := engine.checkpoint()) is not None:
            late.append(judge(checks, f"{name} checkpoint {judged}", reader,
                              fold, truth))
            judged += 1
            engine.go_on()
        checks.equal(f"{name}: checkpoints", judged, arguments.rounds)
        if judged < arguments.rounds:
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
              f"{len(relay.withheld)} of {total} withheld, {fold.below_zero} "
              f"removals below zero, latest {max(late, default=0):.2f} s",
              flush=True)
    finally:
        engine.kill()
        checks.equal(f"{name}: interrupted, the reader ends with 130",
                     reader.close(), 130)
        bad = getattr(reader, "unreadable", [])
        checks(f"{name}: every line was understood", not bad,
               _harness.shortened(bad))
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
    arguments = parser.parse_args()

    folder = os.environ.get("KVEVENTS_ENGINE_DIR")
    if not folder:
        _harness.skip("KVEVENTS_ENGINE_DIR names no folder with a vLLM engine")
    traffic = pathlib.Path(os.environ.get("KVEVENTS_ENGINE_TRAFFIC") or
                           pathlib.Path(folder) / "traffic.py").resolve()
    for needed in (pathlib.Path(folder) / "env.sh", traffic):
        if not needed.exists():
            _harness.skip(f"no {needed}")
    if not arguments.reference:
        _harness.command()

    # Without --all: integers with resets, bytes without.
    forms = list(itertools.product((True, False), (0, 2))) if arguments.all \
        else [(True, 2), (False, 0)]
    checks = Checks()
    for seed in range(arguments.first_seed,
                      arguments.first_seed + arguments.seeds):
        for model in arguments.model or ("models/llama", "models/gemma3"):
            for as_int, reset_every in forms:
                run(checks, arguments, folder, traffic, model, as_int,
                    reset_every, seed)
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
