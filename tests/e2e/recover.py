#!/usr/bin/env python3
"""Batches withheld from the live stream: recovered in order with replay, said
to be missing without."""

import json
import sys

from _command import FIXTURES, Publisher, main, watch

FILE = str(FIXTURES / "mp-chunked-sha256_cbor-bytes-seed0.jsonl")
TOTAL = 27


def parts(stdout):
    objects = [json.loads(line) for line in stdout.splitlines()]
    return ([o for o in objects if o["kind"] == "batch"],
            [o for o in objects if o["kind"] == "notice"])


def numbers(ranges):
    """{3, 4, 5} for [(3, 5)]."""
    return {n for first, last in ranges for n in range(first, last + 1)}


def test_gaps_are_repaired_in_order():
    with Publisher(FILE, "--drop", "3,7-9,20", "--rate", "25", "--delay",
                   "2") as publisher:
        done = watch(publisher, "-f", "json", "-n", str(TOTAL), "--timeout",
                     "30")
    assert done.returncode == 0, done
    batches, notices = parts(done.stdout)
    assert [b["seq"] for b in batches] == list(range(TOTAL))
    replayed = {b["seq"] for b in batches if b["replayed"]}
    assert replayed >= {3, 7, 8, 9, 20}, replayed
    kinds = [n["type"] for n in notices]
    assert "gap" in kinds and "repaired" in kinds, kinds
    assert "lost" not in kinds, kinds
    repaired = numbers((n["first"], n["last"]) for n in notices
                       if n["type"] == "repaired")
    assert repaired >= {3, 7, 8, 9, 20}, notices


def test_the_last_batch_is_missed_too():
    """No live message follows it: only a probe can tell."""
    with Publisher(FILE, "--drop", "26", "--rate", "50", "--delay",
                   "2") as publisher:
        done = watch(publisher, "-f", "json", "-n", str(TOTAL), "--probe-ms",
                     "200", "--timeout", "30")
    batches, _ = parts(done.stdout)
    assert done.returncode == 0, done
    assert batches[-1]["seq"] == 26 and batches[-1]["replayed"], batches[-1]


def test_what_the_terminal_says():
    with Publisher(FILE, "--drop", "10-12", "--rate", "20", "--delay",
                   "2") as publisher:
        done = watch(publisher, "-n", str(TOTAL), "--no-tokens",
                     "--probe-ms", "2000", "--timeout", "30")
    assert done.returncode == 0, done
    out, err = done.stdout, done.stderr
    assert "Missed 3 messages (last: 9, current: 13)\n" in out, out
    assert ":  # replayed, number 11\n" in out, out
    assert f"source {publisher.live} live -> recovering: gap 10..12\n" in \
        err, err
    assert f"source {publisher.live}: recovered 10..12\n" in err, err
    assert f"source {publisher.live} recovering -> live: caught up\n" in \
        err, err
    assert err.splitlines()[-1].startswith(f"{TOTAL} batches, "), err
    assert "gaps: 1, batches missed: 3, recovered: 3, lost: 0; bad: 0" in \
        err, err


def test_without_replay_the_gap_stays():
    with Publisher(FILE, "--drop", "10-12", "--rate", "20", "--delay", "2",
                   replay=False) as publisher:
        done = watch(publisher, "-n", str(TOTAL - 3), "--no-tokens",
                     "--timeout", "30")
    assert done.returncode == 0, done
    assert "Missed 3 messages (last: 9, current: 13)\n" in done.stdout
    assert "lost for good 10..12\n" in done.stderr, done.stderr
    assert "recovered: 0, lost: 3" in done.stderr, done.stderr


def test_a_late_reader_gets_everything():
    with Publisher(FILE) as publisher:
        publisher.wait_for("serving replay until interrupted")
        done = watch(publisher, "-f", "json", "-n", str(TOTAL), "--timeout",
                     "30")
        batches, _ = parts(done.stdout)
        assert [b["seq"] for b in batches] == list(range(TOTAL)), done
        done = watch(publisher, "-f", "json", "--from", "20", "-n", "7",
                     "--timeout", "30")
        batches, _ = parts(done.stdout)
        assert [b["seq"] for b in batches] == list(range(20, 27)), done
        done = watch(publisher, "-f", "json", "--from", "live", "--timeout",
                     "1")
        assert parts(done.stdout)[0] == [], done


def test_old_replay_answers():
    with Publisher(FILE, "--old-replay") as publisher:
        publisher.wait_for("serving replay until interrupted")
        done = watch(publisher, "-f", "json", "-n", str(TOTAL), "--timeout",
                     "30")
    batches, _ = parts(done.stdout)
    assert [b["seq"] for b in batches] == list(range(TOTAL)), done


def test_a_buffer_shorter_than_the_gap():
    with Publisher(FILE, "--buffer-steps", "8") as publisher:
        publisher.wait_for("serving replay until interrupted")
        done = watch(publisher, "-f", "json", "-n", "8", "--timeout", "30")
    batches, notices = parts(done.stdout)
    assert [b["seq"] for b in batches] == list(range(19, 27)), done
    assert any(n["reason"] == "late_start" for n in notices
               if n["type"] == "state") or \
        any(n["type"] == "lost" for n in notices), notices


if __name__ == "__main__":
    main(sys.modules[__name__])
