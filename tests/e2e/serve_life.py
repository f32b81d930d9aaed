#!/usr/bin/env python3
"""kvevents serve from its start to its end: signals, state, systemd, logs.

ctest-timeout: 240
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from _command import BIN, LIMIT, Publisher, main, ports_to_keep, run
from _serve import RECORDING, Service, held, publisher, source


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


def longest(service, prompts, worker="w0", **more):
    """How much of each prompt a worker holds."""
    found = {}
    for hash_, tokens in prompts.items():
        row = service.query(tokens, **more).get((worker, 0))
        found[hash_] = row["longest"] if row else 0
    return found


def whole(prompts):
    return {hash_: len(tokens) for hash_, tokens in prompts.items()}


# ---- ends ----

def test_ends():
    for number, status in (signal.SIGTERM, 0), (signal.SIGINT, 130):
        with Service() as service:
            service.wait_for("event=started")
            service.signal(number)
            assert service.end() == status, service.err
            assert "event=stopped" in service.err[-1], service.err
            assert service.out == []


def test_a_second_signal_ends_at_once():
    with Service("--drain", "100000", "--request-time", "0") as service:
        service.wait_for("event=started")
        with socket.create_connection(("127.0.0.1", service.port)) as slow:
            slow.sendall(b"POST /v1/query HTTP/1.1\r\nHost: x\r\n"
                         b"Content-Type: application/json\r\n"
                         b"Content-Length: 1000\r\n\r\n{")
            # The connection is taken when a later one was answered.
            assert service.ask("GET", "/health")[0] == 200
            service.signal(signal.SIGTERM)
            service.wait_for("event=stopping")
            assert service.process.poll() is None
            service.signal(signal.SIGTERM)
            assert service.end() == -signal.SIGTERM


# ---- state ----

def test_state():
    """A second start goes on where the first one was."""
    prompts = held()
    with folder() as at, publisher() as pub:
        args = ["--state", at / "state", "--source", source("w0", pub)]
        with Service(*args) as service:
            service.wait_live(1)
            assert longest(service, prompts) == whole(prompts)
            service.signal(signal.SIGTERM)
            assert service.end() == 0
        with Service(*args) as service:
            service.wait_for("event=state_loaded .*sources=1")
            s = service.wait_live(1)["w0", 0]
            assert s["restored"] and s["claimed"], s
            assert s["counters"]["resumes"] == 1, s["counters"]
            # One batch proves that it is the same life; not all ten again.
            assert s["counters"]["replay_messages"] <= 2, s["counters"]
            assert longest(service, prompts) == whole(prompts)
            service.process.kill()  # nothing is written
            service.process.wait()
        with Service(*args) as service:
            service.wait_live(1)
            assert longest(service, prompts) == whole(prompts)
        # A source that is named no more is left.
        with Service("--state", at / "state", "--source",
                     "w1=tcp://127.0.0.1:1") as service:
            service.wait_for("event=dropped")
            assert set(service.sources()) == {("w1", 0)}


def test_state_is_written_now_and_then():
    with folder() as at, publisher() as pub:
        with Service("--state", at, "--state-interval", "0.1", "--source",
                     source("w0", pub), "--log-level", "debug") as service:
            service.wait_live(1)
            first = len([1 for line in service.err if "state_saved" in line])
            service.wait_until(lambda s: len([
                1 for line in s.err if "event=state_saved" in line]) > first)
            service.process.kill()
            service.process.wait()
        with Service("--state", at, "--source", source("w0", pub)) as service:
            service.wait_for("event=state_loaded .*sources=1")
            assert service.wait_live(1)["w0", 0]["restored"]


def test_a_bad_state_is_kept_aside():
    with folder() as at, publisher() as pub:
        args = ["--state", at, "--source", source("w0", pub)]
        with Service(*args) as service:
            service.wait_live(1)
            service.signal(signal.SIGTERM)
            assert service.end() == 0
        file = at / "kvevents.state"
        good = file.read_bytes()
        for bad in good[:-1], b"nonsense", b"", good[:20] + b"x" + good[21:]:
            file.write_bytes(bad)
            with Service(*args) as service:
                service.wait_for("level=error event=state_bad .*kept_as="
                                 + re.escape(str(file)) + r"\.bad")
                assert (at / "kvevents.state.bad").read_bytes() == bad
                s = service.wait_live(1)["w0", 0]
                assert not s["restored"], s
                service.process.kill()
                service.process.wait()


def test_a_state_has_one_owner():
    with folder() as at, Service("--state", at):
        done = run("serve", "--listen", "127.0.0.1:0", "--state", str(at))
        assert done.returncode == 1, done
        assert "another kvevents serve uses" in done.stderr, done.stderr


def test_peers():
    prompts = held()
    with folder() as at, publisher() as pub:
        (at / "tokens").write_text("first-token\nsecond-token\n")
        args = ["--token-file", at / "tokens"]
        with Service(*args, "--source", source("w0", pub)) as first:
            first.wait_until(lambda s: '"live"' in s.ask(
                "GET", "/v1/sources", token="second-token")[1])
            with Service(*args, "--peers", f"http://127.0.0.1:1,{first.url()}",
                         "--source", source("w0", pub)) as second:
                second.wait_for("event=peer_failed .*127.0.0.1:1/v1/state")
                second.wait_for("event=peer_loaded .*sources=1")
                second.wait_until(lambda s: '"live"' in s.ask(
                    "GET", "/v1/sources", token="first-token")[1])
                text = second.ask("GET", "/v1/sources", token="first-token")[1]
                s = json.loads(text)["sources"][0]
                assert s["restored"] and s["state"] == "live", s
                question = dict(model="default",
                                prompts=list(prompts.values()))
                status, text = second.ask("POST", "/v1/query", question,
                                          token="first-token")
                assert status == 200, text
                assert [p["workers"][0]["longest"] for p
                        in json.loads(text)["prompts"]] == \
                    [len(p) for p in prompts.values()]
        # A state of its own counts more than a peer's.
        with Service("--state", at / "state") as third:
            third.signal(signal.SIGTERM)
            assert third.end() == 0
        with Service("--state", at / "state", "--peers",
                     "http://127.0.0.1:1") as third:
            third.wait_for("event=started")
            assert not [x for x in third.err if "peer" in x], third.err


# ---- encrypted streams ----

# The key pairs of ZeroMQ's manual: known to all, good for tests.
ENGINE = ("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
          "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")
OURS = ("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID",
        "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")


def test_curve():
    prompts = held()
    with folder() as at:
        (at / "engine").write_text("\n".join(ENGINE))
        (at / "ours").write_text("\n".join(OURS))
        (at / "allow").write_text(OURS[0] + "\n")
        with publisher(RECORDING, "--curve-keys", at / "engine",
                       "--curve-allow", at / "allow") as pub:
            file = at / "conf"
            file.write_text(
                f"[serve]\ncurve-keys = {at / 'ours'}\nstate = {at}\n"
                f"[source w0]\nendpoint = {pub.live}\n"
                f"replay_endpoint = {pub.replay}\n"
                f"curve_server_key = {ENGINE[0]}\n")
            with Service("--config", file) as service:
                service.wait_live(1)
                assert longest(service, prompts) == whole(prompts)
                service.signal(signal.SIGTERM)
                assert service.end() == 0
            # No secret is in the state, nor said.
            for text in ((at / "kvevents.state").read_bytes(),
                         "\n".join(service.err).encode()):
                assert OURS[1].encode() not in text
            with Service("--config", file) as service:
                assert service.wait_live(1)["w0", 0]["restored"]
                assert OURS[1] not in service.ask("GET", "/v1/settings")[1]


# ---- reload ----

def test_reload():
    with folder() as at, publisher() as a, publisher() as b:
        file, tokens, log = at / "conf", at / "tokens", at / "log"

        def write(*sources, more=""):
            file.write_text(
                f"[serve]\ntoken-file = {tokens}\naccess-log = {log}\n{more}"
                + "".join(f"[source {name}]\nendpoint = {pub.live}\n"
                          f"replay_endpoint = {pub.replay}\n"
                          for name, pub in sources))

        def names(token):
            status, text = service.ask("GET", "/v1/sources", token=token)
            assert status == 200, (status, text)
            return {s["worker"]: s["id"] for s in json.loads(text)["sources"]}

        def hang_up():
            n = len([x for x in service.err if "event=reload" in x])
            service.signal(signal.SIGHUP)
            service.wait_until(lambda s: len([
                x for x in s.err if "event=reload" in x]) > n)

        tokens.write_text("old-token\n")
        write(("a", a), ("b", b))
        with Service("--config", file) as service:
            service.wait_for("event=started")
            before = names("old-token")
            assert set(before) == {"a", "b"}
            tokens.write_text("new-token\n")
            write(("b", b), ("c", a), more="max-tokens = 7\n")
            log.rename(at / "log.1")
            hang_up()
            service.wait_for("event=reload .*sources_added=1 "
                             "sources_removed=1 need_a_restart=max-tokens")
            service.wait_until(lambda s: s.ask(
                "GET", "/v1/sources", token="old-token")[0] == 401)
            after = names("new-token")
            assert set(after) == {"b", "c"} and after["b"] == before["b"]
            service.wait_until(lambda s: log.exists() and '"status":401'
                               in log.read_text())
            # What is broken changes nothing.
            file.write_text("[serve]\nthreads = x\n")
            tokens.write_text("")
            hang_up()
            service.wait_for(r"level=error event=reload .*conf:2: threads")
            assert names("new-token") == after
            # And the process is alive, and ends as it should.
            service.signal(signal.SIGTERM)
            assert service.end() == 0


def test_access_log():
    with folder() as at:
        log = at / "log"
        with Service("--access-log", log) as service:
            status, _ = service.ask("POST", "/v1/query?secret=1",
                                    {"model": "m", "tokens": [424242]})
            assert status == 404, status
            service.wait_until(lambda s: log.read_text().endswith("\n"))
        lines = [json.loads(x) for x in log.read_text().splitlines()]
        assert len(lines) == 1, lines
        line = lines[0]
        assert (line["method"], line["path"], line["status"],
                line["client"]) == ("POST", "/v1/query", 404, "127.0.0.1")
        assert line["duration_ms"] >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
                            line["ts"]), line
        assert "424242" not in log.read_text()
        assert "secret" not in log.read_text()
        with Service("--access-log", "-") as service:
            service.ask("GET", "/health")
            service.wait_for(r'^\{"ts":.*"path":"/health","status":200')


# ---- systemd ----

def notified(listener, pattern, seen):
    """Wait for a message that matches; all that came are in seen."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            seen.append(listener.recv(4096).decode())
        except socket.timeout:
            continue
        if re.search(pattern, seen[-1], re.M):
            return seen[-1]
    raise AssertionError(f"no {pattern!r} in {seen}")


def test_systemd():
    libraries = subprocess.run(["ldd", BIN], capture_output=True, text=True)
    if "libsystemd" not in libraries.stdout:
        print("     built without libsystemd")
        return
    with folder() as at, socket.socket(socket.AF_UNIX,
                                       socket.SOCK_DGRAM) as listener:
        listener.bind(str(at / "notify"))
        listener.settimeout(1)
        seen = []
        with Service("--min-workers", "1", environment={
                "NOTIFY_SOCKET": str(at / "notify"),
                "WATCHDOG_USEC": "200000"}) as service:
            assert notified(listener, "^READY=1$", seen)
            for _ in range(3):
                notified(listener, "^WATCHDOG=1$", seen)
            # There is no worker: alive, and not ready.
            assert service.ask("GET", "/ready")[0] == 503
            service.signal(signal.SIGHUP)
            text = notified(listener, "^RELOADING=1$", seen)
            assert re.search(r"^MONOTONIC_USEC=\d+$", text, re.M), text
            notified(listener, "^READY=1$", seen)
            service.signal(signal.SIGTERM)
            notified(listener, "^STOPPING=1$", seen)
            assert service.end() == 0


def test_unit_file():
    """The command line of the unit is one that is accepted."""
    unit = (pathlib.Path(os.environ["KVEVENTS_SOURCE_DIR"])
            / "contrib/systemd/kvevents.service").read_text()
    command = re.search(r"^ExecStart=\S+/kvevents (.*)$", unit, re.M).group(1)
    with folder() as at:
        (at / "kvevents.conf").write_text(run(
            "serve", "--print-config").stdout)
        words = command.replace("/etc/kvevents", str(at)).replace(
            "${STATE_DIRECTORY}", str(at)).split()
        done = run(*words, "--print-config")
        assert done.returncode == 0 and done.stderr == "", done
    assert "\nType=notify\n" in unit and "\nWatchdogSec=" in unit


# ---- readiness ----

def test_min_workers():
    with publisher() as pub, Service("--min-workers", "2", "--source",
                                     source("a", pub)) as service:
        service.wait_live(1)
        status, text = service.ask("GET", "/ready")
        assert status == 503 and json.loads(text)["workers"] == 1, text
        status, _ = service.ask("POST", "/v1/sources", {
            "worker": "b", "model": "default", "endpoint": pub.live,
            "replay_endpoint": pub.replay})
        assert status == 201
        service.wait_ready()


def test_recovery_limit():
    """A source that nobody answers for holds readiness up so long only."""
    with Service("--recovery-limit", "0.3", "--source",
                 "w0=tcp://127.0.0.1:1") as service:
        service.wait_ready()
        ready = service.get("/ready")
        assert ready["past_limit"] == 1 and ready["cold"] == 1, ready


# ---- logs ----

PUBLISHED = ('{"type":"BlockStored","block_hashes":[%d],"token_ids":'
             '[3141592653,3141592654],"block_size":2}')


def test_losses_are_lines():
    """A gap, a loss, a restart, an unreadable batch: a line each, with who and
    which batches; and no line has token ids."""
    port = ports_to_keep(1)
    endpoint = f"tcp://127.0.0.1:{port}"
    with Service("--source", f"w0:3={endpoint}", "--log-level",
                 "debug") as service:
        service.wait_for("event=started")
        with Publisher("-", "--drop", "1-2", endpoint=endpoint, replay=False,
                       stdin=subprocess.PIPE) as pub:
            service.wait_for("event=connected")
            while not any("event=state" in x for x in service.err):
                pub.say(*[PUBLISHED % i for i in range(5)])
                time.sleep(0.1)
            service.wait_for(r"level=warning event=lost .*worker=w0 rank=3 "
                             r"model=default tenant=default first=\d+ "
                             r"last=\d+ ")
            good = json.loads(RECORDING.read_text().splitlines()[1])
            pub.say(json.dumps({"payload": good["payload"][:400]}))
            service.wait_for(r"level=warning event=unreadable .*number=\d+ ")
        service.wait_for("level=warning event=disconnected")
        text = "\n".join(service.err)
        assert "3141592653" not in text and "3141592654" not in text
        for token in good["wire"][1][0]["token_ids"][:20]:
            assert not re.search(rf"\b{token}\b", text), token
        for line in service.err:
            assert re.fullmatch(
                r'ts=\S+ level=(error|warning|info|debug) event=[a-z_]+ '
                r'msg=(\S+|"([^"\\]|\\.)*")'
                r'( [a-z_]+=([^\s"=]\S*|"([^"\\]|\\.)*"))*', line), line


def test_json_lines():
    with publisher() as pub, Service("--log-format", "json", "--source",
                                     source('a "b"\n', pub)) as service:
        service.wait_until(lambda s: len(s.err) >= 5)
        service.wait_until(lambda s: any('"live"' in x for x in s.err))
        service.signal(signal.SIGTERM)
        assert service.end() == 0
        lines = [json.loads(x) for x in service.err]
        assert {"listening", "added", "state", "stopped"} <= {
            x["event"] for x in lines}
        added = [x for x in lines if x["event"] == "added"]
        assert added[0]["worker"] == 'a "b"\n' and added[0]["rank"] == 0
        for line in lines:
            assert list(line)[:4] == ["ts", "level", "event", "msg"], line
            assert line["level"] in ("error", "warning", "info"), line


def test_keys_that_are_none_any_more():
    """What a reload complains of is a line as all others."""
    with folder() as at:
        keys = at / "keys"
        keys.write_text("# keys\n" + "a" * 40 + "\n" + "b" * 40 + "\n")
        with Service("--log-format", "json", "--curve-keys", keys) as service:
            keys.write_text("none\n")
            service.signal(signal.SIGHUP)
            service.wait_for('"reload"')
            service.signal(signal.SIGTERM)
            assert service.end() == 0
            (line,) = [x for x in map(json.loads, service.err)
                       if x["event"] == "reload"]
            assert line["level"] == "error", line
            assert f"--curve-keys: '{keys}' is no file" in line["msg"], line


def test_lines_are_limited():
    """Of one event only so many lines; the rest is counted, none is lost."""
    many = 300
    sources = [x for i in range(many)
               for x in ("--source", f"w{i}=tcp://127.0.0.1:1")]
    with Service(*sources) as service:
        service.wait_for(r"event=added .*left_out=\d+", limit=LIMIT)
        lines = [x for x in service.err if " event=added " in x]
        left = sum(int(m.group(1)) for x in lines
                   for m in [re.search(r" left_out=(\d+)", x)] if m)
        more = [x for x in lines if "more of these" in x]
        assert len(lines) - len(more) + left == many, (len(lines), left)
        assert len(lines) <= 22, len(lines)


if __name__ == "__main__":
    main(sys.modules[__name__])
