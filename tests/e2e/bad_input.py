#!/usr/bin/env python3
"""Bad lines to publish, bad payloads and bad frames to watch: each is said in
one line, counted, and passed over."""

import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from _command import FIXTURES, Publisher, Running, main, run, watch

GOOD = '{"type":"AllBlocksCleared"}'

# A line, and what is said about it behind its file and number.
BAD_LINES = [
    ("{", ":1: not JSON"),
    ('{"type":"AllBlocksCleared",}', ":28: not JSON"),
    ('{"a": 12727516518541667169, "b": x}', ": not JSON"),
    ("[]", "the line is a list; give an object"),
    ("3", "not JSON"),
    ("{}", "neither payload nor events nor type"),
    ('{"payload": 5}', "payload: is an integer; give a text of hex"),
    ('{"payload": "abc"}', "payload: hex of an odd length, 3 digits"),
    ('{"payload": "xx"}', "payload: digit 1 is not hex"),
    ('{"payload": ""}', "payload: is empty"),
    ('{"type": "BlockStroed"}', "type: 'BlockStroed' is not known"),
    ('{"type": 1}', "type: is missing or no text"),
    ('{"type": "BlockRemoved"}', "block_hashes: is missing"),
    ('{"type": "BlockRemoved", "block_hashes": 7}',
     "block_hashes: is an integer; give a list of hashes"),
    ('{"type": "BlockRemoved", "block_hashes": [null]}',
     "a hash is null; give an integer or a text"),
    ('{"type": "BlockRemoved", "block_hashes": ["xyz"]}',
     "give a decimal number of 64 bits"),
    ('{"type": "BlockRemoved", "block_hashes": [18446744073709551616]}',
     "a hash is above 18446744073709551615"),
    ('{"type": "BlockRemoved", "block_hashes": [1], "medum": "GPU"}',
     "medum: no field of that name"),
    ('{"type": "BlockRemoved", "block_hashes": [1], "medium": 1}',
     "medium: is an integer; give a text or null"),
    ('{"type": "BlockStored", "block_hashes": [1], "token_ids": [1, -1]}',
     "token_ids: item 1 is no integer from 0 to 4294967295"),
    ('{"events": [{"type": "AllBlocksCleared"}, {"type": "BlockStored"}]}',
     "events[1].block_hashes: is missing"),
    ('{"events": {}}', "events: is an object; give a list of events"),
    ('{"events": [], "ts": "now"}', "ts: is a text; give Unix seconds"),
    ('{"events": [], "publisher_id": "00"}',
     "publisher_id: is not 32 hex digits"),
    ('{"type": "BlockStored", "block_hashes": [1], "extra_keys": '
     + "[" * 40 + "]" * 40 + "}", "nested deeper than 32 levels"),
    ("[" * 100000, "not JSON"),
    ("\x00", "not JSON"),
]


def test_bad_lines():
    lines = [GOOD]
    for line, _ in BAD_LINES:
        lines += [line, "", GOOD]
    done = run("publish", "-", "-x", "-e", "tcp://127.0.0.1:0", "-r", "none",
               stdin="\n".join(lines))
    assert done.returncode == 1, done
    said = [line for line in done.stderr.splitlines()
            if line.startswith("standard input:")]
    for i, (line, want) in enumerate(BAD_LINES):
        place = f"standard input:{2 + 3 * i}:"
        assert said[i].startswith(place) and want in said[i], \
            f"{line[:60]!r}: {said[i]!r}"
    assert len(said) == len(BAD_LINES)
    assert (f"Published {len(BAD_LINES) + 1} batches; {len(BAD_LINES)} bad "
            "lines\n") in done.stderr, done.stderr


def test_strict_stops():
    done = run("publish", "-", "-x", "--strict", "-e", "tcp://127.0.0.1:0",
               "-r", "none", stdin=f"{GOOD}\n?\n{GOOD}\n")
    assert done.returncode == 1, done
    assert "Published 1 batches; 1 bad lines" in done.stderr, done.stderr


def test_a_line_without_end():
    line = '{"payload": "' + "00" * (33 << 20)
    done = run("publish", "-", "-x", "-e", "tcp://127.0.0.1:0", "-r", "none",
               stdin=f"{GOOD}\n{line}\n{GOOD}")
    assert done.returncode == 1, done
    assert "standard input:2: longer than 64 MiB, " in done.stderr
    assert "Published 2 batches; 1 bad lines" in done.stderr, done.stderr


def test_the_longest_payload_can_be_recorded():
    """What watch writes as raw publish reads, up to the limit of a frame."""
    ids = ",".join(["70000"] * 2_000_000)
    event = ('{"type":"BlockStored","block_hashes":[1],"block_size":2000000,'
             f'"token_ids":[{ids}]}}')
    raw = event
    for _ in range(2):
        with Publisher("-", stdin=subprocess.PIPE) as publisher:
            publisher.process.stdin.write(raw)
            publisher.process.stdin.close()
            done = watch(publisher, "-f", "raw", "-n", "1", "--timeout", "30")
        assert done.returncode == 0, done.stderr
        assert len(done.stdout) > 16 << 20, len(done.stdout)
        assert raw in (event, done.stdout)
        raw = done.stdout


def test_a_topic_moves_no_cursor():
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        json.dump({"payload": CLEARED.hex(), "topic": "a\x1b[2Jb"}, file)
        file.flush()
        for topic, said in ([], "topic 'a?[2Jb'"), (["-t", "c"], "topic 'c'"):
            done = run("publish", file.name, *topic, "-x", "-e",
                       "tcp://127.0.0.1:0", "-r", "none")
            assert done.returncode == 0, done
            assert "\x1b" not in done.stderr, done.stderr
            assert said in done.stderr, done.stderr
    assert "recorded with topic 'a?[2Jb', published with 'c'" in done.stderr


HASHES = [
    (5, "5"),
    (-1, "18446744073709551615"),
    ("-1", "18446744073709551615"),
    ("12727516518541667169", "12727516518541667169"),
    (12727516518541667169, "12727516518541667169"),
    ("0xff", "255"),
    ("hex:1234", "hex:1234"),
    ("ab" * 16, "ab" * 16),
    ("12" * 16, "12" * 16),
    ("AB" * 32, "ab" * 32),
    ("0xffffffffffffffff", "18446744073709551615"),
]


def test_hashes_in_all_forms():
    event = {"type": "BlockRemoved", "block_hashes": [h for h, _ in HASHES]}
    with Publisher("-", stdin=subprocess.PIPE) as publisher:
        publisher.process.stdin.write(json.dumps(event) + "\n")
        publisher.process.stdin.close()
        done = watch(publisher, "-f", "json", "-n", "1", "--timeout", "30")
    batch = [json.loads(line) for line in done.stdout.splitlines()][-1]
    assert batch["events"][0]["block_hashes"] == [h for _, h in HASHES], done


def broken_payloads():
    """Recorded payloads, each cut in half."""
    path = FIXTURES / "mp-chunked-sha256_cbor-bytes-seed0.jsonl"
    for line in path.read_text().splitlines():
        payload = json.loads(line)["payload"]
        yield json.dumps({"payload": payload[:len(payload) // 4 * 2]})


def test_broken_payloads_are_limited():
    """10 in a row are said, the last with a warning; then silence."""
    lines = list(broken_payloads())
    assert len(lines) == 27
    good = json.dumps({"type": "AllBlocksCleared"})
    feed = "\n".join([*lines, good, *lines[:3], good])
    total = 27 + 1 + 3 + 1
    with Publisher("-", stdin=subprocess.PIPE) as publisher:
        publisher.process.stdin.write(feed)
        publisher.process.stdin.close()
        publisher.wait_for("serving replay")
        done = watch(publisher, "-n", str(total), "--timeout", "30")
    err = done.stderr.splitlines()
    assert done.returncode == 0, done
    said = [line for line in err if " is broken at byte " in line]
    warnings = [line for line in err if line.startswith("warning: ")]
    assert len(said) == 9 + 3, done.stderr
    assert len(warnings) == 1, warnings
    assert "10 bad batches in a row" in warnings[0]
    assert "seen: " in warnings[0] and "expected: a msgpack batch" in \
        warnings[0], warnings
    assert done.stdout.count("Received event batch") == total
    assert "bad: 30" in err[-1], err[-1]


def test_faulty_events_cost_themselves_only():
    event = '{"type":"AllBlocksCleared"}'
    # [0.0, [["BlockStored"], ["AllBlocksCleared"], ["Nonsense"]]]
    payload = ("92" "cb0000000000000000" "93"
               "91" "ab" + b"BlockStored".hex() +
               "91" "b0" + b"AllBlocksCleared".hex() +
               "91" "a8" + b"Nonsense".hex())
    with Publisher("-", stdin=subprocess.PIPE) as publisher:
        publisher.process.stdin.write(f'{{"payload":"{payload}"}}\n{event}')
        publisher.process.stdin.close()
        text = watch(publisher, "-n", "2", "--timeout", "30", "--stats")
        lines = watch(publisher, "-n", "2", "--timeout", "30", "-f", "json")
    assert text.stdout.count("  - AllBlocksCleared()") == 2, text
    assert "batch 0, event 0 'BlockStored' is not delivered: " in text.stderr
    assert "(missing_hashes, block_hashes, byte " in text.stderr, text.stderr
    assert "batch 0, event 2 'Nonsense' is not delivered: " in text.stderr
    assert "Nonsense" in text.stdout, text.stdout
    objects = [json.loads(line) for line in lines.stdout.splitlines()]
    faults = [o for o in objects if o["kind"] == "batch"][0]["faults"]
    assert [(f["reason"], f["index"], f["tag"]) for f in faults] == [
        ("missing_hashes", 0, "BlockStored"),
        ("unknown_tag", 2, "Nonsense")], faults


class BadPublisher:
    """A PUB socket by hand (ZMTP 3.0, no security) that sends any frames."""

    def __init__(self, messages, kind=b"PUB"):
        self.messages = messages
        self.kind = kind
        self.server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.server.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    @staticmethod
    def frame(body, more=False, command=False):
        flags = (1 if more else 0) | (4 if command else 0)
        return struct.pack(">BQ", flags | 2, len(body)) + body

    def serve(self):
        while True:
            peer, _ = self.server.accept()
            try:
                self.serve_one(peer)
            except OSError:
                pass
            self.peer = peer

    def serve_one(self, peer):
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" +
                     b"NULL".ljust(20, b"\0") + b"\0" + bytes(31))
        ready = b"\x05READY\x0bSocket-Type" + \
            struct.pack(">I", len(self.kind)) + self.kind
        peer.sendall(self.frame(ready, command=True))
        # The greeting, READY and the subscription; what comes is not judged.
        peer.settimeout(0.5)
        try:
            while peer.recv(4096):
                pass
        except TimeoutError:
            pass
        for frames in self.messages:
            for i, body in enumerate(frames):
                peer.sendall(self.frame(body, more=i + 1 < len(frames)))


def number(n):
    return struct.pack(">Q", n)


CLEARED = bytes.fromhex("92cb0000000000000000" "91" "91b0" +
                        b"AllBlocksCleared".hex())
REMOVED = bytes.fromhex("92cb0000000000000000" "91" "92ac" +
                        b"BlockRemoved".hex() + "9101")


def test_bad_frames():
    """Each shape is dropped and counted; after 10 in a row one warning."""
    shapes = [[CLEARED], [b"t", CLEARED], [b"t", number(0), CLEARED, b"x"],
              [b"t", number(0)[:4], CLEARED], [b"t", number(0), b""]]
    messages = shapes * 5 + [[b"t", number(0), CLEARED]] + shapes[:2]
    messages += [[b"t", number(1), CLEARED]]
    bad = BadPublisher(messages)
    with Running("watch", bad.endpoint, "-n", "2", "--timeout", "30",
                 "--stats") as watcher:
        assert watcher.end() == 0, watcher.err
    assert watcher.out.count("  - AllBlocksCleared()") == 2, watcher.out
    said = [line for line in watcher.err if ": bad message: " in line]
    warnings = [line for line in watcher.err if line.startswith("warning: ")]
    assert len(said) == 9 + 2, watcher.err
    assert len(warnings) == 1, watcher.err
    assert f"10 bad messages in a row from {bad.endpoint}; seen: " in \
        warnings[0], warnings
    assert "expected: 3 frames: topic, number of 8 bytes, msgpack batch" in \
        warnings[0], warnings
    stats = "\n".join(watcher.out)
    for name, count in [("bad_one_frame", 6), ("bad_two_frames", 6),
                        ("bad_many_frames", 5), ("bad_number", 5),
                        ("bad_empty", 5)]:
        line = [x.split() for x in stats.splitlines()
                if x.startswith(f"  {name} ")]
        assert line and line[0][1] == str(count), (name, line, stats)


def test_broken_batches_are_not_good_ones():
    """They end no row of bad messages, and have no time to print."""
    messages = [[b"t", CLEARED]] * 6 + [[b"t", number(0), b"\xc1"]]
    messages += [[b"t", CLEARED]] * 6 + [[b"t", number(1), CLEARED]]
    bad = BadPublisher(messages)
    with Running("watch", bad.endpoint, "-n", "2", "--timeout",
                 "30") as watcher:
        assert watcher.end() == 0, watcher.err
    heads = [line for line in watcher.out if line.startswith("Received")]
    assert len(heads) == 1, watcher.out
    assert sum(": bad message: " in line for line in watcher.err) == 9
    assert sum("10 bad messages in a row" in line
               for line in watcher.err) == 1, watcher.err
    assert any("batch 0 is broken at byte 0" in line for line in watcher.err)


def test_states_follow_each_other():
    """A late start, and a clear that makes up for it: two changes."""
    bad = BadPublisher([[b"t", number(5), REMOVED], [b"t", number(6), CLEARED],
                        [b"t", number(7), CLEARED]])
    with Running("watch", bad.endpoint, "-n", "3", "--timeout", "30", "-f",
                 "json") as watcher:
        assert watcher.end() == 0, watcher.err
    lines = [json.loads(line) for line in watcher.out]
    states = [(o["old_state"], o["state"]) for o in lines
              if o.get("type") == "state"]
    assert states == [("cold", "degraded"), ("degraded", "live")], states


def hang_up(server):
    """No ZeroMQ at all: answer as a web server does, and close."""
    while True:
        peer, _ = server.accept()
        try:
            peer.recv(64)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        except OSError:
            pass
        peer.close()


def test_endpoints_of_another_kind():
    """A line or two that say why there is no connection; not one a try."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=hang_up, args=(server,), daemon=True).start()
    other = BadPublisher([], kind=b"REP")
    for endpoint in (f"tcp://127.0.0.1:{server.getsockname()[1]}",
                     other.endpoint):
        done = run("watch", endpoint, "--timeout", "2.5")
        said = [line for line in done.stderr.splitlines()
                if line.startswith(f"source {endpoint}: ")]
        assert 1 <= len(said) <= 3, done.stderr
        for line in said:
            assert "not connected, trying again: the " in line, line
            assert "handshake" in line and "no ZeroMQ at all" in line, line


def test_names_that_do_not_resolve():
    endpoint = "tcp://kvevents-test.invalid:5557"
    done = run("watch", endpoint, "--timeout", "1.5")
    said = [line for line in done.stderr.splitlines()
            if "'kvevents-test.invalid' is not resolved" in line]
    assert len(said) == 1, done.stderr
    done = run("publish", "-", "-x", "-e", endpoint, "--bind", "no", "-r",
               "none", stdin=GOOD)
    assert "'kvevents-test.invalid' is not resolved" in done.stderr, done
    assert f"Publishing on {endpoint} (connecting), " in done.stderr, done


if __name__ == "__main__":
    main(sys.modules[__name__])
