#!/usr/bin/env python3
"""The programs of examples/ do what their first lines say."""

import json
import re
import signal
import subprocess
import sys
import time

from _command import (BUILD, FIXTURES, LIMIT, Publisher, Running, main,
                      ports_to_keep, watch)

PROGRAMS = BUILD / "examples"


def test_publisher():
    with Running("tcp://127.0.0.1:0", "tcp://127.0.0.1:0",
                 program=PROGRAMS / "publisher") as program:
        program.live, program.replay = program.wait_for(
            r"^Publishing on (\S+), replay on (\S+)$", program.out).groups()
        done = watch(program, "-n", "3", "--timeout", "30")
        assert program.end() == 0, program.err
    assert done.returncode == 0, done
    for text in ("BlockStored(block_hashes=[11, 12], parent_block_hash=None,",
                 "BlockRemoved(block_hashes=[12], ", "AllBlocksCleared()"):
        assert text in done.stdout, done.stdout
    assert program.out[1:] == ["0: BlockStored", "1: BlockRemoved",
                               "2: AllBlocksCleared"], program.out


def test_subscriber():
    path = FIXTURES / "sha256-int-defaults.jsonl"
    with Publisher(str(path), "--drop", "3,4", "--delay", "1", "--rate",
                   "20") as publisher:
        with Running(publisher.live, publisher.replay,
                     program=PROGRAMS / "subscriber") as program:
            program.wait_for("at 1795963992.056147:", program.out)
            program.signal(signal.SIGINT)
            assert program.end() == 0, program.err
    out = program.out
    assert out[0] == "Listening for KV cache events on topic: kv-events"
    assert "Missed 2 messages (last: 2, current: 5)" in out, out
    assert len([x for x in out if x.startswith("Received")]) == 10, out
    assert out[-1] == "Interrupted", out


def test_event_loop():
    path = FIXTURES / "sha256-int-defaults.jsonl"
    with Publisher(str(path)) as publisher:
        publisher.wait_for("serving replay")
        with Running(publisher.live, publisher.replay, "2",
                     program=PROGRAMS / "event_loop") as program:
            assert program.end() == 0, program.err
    assert program.out == ["28 events", "28 events"], program.out


def test_follow():
    """Many engines, with and without threads of the library."""
    path = FIXTURES / "sha256-int-defaults.jsonl"
    for threads in "0", "2":
        with Publisher(str(path)) as one, \
                Publisher(str(path), "--snapshots") as two:
            with Running(threads, f"{one.live},{one.replay}",
                         f"{two.live},{two.replay},{two.replay}",
                         program=PROGRAMS / "follow") as program:
                blocks = [program.wait_for(
                    rf"^{p.live} \w+ -> live: \w+, (\d+) blocks$",
                    program.out).group(1) for p in (one, two)]
                program.signal(signal.SIGINT)
                assert program.end() == 0, program.err
        assert blocks[0] == blocks[1] != "0", program.out


def ask(program, prompt):
    """What route answers: engine -> (tokens, of them on the GPU)."""
    before = len(program.out)
    program.process.stdin.write(prompt + "\n")
    program.process.stdin.flush()
    n = int(program.wait_for(r"tokens; engines that hold some: (\d+)$",
                             Lines(program.out, before)).group(1))
    if n > 0:
        program.wait_for("^  ", Lines(program.out, before + n))
    return {engine: (int(total), int(gpu)) for engine, total, gpu in (
        re.fullmatch(r"  (\S+) rank 0: (\d+) tokens, (\d+) of them on the GPU",
                     line).groups()
        for line in program.out[before + 1:before + 1 + n])}


class Lines:
    """Lines of output from one on, also those that are still to come."""

    def __init__(self, lines, start):
        self.lines, self.start = lines, start

    def __iter__(self):
        return iter(self.lines[self.start:])


def answers(program, prompt, wanted):
    """Ask until the answer is the wanted one."""
    end = time.monotonic() + LIMIT
    while (got := ask(program, prompt)) != wanted:
        assert time.monotonic() < end, (got, wanted, program.err)
        time.sleep(0.02)


def test_route():
    """One engine is known by a snapshot, one by its stream; then the first one
    starts anew, empty."""
    store = {"type": "BlockStored", "block_hashes": [11, 12, 13],
             "token_ids": list(range(12)), "block_size": 4}
    other = {**store, "block_hashes": [901, 902], "token_ids": list(range(8))}
    to_cpu = {**store, "token_ids": [], "block_size": 0, "medium": "CPU"}
    remove = {"type": "BlockRemoved", "block_hashes": [12, 13]}
    prompt = ",".join(str(i) for i in range(13))
    port = ports_to_keep(2)
    place = {"endpoint": f"tcp://127.0.0.1:{port}",
             "replay": f"tcp://127.0.0.1:{port + 1}"}

    def engine(*args, **kwargs):
        return Publisher("-", *args, stdin=subprocess.PIPE, **kwargs)

    with engine("--snapshots", "--buffer-steps", "1", **place) as one, \
            engine() as two:
        one.say(*map(json.dumps, (store, to_cpu, remove)))
        two.say(json.dumps(other))
        with Running(f"{one.live},{one.replay},{one.replay}",
                     f"{two.live},{two.replay}", stdin=subprocess.PIPE,
                     program=PROGRAMS / "route") as program:
            answers(program, prompt, {one.live: (12, 4), two.live: (8, 8)})
            # The last token is computed anyway.
            assert ask(program, "0 1 2 3 4 5 6 7") == {
                one.live: (4, 4), two.live: (4, 4)}
            program.wait_for(f"^{one.live} recovering -> live", program.err)

            one.say(json.dumps({**remove, "block_hashes": [11]}))
            answers(program, prompt, {one.live: (12, 0), two.live: (8, 8)})
            one.process.kill()
            one.process.wait()
            with engine("--snapshots", **place) as again:
                answers(program, prompt, {two.live: (8, 8)})
                again.say(json.dumps(store))
                answers(program, prompt, {again.live: (12, 12),
                                          two.live: (8, 8)})

            program.process.stdin.write("1 2 three\n")
            program.process.stdin.close()
            assert program.end() == 0, program.err
            assert "route: a line is not a list of token ids" in program.err


def test_route_streams():
    """Publishers that connect to one socket are an instance each."""
    store = {"type": "BlockStored", "block_hashes": [11, 12],
             "token_ids": list(range(8)), "block_size": 4}
    port = ports_to_keep(1)
    with Running(f"@tcp://127.0.0.1:{port}", stdin=subprocess.PIPE,
                 program=PROGRAMS / "route") as program:
        with Publisher("-", "--bind", "no", "--topic", "one", "--rank", "0",
                       endpoint=f"tcp://127.0.0.1:{port}", replay=False,
                       stdin=subprocess.PIPE) as one, \
                Publisher("-", "--bind", "no", "--topic", "two",
                          endpoint=f"tcp://127.0.0.1:{port}", replay=False,
                          stdin=subprocess.PIPE) as two:
            # What is said before the connection stands reaches nobody.
            for publisher, n in (one, 2), (two, 1):
                end = time.monotonic() + LIMIT
                while f"{publisher.topic} cold -> live" not in "".join(
                        program.err):
                    assert time.monotonic() < end, program.err
                    publisher.say(json.dumps({
                        **store, "block_hashes": store["block_hashes"][:n],
                        "token_ids": store["token_ids"][:4 * n]}))
                    time.sleep(0.05)
            program.process.stdin.write("0 1 2 3 4 5 6 7 8\n")
            program.process.stdin.close()
            assert program.end() == 0, program.err
    where = f"tcp://127.0.0.1:{port}"
    assert program.out == [
        "9 tokens; engines that hold some: 2",
        f"  {where} one rank 0: 8 tokens, 8 of them on the GPU",
        f"  {where} two rank 0: 4 tokens, 4 of them on the GPU"], program.out


if __name__ == "__main__":
    main(sys.modules[__name__])
