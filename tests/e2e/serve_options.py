#!/usr/bin/env python3
"""kvevents serve: options from the command line, the environment and a file.

What is wrong is one line that says where, what, and what is accepted. Which of
several values counts is seen in /v1/settings.
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from _command import BIN, LIMIT, main, run
from _serve import Service

A = "tcp://127.0.0.1:6001"


@contextlib.contextmanager
def config(text):
    """A config file; its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kvevents.conf"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        yield path


def wrong(args, texts, environment=None):
    done = subprocess.run(
        [BIN, "serve", *args], capture_output=True, text=True, timeout=LIMIT,
        env=dict(os.environ, **(environment or {})))
    # The library may have said something in the log before.
    lines = [line for line in done.stderr.splitlines()
             if not line.startswith("ts=")]
    assert done.returncode == 2, f"{args}: exit {done.returncode} {lines}"
    assert len(lines) == 1 and done.stdout == "", f"{args}: {done}"
    assert lines[0].startswith("kvevents serve: "), lines[0]
    for text in texts:
        assert text in lines[0], f"{args}: no {text!r} in {lines[0]!r}"


# Arguments, and texts that the line has.
ROWS = [
    (["operand"], ["'operand'", "there are none"]),
    (["--thread", "2"], ["'--thread'", "'--threads'"]),
    (["--threads", "257"], ["--threads", "'257'", "0 to 256"]),
    (["--listen", ""], ["--listen", "''", "HOST:PORT"]),
    (["--listen", "::1"], ["--listen", "'::1'", "[::1]:8090"]),
    (["--listen", "[::1"], ["--listen", "'[::1'"]),
    (["--listen", "127.0.0.1:65536"], ["--listen", "65536"]),
    (["--listen", "127.0.0.1:http"], ["--listen", "HOST:PORT"]),
    (["--listen", "[::1]x:1"], ["--listen", "HOST:PORT"]),
    (["--listen", "engines.example:0"], ["engines.example"]),
    (["--port", "70000"], ["--port", "'70000'", "0 to 65535"]),
    (["--max-sources", "65537"], ["--max-sources", "'65537'", "1 to 65536"]),
    (["--max-body", "1"], ["--max-body", "'1'", "from 1024"]),
    (["--max-bytes", "4095"], ["--max-bytes", "'4095'", "4194304"]),
    (["--request-time", "soon"], ["--request-time", "'soon'", "seconds"]),
    (["--counting", "two"], ["--counting", "'two'", "copies or set"]),
    (["--clearing", "cpu"], ["--clearing", "default, gpu or all"]),
    (["--on-loss", "weep"], ["--on-loss", "default, keep or rebuild"]),
    (["--log-format", "xml"], ["--log-format", "logfmt or json"]),
    (["--log-level", "all"], ["--log-level",
                              "error, warning, info or debug"]),
    (["--test-endpoints=maybe"], ["--test-endpoints", "no value"]),
    (["--tls-cert", "x"], ["--tls-cert and --tls-key", "give both"]),
    (["--curve-server-key", "x"], ["--curve-server-key", "--curve-keys"]),
    (["--curve-keys", "/nonexistent"], ["--curve-keys", "/nonexistent"]),
    (["--source", "w0"], ["--source", "'w0'", "WORKER=ENDPOINT"]),
    (["--source", f"={A}"], ["--source", "WORKER=ENDPOINT"]),
    (["--source", f"w0:x={A}"], ["--source", "'x' is no rank", "w0:x:0="]),
    (["--source", f"w0:x:65536={A}"], ["'65536' is no rank"]),
    (["--source", "w0=127.0.0.1:6001"], ["endpoint", "tcp://127.0.0.1:6001"]),
    (["--source", "w0=http://x"], ["endpoint", "'http://x'", "ipc://PATH"]),
    (["--source", "w0=tcp://*:6001"],
     ["'tcp://*:6001'", "tcp://127.0.0.1:6001", "bind=yes"]),
    (["--source", "w0=tcp://0.0.0.0:6001"], ["tcp://127.0.0.1:6001"]),
    (["--source", f"w0={A},replay=:1"], ["unknown key 'replay'",
                                         "replay_endpoint"]),
    (["--source", f"w0={A},nothing=1"], ["unknown key 'nothing'"]),
    (["--source", f"w0={A},topic"], ["'topic'", "KEY=VALUE"]),
    (["--source", f"w0={A},rank=x"], ["rank", "'x'", "0 to 65535"]),
    (["--source", f"w0={A},block_size=0"], ["block_size", "'0'", "from 1"]),
    (["--source", f"w0={A},bind=maybe"], ["bind", "yes, no or guess"]),
    (["--source", f"w0={A},replay_endpoint=:x"],
     ["replay_endpoint", "':x'", "+N"]),
    (["--source", "w0=tcp://a:65535,replay_endpoint=+1"],
     ["replay_endpoint", "'+1'", "65535"]),
    (["--source", "w0=ipc:///tmp/kv,replay_endpoint=:6001"],
     ["replay_endpoint", "ipc:///tmp/kv", "whole one"]),
    (["--source", f"w0={A},replay_endpoint=tcp://*:1"],
     ["replay_endpoint", "tcp://127.0.0.1:1"]),
    (["--source", f"w0={A},snapshot_endpoint=replay"],
     ["snapshot_endpoint", "replay_endpoint as well"]),
    (["--source", f"w0:1={A},ranks=2"], ["rank and ranks", "one of them"]),
    (["--source", f"w0={A},curve_server_key=k"], ["curve_server_key",
                                                  "--curve-keys"]),
    (["--source", f"w0={A}", "--source", f"w0={A}"],
     ["--source", "'w0' has a source for rank 0 already"]),
    (["--source", f"w0={A},ranks=3", "--source", f"w0:2={A}"],
     ["for rank 2 already"]),
    (["--source", "w0=tcp://127.0.0.1:99999"], ["99999"]),
    (["--source", "w0=tcp://127.0.0.1:65535,ranks=2"], ["--source", "65535"]),
    (["--workers", "1"], ["--workers", "'1'", "WORKER=ENDPOINT"]),
    (["--workers", f"1={A},2"], ["--workers", "'2'"]),
    (["--workers", f"1={A},1:0={A}"], ["--workers", "rank 0 already"]),
    (["--targets", ""], ["--targets"]),
    (["--targets", "x.json,ranks=0"], ["--targets", "ranks", "from 1"]),
    (["--resolve", "name"], ["--resolve", "name"]),
    (["--resolve", "name:0"], ["--resolve", "name:0"]),
    (["--resolve", "name:5557,rangs=2"], ["--resolve", "'rangs'", "'ranks'"]),
    (["--config", "/nonexistent"], ["--config", "/nonexistent",
                                    "No such file"]),
    (["--config", "/"], ["directory"]),
]


def test_wrong_options():
    for args, texts in ROWS:
        wrong(args, texts)


# Text of a file, line of the error, and texts that the error has.
FILES = [
    ("threads = 2\n", 1, ["'threads'", "[serve]"]),
    ("[serve]\nthread = 2\n", 2, ["unknown key 'thread'", "'threads'"]),
    ("[serve]\nfrobnicate = 2\n", 2, ["'frobnicate'", "--print-config"]),
    ("[serve]\n\nthreads = x\n", 3, ["threads", "'x'", "0 to 256"]),
    ("[serve]\nthreads = 1\n# c\nthreads = 2\n", 4, ["'threads'", "twice"]),
    ("[serve]\nthreads = 1\n 2\n", 3, ["'threads'", "twice"]),
    ("[serve]\ntest-endpoints = maybe\n", 2, ["test-endpoints", "yes or no"]),
    ("[serve]\nconfig = x\n", 2, ["unknown key 'config'"]),
    ("[serve]\nendpoint = x\n", 2, ["'endpoint'", "[source NAME]"]),
    ("[serve]\nlog-level\n", 2, ["KEY = VALUE"]),
    ("[serve\nthreads = 2\n", 1, ["serve"]),
    ("[server]\n", 1, ["unknown section 'server'", "[source NAME]"]),
    ("[serve]\n[sources w0]\n", 2, ["unknown section 'sources w0'"]),
    ("[source w0]\n", 1, ["no endpoint", "tcp://HOST:PORT"]),
    ("[source w0]\nrank = 1\n\n[source w1]\n", 1, ["no endpoint"]),
    (f"[source]\nendpoint = {A}\n", 1, ["no name"]),
    (f"[source w0]\nendpoint = {A}\nrank = x\n", 3, ["rank", "'x'"]),
    (f"[source w0]\nendpoint = {A}\nthreads = 1\n", 3,
     ["'threads'", "[serve]"]),
    (f"[source w0]\nendpiont = {A}\n", 2, ["'endpiont'", "'endpoint'"]),
    (f"[source w0]\nendpoint = {A}\nendpoint = {A}\n", 3, ["twice"]),
    ("[source w0]\nendpoint = tcp://*:1\n", 1, ["tcp://127.0.0.1:1"]),
    (f"[source w0]\nendpoint = {A}\n[source w0]\nendpoint = {A}\n", 3,
     ["rank 0 already"]),
    ("[serve]\nlisten = " + "x" * 200 + "\n", 2, ["longer than 196 bytes"]),
    (b"[serve]\nlisten = \0\n", 2, ["zero byte"]),
]


def test_wrong_files():
    for text, line, texts in FILES:
        with config(text) as path:
            wrong(["--config", str(path)], [f"{path}:{line}: ", *texts])
            wrong([], [f"{path}:{line}: ", *texts],
                  {"KVEVENTS_SERVE_CONFIG": str(path)})


def test_wrong_variables():
    wrong([], ["KVEVENTS_SERVE_THREADS", "'x'", "0 to 256"],
          {"KVEVENTS_SERVE_THREADS": "x"})
    wrong([], ["--source", "'w0'"], {"KVEVENTS_SERVE_SOURCE": " w0 "})
    wrong([], ["KVEVENTS_SERVE_TEST_ENDPOINTS", "yes or no"],
          {"KVEVENTS_SERVE_TEST_ENDPOINTS": "2"})


def test_what_counts():
    text = ("\ufeff# a comment\n[serve]\nmax-tokens = 1000\n"
            "max-prompts = 11 ; of a question\nmax-body : 2048\nstate =\n"
            "test-endpoints = yes\n"
            "peers = http://127.0.0.1:1\n"
            "source = a=tcp://127.0.0.1:1\nsource = b=tcp://127.0.0.1:2\n"
            "[source c]\nendpoint = tcp://127.0.0.1:3\nmodel = file\n"
            "[source d]\nworker = e\nendpoint = tcp://127.0.0.1:4\nranks=2\n")
    environment = {"KVEVENTS_SERVE_MAX_PROMPTS": "22",
                   "KVEVENTS_SERVE_MAX_BODY": "4096",
                   "KVEVENTS_SERVE_MAX_TOKENS": "",
                   "KVEVENTS_SERVE_TEST_ENDPOINTS": "off",
                   "KVEVENTS_SERVE_TREADS": "1"}
    with config(text) as path, Service(
            "--config", path, "--max-body", "8192", "--peer-timeout", "1",
            environment=environment) as service:
        settings = service.get("/v1/settings")
        assert settings["max-tokens"] == 1000, settings
        assert settings["max-prompts"] == 22, settings
        assert settings["max-body"] == 8192, settings
        assert settings["max-connections"] == 4096, settings
        assert settings["state"] is None, settings
        assert settings["test-endpoints"] is False, settings
        assert settings["config"] == str(path), settings
        assert set(service.sources()) == {
            ("a", 0), ("b", 0), ("c", 0), ("e", 0), ("e", 1)}
        c = service.sources()["c", 0]
        assert (c["model"], c["origin"], c["found_in"]) == (
            "file", "option", str(path)), c
        assert service.sources()["e", 1]["endpoint"] == "tcp://127.0.0.1:5"
        service.wait_for(r"KVEVENTS_SERVE_TREADS means nothing here; did you "
                         r"mean KVEVENTS_SERVE_THREADS")
        service.wait_for(r"event=peer_failed .*127.0.0.1:1")
    with Service(environment={"KVEVENTS_SERVE_PORT": "tcp://10.0.0.1:80"},
                 listen="127.0.0.1:0") as service:
        service.wait_for("KVEVENTS_SERVE_PORT=.*is of Kubernetes")
    # A list that is given anew takes the place of the other one.
    environment = {"KVEVENTS_SERVE_SOURCE":
                   "f=tcp://127.0.0.1:1  g=tcp://127.0.0.1:2,model=m"}
    with config(text) as path, Service(
            "--config", path, "--peers", "", environment=environment) as s:
        assert set(s.sources()) == {("f", 0), ("g", 0), ("c", 0), ("e", 0),
                                    ("e", 1)}
        assert s.sources()["g", 0]["model"] == "m"
    with config(text) as path, Service(
            "--config", path, "--source", "h=tcp://127.0.0.1:1", "--peers",
            "", environment=environment) as s:
        assert set(s.sources()) == {("h", 0), ("c", 0), ("e", 0), ("e", 1)}


def test_dynamos_options():
    with Service("--workers", "1=tcp://127.0.0.1:1,2:1=tcp://127.0.0.1:2",
                 "--model-name", "m", "--routing-group", "g", "--block-size",
                 "16", "--port", "0", "--threads", "2",
                 listen="127.0.0.1") as service:
        sources = service.sources()
        assert set(sources) == {("1", 0), ("2", 1)}, sources
        for s in sources.values():
            assert (s["model"], s["tenant"], s["block_size"]) == (
                "m", "g", 16), s
        assert sources["2", 1]["endpoint"] == "tcp://127.0.0.1:2"


def test_endpoints_of_sources():
    with Service("--source", "a=tcp://h.invalid:10,replay_endpoint=:20,"
                 "snapshot_endpoint=replay,ranks=2,topic=kv",
                 "--source", "b:3=tcp://127.0.0.1:10,replay_endpoint=+1,"
                 "snapshot_port=7",
                 "--source", "10.0.0.7:8000:0=ipc:///tmp/kvevents-nobody"
                 ) as service:
        sources = service.sources()
        assert set(sources) == {("a", 0), ("a", 1), ("b", 3),
                                ("10.0.0.7:8000", 0)}, sources
        a = sources["a", 1]
        assert (a["endpoint"], a["replay_endpoint"], a["snapshot_endpoint"],
                a["topic"]) == ("tcp://h.invalid:11", "tcp://h.invalid:21",
                                "tcp://h.invalid:21", "kv"), a
        b = sources["b", 3]
        assert (b["endpoint"], b["replay_endpoint"],
                b["snapshot_endpoint"]) == (
                    "tcp://127.0.0.1:10", "tcp://127.0.0.1:11",
                    "tcp://127.0.0.1:7"), b


def test_print_config():
    """What is printed is read again, and says what counts without it."""
    text = run("serve", "--print-config").stdout
    wide = [line for line in text.splitlines() if len(line) > 79]
    assert not wide, wide
    serve, sources = text.split("# One section a source:")
    keys = re.findall(r"^#([a-z-]+) = ?(.*)$", serve, re.M)
    helped = set(re.findall(r"^  (?:-\w,|   ) --([a-z-]+)",
                            run("serve", "--help").stdout, re.M))
    assert {k for k, _ in keys} == helped - {"help", "config",
                                             "print-config"}
    assert "#replay_endpoint =" in sources, sources
    plain = re.sub(r"^#([a-z-]+ =)", r"\1", serve, flags=re.M)
    plain = plain.replace("\nport = 8090\n", "\nport = 0\n")
    with config(plain) as path, Service("--config", path, listen=None) as a, \
            Service("--port", "0", listen=None) as b:
        first, second = a.get("/v1/settings"), b.get("/v1/settings")
        assert first.pop("config") == str(path)
        assert second.pop("config") is None
        assert first == second, (first, second)


def test_public_addresses_are_warned_of():
    """D8, D11: who listens for all without a token hears of it, and a loopback
    endpoint is doubted there."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder) / "tokens"
        tokens.write_text("a-secret\n")
        for host in "0.0.0.0:0", "*:0", "[::]:0":
            with Service("--source", "w=tcp://127.0.0.1:1",
                         listen=host) as service:
                service.wait_for(r"level=warning event=http .*other machines "
                                 r"reach.*without a token")
                m = service.wait_for(r"event=loopback .*tcp://127.0.0.1:1")
                assert m
        with Service("--token-file", tokens, listen="0.0.0.0:0") as service:
            service.wait_for(r"level=warning event=http .*without TLS")
            assert service.ask("GET", "/v1/sources")[0] == 401
            assert service.ask("GET", "/v1/sources", token="a-secret")[0] == 200
            assert service.ask("GET", "/health")[0] == 200
        with Service("--source", "w=tcp://127.0.0.1:1") as service:
            service.wait_for("event=started")
            assert not [line for line in service.err
                        if "other machines" in line or "loopback" in line]


def test_passwords_of_peers_are_not_shown():
    peers = ("http://user:hush@127.0.0.1:1/p,other:hush@127.0.0.1:2,"
             "http://127.0.0.1:3")
    with Service("--peers", peers, "--peers", "http://hush@[::1]:1") as s:
        assert s.get("/v1/settings")["peers"] == [
            "http://***@127.0.0.1:1/p,***@127.0.0.1:2,http://127.0.0.1:3",
            "http://***@[::1]:1"]
        for url in ("http://***@127.0.0.1:1/p/v1/state",
                    "***@127.0.0.1:2/v1/state", "http://127.0.0.1:3/v1/state",
                    "http://***@[::1]:1/v1/state"):
            s.wait_for("event=peer_failed .*url=" + re.escape(url))
        assert not [line for line in s.err if "hush" in line], s.err


def test_a_port_in_use():
    with Service() as service:
        done = run("serve", "--listen", f"127.0.0.1:{service.port}")
        assert done.returncode == 1, done
        assert f"127.0.0.1:{service.port}" in done.stderr, done.stderr


def test_files_that_are_not_there():
    for args, texts in [
            (["--token-file", "/nonexistent"], ["/nonexistent"]),
            (["--tls-cert", "/nonexistent", "--tls-key", "/x"],
             ["/nonexistent"]),
            (["--access-log", "/tmp/kvevents-nobody/log"],
             ["--access-log", "/tmp/kvevents-nobody/log", "No such file"]),
            (["--state", "/tmp/kvevents-nobody/state"],
             ["--state", "/tmp/kvevents-nobody/state", "No such file"])]:
        done = run("serve", "--listen", "127.0.0.1:0", *args)
        lines = [line for line in done.stderr.splitlines()
                 if line.startswith("kvevents serve: ")]
        assert done.returncode == 1 and len(lines) == 1, done
        for text in texts:
            assert text in lines[0], (args, lines)


if __name__ == "__main__":
    main(sys.modules[__name__])
