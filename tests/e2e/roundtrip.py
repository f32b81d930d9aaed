#!/usr/bin/env python3
"""What is published is what watch prints: as it came, as JSON, as text; and
the JSON, published again, is the same bytes."""

import json
import math
import struct
import subprocess
import sys

from _command import FIXTURES, Publisher, lines_of, main, run, watch

RECORDED = sorted(p for p in FIXTURES.glob("*.jsonl")
                  if not p.name.endswith(".replay.jsonl")
                  and p.name not in ("versions.jsonl", "hash_vectors.jsonl"))


def printed(path, *args):
    """What watch prints of a file of recorded messages, as lines."""
    total = len(path.read_text().splitlines())
    with Publisher(str(path)) as publisher:
        done = watch(publisher, "--count", str(total), "--timeout", "30",
                     *args)
    assert done.returncode == 0, f"{path.name}: {done.stderr}"
    return done.stdout.splitlines()


def batches(lines):
    objects = [json.loads(line) for line in lines]
    return [o for o in objects if o["kind"] == "batch"]


def as_printed(value):
    """A value of a fixture's wire, with hashes as watch prints them."""
    if isinstance(value, dict) and "$bytes" in value:
        return value["$bytes"]
    return str(value)


def event_as_printed(event):
    event = dict(event)
    for name in event:
        if name == "block_hashes":
            event[name] = [as_printed(h) for h in event[name]]
        elif name == "parent_block_hash" and event[name] is not None:
            event[name] = as_printed(event[name])
    return event


def test_raw_is_what_was_published():
    assert len(RECORDED) >= 14, RECORDED
    for path in RECORDED:
        want = lines_of(path)
        got = [json.loads(line) for line in printed(path, "-f", "raw")]
        for number, (a, b) in enumerate(zip(want, got, strict=True)):
            assert b["payload"] == a["payload"], f"{path.name} {number}"
            assert b["seq"] == number, b
            assert b["seq_hex"] == f"{number:016x}", b
            assert b["topic"] == want[0]["topic"], b


def test_json_is_the_wire():
    for path in RECORDED:
        want = lines_of(path)
        got = batches(printed(path, "-f", "json"))
        for number, (a, b) in enumerate(zip(want, got, strict=True)):
            ts, events, *rank = a["wire"]
            place = f"{path.name} {number}"
            assert b["seq"] == number and b["ts"] == ts, place
            assert b["rank"] == (rank[0] if rank else None), place
            assert b["faults"] == [] and "error" not in b, place
            for x, y in zip(events, b["events"], strict=True):
                y.pop("notes", None)
                assert y == event_as_printed(x), f"{place}: {x} {y}"
                assert list(y) == list(x), f"{place}: order of {list(y)}"


def test_json_published_again_is_the_same_bytes():
    """vLLM 0.32 wrote the recordings: the layout map-short."""
    for path in RECORDED:
        want = [line["payload"] for line in lines_of(path)]
        lines = printed(path, "-f", "json")
        with Publisher("-", "--layout", "map-short",
                       stdin=subprocess.PIPE) as publisher:
            publisher.process.stdin.write("\n".join(lines))
            publisher.process.stdin.close()
            done = watch(publisher, "-f", "raw", "--count", str(len(want)),
                         "--timeout", "30")
        got = [json.loads(line)["payload"] for line in
               done.stdout.splitlines()]
        assert got == want, f"{path.name}: {done.stderr}"


def test_text_is_the_example():
    """The lines of the documentation's example subscriber, every field."""
    for path in RECORDED:
        lines = iter(printed(path, "--topic", lines_of(path)[0]["topic"]))
        topic = lines_of(path)[0]["topic"]
        first = next(lines)
        assert first == ("Listening for KV cache events on topic: "
                         + (topic or "(all)")), first
        for message in lines_of(path):
            ts, events = message["wire"][:2]
            line = next(lines)
            assert line.split("  #")[0] == \
                f"Received event batch at {ts!r}:", line
            for event in events:
                line = next(lines)
                while line.startswith("    ! "):
                    line = next(lines)
                assert line.startswith(f"  - {event['type']}("), line
                for name, value in event.items():
                    if name in ("block_size", "lora_id", "medium",
                                "token_ids", "group_idx", "session_id"):
                        assert f"{name}={value!r}" in line, (name, line)
                    assert name == "type" or f"{name}=" in line, (name, line)
        rest = [line for line in lines if not line.startswith("    ! ")]
        assert rest == [], rest


def test_every_release_of_vllm():
    """versions.jsonl has samples of 17 releases, arrays and maps."""
    path = FIXTURES / "versions.jsonl"
    want = lines_of(path)
    got = batches(printed(path, "-f", "json"))
    for a, b in zip(want, got, strict=True):
        place = f"{a['vllm']} {a['case']}"
        assert "error" not in b and b["faults"] == [], f"{place}: {b}"
        for x, y in zip(a["wire"][1], b["events"], strict=True):
            tag = x["type"] if isinstance(x, dict) else x[0]
            assert y["type"] == tag, place
            if isinstance(x, dict):
                y.pop("notes", None)
                assert y == event_as_printed(x), f"{place}: {x} {y}"
    printed(path)


# Just enough msgpack to write what no engine writes.
def array(*items):
    return bytes([0x90 + len(items)]) + b"".join(items)


def mapping(*pairs):
    return bytes([0x80 + len(pairs)]) + b"".join(k + v for k, v in pairs)


def text(raw):
    raw = raw if isinstance(raw, bytes) else raw.encode()
    return bytes([0xd9, len(raw)]) + raw


def real(number):
    return b"\xcb" + struct.pack(">d", number)


def deep(levels):
    return b"\x91" * levels + b"\xc0"


STRANGE = array(real(math.nan), array(
    mapping((text("type"), text("BlockRemoved")),
            (text("block_hashes"), array(b"\x05", b"\xff",
                                         b"\xc4\x02\x12\x34",
                                         b"\xc4\x20" + bytes(range(32)))),
            (text("medium"), text(b"\xff\xfe\x1b[2Jx\"\\\n'")),
            (text("x-deep"), deep(200)),
            (text("x-ext"), b"\xd6\x05abcd"),
            (text("x-float"), array(real(math.inf), real(1.0), real(1e300),
                                    b"\xca\x3f\x00\x00\x00")),
            (text("x-map"), mapping((b"\x01", b"\xc3"), (b"\xc0", b"\xc2"),
                                    (array(b"\x01"), b"\xa0"))),
            (text("x-\x1b"), b"\xcf" + b"\xff" * 8),
            (text("x-bytes"), b"\xc4\x01\x00")),
    mapping((text("type"), text("AllBlocksCleared")))),
    b"\xd3" + b"\xff" * 8)


def test_strange_values_are_valid_json():
    line = json.dumps({"payload": STRANGE.hex()})
    with Publisher("-", stdin=subprocess.PIPE) as publisher:
        publisher.process.stdin.write(line)
        publisher.process.stdin.close()
        asjson = watch(publisher, "-f", "json", "-n", "1", "--timeout", "30")
        astext = watch(publisher, "-n", "1", "--timeout", "30")
    batch = batches(asjson.stdout.splitlines())[0]
    event = batch["events"][0]
    assert batch["ts"] == {"$float": "nan"} and batch["rank"] == -1, batch
    assert event["block_hashes"] == [
        "5", "18446744073709551615", "hex:1234",
        bytes(range(32)).hex()], event
    assert event["medium"] == "\ufffd\ufffd\x1b[2Jx\"\\\n'", event
    unknown = event["unknown"]
    inner = unknown["x-deep"]
    for _ in range(32):
        assert isinstance(inner, list) and len(inner) == 1, inner
        inner = inner[0]
    assert inner == {"$msgpack": deep(168).hex()}, inner
    assert unknown["x-ext"] == {"$ext": [5, b"abcd".hex()]}
    assert unknown["x-float"] == [{"$float": "inf"}, 1.0, 1e300, 0.5]
    assert unknown["x-map"] == {"1": True, "null": False,
                                "$msgpack:9101": ""}
    assert unknown["x-\x1b"] == 2**64 - 1
    assert unknown["x-bytes"] == {"$bytes": "00"}

    assert "\x1b" not in astext.stdout + astext.stderr, astext
    assert "medium='\\xff\\xfe\\x1b[2Jx\"\\\\\\n\\''" in astext.stdout, \
        astext.stdout
    assert "h'1234'" in astext.stdout and "'x-ext'=ext(5, h'61626364')" in \
        astext.stdout, astext.stdout
    assert "    ! unknown_medium, unknown_field" in astext.stdout


def test_tokens_can_be_hidden():
    path = FIXTURES / "sha256-int-defaults.jsonl"
    text_lines = "\n".join(printed(path, "--no-tokens"))
    assert "token_ids=[96 tokens]" in text_lines and "100, 101" not in \
        text_lines
    short = "\n".join(printed(path, "--short"))
    assert "token_ids=[100, 101, 102, 103, ... 96 tokens]" in short
    event = batches(printed(path, "-f", "json", "--show-tokens", "2"))[0][
        "events"][0]
    assert event["token_ids"] == [100, 101] and event["n_token_ids"] == 96
    line = json.dumps(event)
    done = run("publish", "-", "-x", "-e", "tcp://127.0.0.1:0", "-r", "none",
               stdin=line)
    assert done.returncode == 1 and "left out" in done.stderr, done


def test_statistics():
    path = FIXTURES / "hybrid-gemma3-sha256_cbor-bytes-seed0.jsonl"
    counts = {}
    for message in lines_of(path):
        for event in message["wire"][1]:
            counts[event["type"]] = counts.get(event["type"], 0) + 1
    lines = printed(path, "-f", "json", "--stats")
    stats = json.loads(lines[-1])
    assert stats["kind"] == "stats"
    assert {k: v["events"] for k, v in stats["types"].items()} == counts
    counts.pop("AllBlocksCleared", 0)
    assert sum(v["events"] for v in stats["media"].values()) == \
        sum(counts.values()), stats
    assert sorted(stats["groups"]) == ["0", "1", "2", "3"], stats
    assert stats["counters"]["batches_delivered"] == len(lines_of(path))
    table = "\n".join(printed(path, "--stats"))
    for name in "BlockStored", "GPU", "batches handed over, in order":
        assert name in table, table


def test_topics():
    path = FIXTURES / "sha256-int-defaults.jsonl"
    with Publisher(str(path), "--topic", "other") as publisher:
        publisher.wait_for("recorded with topic 'kv-events', published with "
                           "'other'")
        done = watch(publisher, "-f", "json", "-t", "oth", "-n", "1")
        assert batches(done.stdout.splitlines())[0]["topic"] == "other", done
    with Publisher(str(path), "--delay", "0.5") as publisher:
        done = watch(publisher, "-t", "else", "--timeout", "1.5",
                     "--from", "live")
        assert "Received" not in done.stdout, done


if __name__ == "__main__":
    main(sys.modules[__name__])
