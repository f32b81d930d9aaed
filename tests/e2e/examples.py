#!/usr/bin/env python3
"""The programs of examples/ do what their first lines say."""

import signal
import sys

from _command import BUILD, FIXTURES, Publisher, Running, main, watch

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


if __name__ == "__main__":
    main(sys.modules[__name__])
