#!/usr/bin/env python3
"""Wrong options: exit status 2 and one line that names the option, what was
given and what is accepted."""

import sys

from _command import ROOT, run, main

FILE = str(ROOT / "tests/wire/fixtures/sha256-int-defaults.jsonl")

A, B = "tcp://127.0.0.1:6001", "tcp://127.0.0.1:6002"

# Arguments, and texts that the line has.
ROWS = [
    ([], ["no command", "kvevents help"]),
    (["wach"], ["'wach'", "did you mean 'watch'"]),
    (["pubish"], ["'pubish'", "did you mean 'publish'"]),
    (["frobnicate"], ["'frobnicate'", "kvevents help"]),
    (["--format", "json"], ["'--format'", "a command comes first"]),
    (["watch", "--fromat", "json"], ["'--fromat'", "'--format'"]),
    (["watch", "--form", "json"], ["'--form'", "'--format'"]),
    (["watch", "--zzz"], ["'--zzz'", "kvevents watch --help"]),
    (["watch", "-z"], ["'-z'", "kvevents watch --help"]),
    (["watch", "--format"], ["--format", "no value", "text, json or raw"]),
    (["watch", "--format=yaml"], ["--format", "'yaml'",
                                  "text, json or raw"]),
    (["watch", "-fyaml"], ["--format", "'yaml'", "text, json or raw"]),
    (["watch", "--count", "0"], ["--count", "'0'", "from 1 to"]),
    (["watch", "--count", "-1"], ["--count", "'-1'", "from 1 to"]),
    (["watch", "--count", "1x"], ["--count", "'1x'", "whole number"]),
    (["watch", "--count", "18446744073709551616"],
     ["--count", "18446744073709551615"]),
    (["watch", "--count", ""], ["--count", "''", "whole number"]),
    (["watch", "--from", "end"], ["--from", "'end'", "start, live"]),
    (["watch", "--from", "5"], ["--from", "--replay"]),
    (["watch", "--stats=0"], ["--stats", "'0'", "from 1 to 86400"]),
    (["watch", "--timeout", "1e5"], ["--timeout", "'1e5'", "seconds"]),
    (["watch", "--quiet=yes"], ["--quiet", "'yes'", "no value"]),
    (["watch", "--rank", "65536"], ["--rank", "'65536'", "0 to 65535"]),
    (["watch", "--bind", "maybe"], ["--bind", "'maybe'",
                                    "no, yes or guess"]),
    (["watch", "--color", "blue"], ["--color", "auto, always or never"]),
    (["watch", "tcp://a:1", "b:2"], ["'b:2'", "tcp://b:2"]),
    (["watch", A, A], ["'tcp://127.0.0.1:6001' is given twice"]),
    (["watch", A, B, "-r", "tcp://127.0.0.1:6003"],
     ["--replay", "given 1 time for 2 endpoints", "once for each", ":PORT"]),
    (["watch", A, B, "-r", "none", "-r", "none", "-r", "none"],
     ["--replay", "given 3 times for 2 endpoints"]),
    (["watch", A, "-r", "tcp://127.0.0.1:6003", "-r", "tcp://127.0.0.1:6004"],
     ["--replay", "given 2 times for 1 endpoint;"]),
    (["watch", A, "-r", ":0"], ["--replay", "':0'", ":PORT", "+N"]),
    (["watch", A, "-r", "+x"], ["--replay", "'+x'", ":PORT", "+N"]),
    (["watch", "tcp://a:65535", "-r", "+1"], ["--replay", "65536", "65535"]),
    (["watch", "ipc:///tmp/kv", "-r", ":6003"],
     ["--replay", "':6003'", "'ipc:///tmp/kv' has none", "once for each"]),
    (["watch", A, "-r", "replay"], ["--replay", "'replay'",
                                    "tcp://HOST:PORT"]),
    (["watch", A, "--snapshot", "replay"], ["--snapshot", "--replay"]),
    (["watch", A, "--snapshot", "6005"], ["--snapshot", "'6005'",
                                          "tcp://HOST:PORT"]),
    (["watch", A, "--snapshot", "tcp://*:6005"],
     ["--snapshot", "tcp://127.0.0.1:6005"]),
    (["watch", A, "--snapshot", A], ["--snapshot", "is the live stream"]),
    (["watch", A, B, "--snapshot", "tcp://127.0.0.1:6005"],
     ["--snapshot", "given 1 time for 2 endpoints"]),
    (["watch", "--ranks", "0"], ["--ranks", "'0'", "from 1 to 65536"]),
    (["watch", "--ranks", "4", "--rank", "1"], ["--rank", "--ranks",
                                                "one of them"]),
    (["watch", "--ranks", "2", "-r", "+1"],
     ["--ranks", "5557..5558", "5558..5559", "2 or more apart"]),
    (["watch", "--ranks", "8", "-r", ":6000", "--snapshot", ":6004"],
     ["--ranks", "6000..6007", "6004..6011"]),
    (["watch", "tcp://a:65535", "--ranks", "2"], ["--ranks", "65535"]),
    (["watch", "--streams", "many"], ["--streams", "auto, one or split"]),
    (["watch", "--max-streams", "0"], ["--max-streams", "'0'", "from 1"]),
    (["watch", "--heartbeat-timeout", "-1"], ["--heartbeat-timeout", "'-1'",
                                              "seconds"]),
    (["watch", A, B, "--curve-keys", FILE, "--curve-server-key", "k",
      "--curve-server-key", "k", "--curve-server-key", "k"],
     ["--curve-server-key", "given 3 times for 2 endpoints",
      "once for all"]),
    (["watch", "localhost:5557"], ["'localhost:5557'",
                                   "tcp://localhost:5557"]),
    (["watch", "http://x:1"], ["'http://x:1'", "tcp://HOST:PORT"]),
    (["watch", "tcp://*:5557"], ["'tcp://*:5557'", "tcp://127.0.0.1:5557",
                                 "--bind yes"]),
    (["watch", "tcp://127.0.0.1:99999"], ["99999"]),
    (["watch", "inproc://kv"], ["'inproc://kv'", "inside one process",
                                "tcp://HOST:PORT"]),
    (["watch", "tcp://127.0.0.1:5557", "-r", "tcp://127.0.0.1:5557"],
     ["--replay", "'tcp://127.0.0.1:5557'", "serves replay"]),
    (["watch", "tcp://127.0.0.1:5557", "--replay", "tcp://*:5558"],
     ["--replay", "tcp://127.0.0.1:5558"]),
    (["watch", "--curve-keys", FILE], ["--curve-server-key", "both"]),
    (["watch", "--curve-server-key", "x", "--curve-keys", FILE],
     ["--curve-keys", FILE, "two lines"]),
    (["watch", "\x1b[2J"], ["?[2J", "tcp://HOST:PORT"]),
    (["publish"], ["0 files", "one FILE"]),
    (["publish", "a", "b"], ["2 files", "one FILE"]),
    (["publish", "/nonexistent.jsonl"], ["cannot open",
                                         "No such file or directory"]),
    (["publish", "/"], ["cannot open '/'", "Is a directory"]),
    (["publish", FILE, "--drop", "3-1"], ["--drop", "'3-1'", "3,7-9"]),
    (["publish", FILE, "--drop", "3,,4"], ["--drop", "'3,,4'", "3,7-9"]),
    (["publish", FILE, "--rate", "fast"], ["--rate", "'fast'",
                                           "batches a second"]),
    (["publish", FILE, "--rate", "."], ["--rate", "'.'"]),
    (["publish", FILE, "--layout", "xml"],
     ["--layout", "map, map-short, array or first"]),
    (["publish", FILE, "--endpoint", "tcp://*:0"],
     ["--endpoint", "'tcp://*:0'", "--public", "tcp://127.0.0.1:0"]),
    (["publish", FILE, "-e", "tcp://0.0.0.0:0"], ["--endpoint", "--public"]),
    (["publish", FILE, "-e", "tcp://[::]:0"], ["--endpoint", "--public"]),
    (["publish", FILE, "-e", "tcp://127.0.0.1:0", "-r", "tcp://*:0"],
     ["--replay-endpoint", "--public"]),
    (["publish", FILE, "--bind", "guess", "-e", "tcp://*:0"],
     ["--endpoint", "--public"]),
    (["publish", FILE, "-e", "tcp://10.1.2.3:0"], ["--endpoint", "--public"]),
    (["publish", FILE, "--rank", "1"], ["5557..5558", "5558..5559"]),
    (["publish", "-", "--loop"], ["--loop", "standard input"]),
    (["publish", FILE, "--snapshot-endpoint", "tcp://*:0"],
     ["--snapshot-endpoint", "--public", "tcp://127.0.0.1:0"]),
    (["publish", FILE, "--snapshot-endpoint", "127.0.0.1:0"],
     ["--snapshot-endpoint", "tcp://127.0.0.1:0"]),
    (["publish", FILE, "-r", "none", "--snapshots"],
     ["--snapshots", "--replay-endpoint", "--snapshot-endpoint"]),
    (["publish", FILE, "--publisher-id", "00"],
     ["--publisher-id", "'00'", "32 hex digits"]),
    (["publish", FILE, "--publisher-id", "g" * 32],
     ["--publisher-id", "32 hex digits"]),
    (["publish", FILE, "--heartbeat", "1"],
     ["--heartbeat", "--publisher-id", "--snapshots"]),
    (["publish", FILE, "--heartbeat", "0.0001"],
     ["--heartbeat", "'0.0001'", "0 for none"]),
    (["publish", FILE, "--clear-scope", "cpu"],
     ["--clear-scope", "default, gpu or all"]),
    (["publish", FILE, "--snapshot-max-blocks", "0"],
     ["--snapshot-max-blocks", "'0'", "from 1"]),
    (["publish", FILE, "--curve-allow", FILE], ["--curve-allow",
                                                "--curve-keys"]),
    (["help", "wach"], ["'wach'", "'watch'"]),
    (["help", "a", "b"], ["'b'", "one COMMAND"]),
    (["completion"], ["bash, zsh or fish"]),
    (["completion", "tcsh"], ["'tcsh'", "bash, zsh or fish"]),
]


def test_wrong_options():
    for args, texts in ROWS:
        done = run(*args)
        lines = done.stderr.splitlines()
        assert done.returncode == 2, f"{args}: exit {done.returncode}"
        assert len(lines) == 1, f"{args}: {done.stderr!r}"
        assert done.stdout == "", f"{args}: {done.stdout!r}"
        assert lines[0].startswith("kvevents"), lines[0]
        for text in texts:
            assert text in lines[0], f"{args}: no {text!r} in {lines[0]!r}"


# The same option in all its forms; an endpoint where nobody listens.
FORMS = [
    ["--count=3", "--timeout=0.2"],
    ["--count", "3", "--timeout", "0.2"],
    ["-n3", "--timeout", "0.2"],
    ["-n", "3", "--timeout", "0.2"],
    ["-vn", "3", "--timeout", "0.2"],
]


def test_forms():
    for form in FORMS:
        done = run("watch", *form, "--", "ipc:///tmp/kvevents-nobody.sock")
        assert done.returncode == 1, f"{form}: {done}"
        assert "0 batches" in done.stderr, f"{form}: {done.stderr}"


def test_a_port_in_use():
    done = run("publish", "-", "-e", "tcp://127.0.0.1:0", "-r", "none",
               "--exit")
    assert done.returncode == 0, done.stderr
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = run("publish", "-", "-e", endpoint, "-r", "none")
    assert done.returncode == 1, done
    assert endpoint in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


if __name__ == "__main__":
    main(sys.modules[__name__])
