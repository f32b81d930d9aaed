#!/usr/bin/env python3
"""What Dynamo's indexer service answered, asked again of ours: the recorded
questions in their order, beside engines that say what they said then. Each
answer is compared: status, content type, text, and JSON as a value. Where
Dynamo's answer is not right the data file says what is answered instead, and
why."""

import sys

from _command import main
from _dialect import Engine, Replay, Service, lines, play, raw

ROWS = lines("dynamo_transcript.jsonl")
# Nobody promised an order there.
TIERS = ["device", "host_pinned", "disk", "external"]


def settled(path, value):
    """A JSON answer without what nobody promised."""
    if path == "/workers":
        return sorted(value, key=lambda worker: worker["instance_id"])
    if path == "/dump":
        for index in value.values():
            index["events"].sort(key=lambda event: (
                TIERS.index(event["storage_tier"]), event["event"]["event_id"]))
    return value


def test_each_answer_is_the_recorded_one_or_better():
    with Service() as service, Engine() as w1r0, Engine() as w1r1, \
            Engine() as w2r0, Engine() as idle, Replay() as of_w1r1:
        engines = {"w1r0": w1r0, "w1r1": w1r1, "w2r0": w2r0, "idle": idle}
        names = {name: engine.endpoint for name, engine in engines.items()}
        names["w1r1_replay"] = of_w1r1.endpoint
        workers = {"w1r0": (1, 0), "w1r1": (1, 1), "w2r0": (2, 0)}
        wrong = play(service, ROWS, engines, workers, names, settled)
    assert not wrong, "\n".join(wrong)


def test_answers_that_differ_are_named():
    instead = {row["name"] for row in ROWS if "instead" in row}
    assert all(row["instead"]["why"] for row in ROWS if "instead" in row)
    assert instead == {
        "query RFC spelling model=", "query_by_hash unsigned >i64",
        "unregister rank w/o group (dp_rank ignored!)", "unregister again",
        "metrics"}, instead


def test_a_body_beyond_the_limit():
    with Service() as service:
        for path, limit in (("/query", 8 << 20), ("/query_by_hash", 8 << 20),
                            ("/register", 2 << 20)):
            got = raw(service.port,
                      f"POST {path} HTTP/1.1\r\nHost: x\r\n"
                      "Content-Type: application/json\r\nConnection: close\r\n"
                      f"Content-Length: {limit + 1}\r\n\r\n".encode())
            head, _, body = got.partition(b"\r\n\r\n")
            assert b" 413 " in head.split(b"\r\n")[0], got
            assert b"text/plain; charset=utf-8" in head, got
            assert body == (b"Failed to buffer the request body: length limit "
                            b"exceeded"), got


if __name__ == "__main__":
    main(sys.modules[__name__])
