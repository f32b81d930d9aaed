#!/usr/bin/env python3
"""kvevents publish, received by plain pyzmq and decoded by msgspec with the
types of vLLM's documentation: recorded messages byte for byte, and events
given as JSON lines field by field."""

import json
import pathlib
import signal
import subprocess
import sys
import time
import traceback

import zmq

import _batches
import _doc_types
import _harness
from _harness import Checks, ranges
from _pyzmq import (TOPIC, answer, context, dealer, decode, free_ports,
                    number, receive, start)

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "wire" / "fixtures"
check = Checks()


class Command(_harness.Process):
    """kvevents publish with live and replay on two free ports."""

    def __init__(self, file, *options):
        port = free_ports(2)
        self.live = f"tcp://127.0.0.1:{port}"
        self.replay = f"tcp://127.0.0.1:{port + 1}"
        super().__init__([_harness.command(), "publish", file,
                          "--endpoint", self.live, "--replay-endpoint",
                          self.replay, *options])

    def check_end(self, what):
        """An interrupt ends the serving; all was published, so with 0."""
        self.child.send_signal(signal.SIGINT)
        try:
            status = self.child.wait(_harness.PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            status = "killed"
        check(f"{what}: an interrupt ends it with 0", status == 0,
              status and f"{status}: {self.stderr()[-500:]}")


def whole_replay(endpoint, count):
    """The data messages of a replay once there are count of them."""
    until = time.monotonic() + _harness.PATIENCE
    while True:
        with dealer(endpoint) as reader:
            got = answer(reader, b"", start(0))[:-1]
        if len(got) >= count or time.monotonic() > until:
            return got
        time.sleep(0.1)


def recorded_messages():
    """Recorded frames are published as they were; withheld ones come by
    replay only."""
    file = FIXTURES / "sha256-int-defaults.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    topic = lines[0]["topic"].encode()
    wanted = [bytes.fromhex(line["payload"]) for line in lines]
    with context.socket(zmq.SUB) as live:
        live.linger = 0
        live.subscribe(b"")
        command = Command(file, "--rate", "50", "--drop", "3,7", "--delay",
                          "1")
        live.connect(command.live)
        replay = whole_replay(command.replay, len(wanted))
        check.equal("publish a recording: the replay has every byte",
                    [frames[-1] for frames in replay], wanted)
        check.equal("publish a recording: numbers", ranges(
            map(number, replay)), f"0..{len(wanted) - 1}")
        seen = {number(frames): frames for frames in
                receive(live, len(wanted), 0.3)}
        check.equal("publish a recording: those dropped are not live, all "
                    "others are", sorted(seen),
                    [n for n in range(len(wanted)) if n not in (3, 7)])
        check("publish a recording: live as recorded",
              all(frames[0] == topic and frames[2] == wanted[n]
                  for n, frames in seen.items()))
        command.check_end("publish a recording")


def json_lines():
    """Events as JSON lines on standard input, in each layout."""
    wanted = [_batches.batch(1, i) for i in range(40)]

    def as_json(value):
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, list):
            return [as_json(item) for item in value]
        if isinstance(value, dict):
            return {name: as_json(item) for name, item in value.items()}
        return value

    for layout, module in (("map", _doc_types.MAP),
                           ("array", _doc_types.ARRAY)):
        command = Command("-", "--layout", layout, "--topic", TOPIC,
                          "--rank", "0")
        for i, events in enumerate(wanted):
            command.child.stdin.write(json.dumps(
                {"ts": 1.5 + i, "events": as_json(events)}) + "\n")
        command.child.stdin.close()
        got = whole_replay(command.replay, len(wanted))
        decoded = [decode(frames[-1], module) for frames in got]
        check.equal(f"publish JSON lines, {layout}: field by field",
                    [events for events, _ in decoded], wanted)
        check.equal(f"publish JSON lines, {layout}: time and rank",
                    [(batch.ts, batch.data_parallel_rank)
                     for _, batch in decoded],
                    [(1.5 + i, 0) for i in range(len(wanted))])
        command.check_end(f"publish JSON lines, {layout}")


def main():
    for one in (recorded_messages, json_lines):
        try:
            one()
        except Exception:
            check(one.__name__, False, traceback.format_exc())
    check.finish()


if __name__ == "__main__":
    sys.exit(main())
