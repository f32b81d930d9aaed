#!/usr/bin/env python3
"""kvevents serve: sources from files of targets and from names that resolve."""

import json
import pathlib
import signal
import socket
import sys
import tempfile

from _command import Running, main, ports_to_keep
from _serve import RECORDING, Service, held, publisher, source


def port_of(endpoint):
    return int(endpoint.rpartition(":")[2])


def write(path, *groups):
    """A file of targets, replaced in one step."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps([
        {"targets": targets, "labels": labels} for targets, labels in groups]))
    new.rename(path)


def workers(service):
    return {s["worker"] for s in service.get("/v1/sources")["sources"]}


def test_files():
    """Targets come with their labels, and go when the file says so; the same
    target comes back."""
    with tempfile.TemporaryDirectory() as at, publisher() as a, \
            publisher() as b:
        at = pathlib.Path(at)
        first = f"127.0.0.1:{port_of(a.live)}"
        second = f"127.0.0.1:{port_of(b.live)}"
        labels = {"model": "m", "tenant": "t", "job": "passed over",
                  "replay_port": str(port_of(a.replay))}
        write(at / "a.json", ([first], labels))
        (at / "notes.txt").write_text("no targets")
        with Service("--targets", at, "--grace", "0") as service:
            s = service.wait_live(1)[first, 0]
            assert (s["model"], s["tenant"], s["origin"], s["found_in"],
                    s["replay_endpoint"]) == (
                        "m", "t", "file", str(at / "a.json"), a.replay), s
            service.wait_ready()
            for tokens in held().values():
                assert service.query(tokens, "m", tenant="t")[first, 0][
                    "longest"] == len(tokens)
            # One more file; one more group in it.
            write(at / "b.json", ([second], {
                "worker": "named", "rank": 3,
                "replay_port": port_of(b.replay)}))
            sources = service.wait_live(2)
            assert ("named", 3) in sources, sources
            # What is broken changes nothing, and is said.
            (at / "b.json").write_text("[{]")
            service.wait_for(r"level=(warning|error) event=discover .*b\.json")
            assert workers(service) == {first, "named"}
            # What is gone goes.
            (at / "b.json").unlink()
            service.wait_until(lambda s: workers(s) == {first})
            write(at / "a.json", ([], {}))
            service.wait_until(lambda s: workers(s) == set())
            status, text = service.ask("POST", "/v1/query", {
                "model": "m", "tenant": "t", "tokens": [1]})
            assert status == 404 or "\"total\":0" in text, (status, text)
            write(at / "a.json", ([first], labels))
            service.wait_live(1)


def test_grace():
    """A target that is back in time was never gone."""
    with tempfile.TemporaryDirectory() as at, publisher() as a:
        file = pathlib.Path(at) / "a.json"
        name = f"127.0.0.1:{port_of(a.live)}"
        labels = {"replay_port": port_of(a.replay)}
        write(file, ([name], labels))
        with Service("--targets", file, "--grace", "100000") as service:
            before = service.wait_live(1)[name, 0]["id"]
            write(file, (["127.0.0.1:1"], {}))
            service.wait_until(lambda s: "127.0.0.1:1" in workers(s))
            assert name in workers(service)
            write(file, ([name], labels))
            service.signal(signal.SIGHUP)
            service.wait_for("event=reload")
            assert service.sources()[name, 0]["id"] == before


def test_the_same_address_with_a_new_engine():
    """Another engine at an address that is still a target starts empty."""
    with tempfile.TemporaryDirectory() as at:
        at = pathlib.Path(at)
        port = ports_to_keep(2)
        name = f"127.0.0.1:{port}"
        where = ["--endpoint", f"tcp://{name}", "--replay-endpoint",
                 f"tcp://127.0.0.1:{port + 1}"]
        (at / "other.jsonl").write_text(
            '{"type":"BlockStored","block_hashes":[1],"token_ids":[7,8],'
            '"block_size":2}\n')
        write(at / "a.json", ([name], {"replay_port": port + 1}))
        old = max(held().values(), key=len)
        with Service("--targets", at / "a.json") as service:
            with Running("publish", str(RECORDING), *where):
                service.wait_live(1)
                assert service.query(old)[name, 0]["longest"] == len(old)
            with Running("publish", str(at / "other.jsonl"), *where):
                row = service.wait_until(
                    lambda s: s.query([7, 8]).get((name, 0)))
                assert row["longest"] == 2, row
                assert service.query(old) == {}


def test_ranks_and_a_template():
    """What stands behind the path holds for targets that say nothing."""
    with tempfile.TemporaryDirectory() as at:
        file = pathlib.Path(at) / "a.json"
        write(file, (["127.0.0.1:10"], {}), (["127.0.0.1:20"], {"ranks": 1}))
        with Service("--targets", f"{file},ranks=2,replay_port=30,model=m,"
                     "block_size=16", "--routing-group", "g") as service:
            service.wait_until(lambda s: len(s.sources()) == 3)
            sources = service.sources()
            s = sources["127.0.0.1:10", 1]
            assert (s["endpoint"], s["replay_endpoint"], s["model"],
                    s["tenant"], s["block_size"]) == (
                        "tcp://127.0.0.1:11", "tcp://127.0.0.1:31", "m", "g",
                        16), s
            assert ("127.0.0.1:20", 0) in sources
        # A file that is not there yet.
        late = pathlib.Path(at) / "late.json"
        with Service("--targets", late) as service:
            service.wait_ready()
            write(late, (["127.0.0.1:10"], {}))
            service.wait_until(lambda s: workers(s) == {"127.0.0.1:10"})


def test_a_name():
    """Every address of a name is a worker."""
    addresses = {info[4][0] for info in socket.getaddrinfo(
        "localhost", 1, type=socket.SOCK_STREAM)}
    with publisher() as a:
        port = port_of(a.live)
        with Service("--resolve", f"localhost:{port},replay_port="
                     f"{port_of(a.replay)}", "--resolve-interval", "0.2",
                     "--resolve", "no-such-name.invalid:5557") as service:
            service.wait_until(lambda s: len(workers(s)) == len(addresses))
            service.wait_live(1)
            s = service.sources()[f"127.0.0.1:{port}", 0]
            assert (s["origin"], s["found_in"]) == (
                "name", f"localhost:{port}"), s
            service.wait_for(r"event=discover .*no-such-name\.invalid")


def test_a_state_and_names():
    """What a state knows of a name's addresses is claimed by the name."""
    with tempfile.TemporaryDirectory() as at, publisher() as a:
        port = port_of(a.live)
        args = ["--state", at, "--resolve",
                f"localhost:{port},replay_port={port_of(a.replay)}",
                "--source", source("other", a), "--grace", "0.5"]
        with Service(*args) as service:
            service.wait_live(2)
            service.signal(signal.SIGTERM)
            assert service.end() == 0
        with Service(*args[:4], "--grace", "0.5") as service:
            service.wait_for("event=state_loaded")
            service.wait_for("event=dropped")
            s = service.wait_live(1)[f"127.0.0.1:{port}", 0]
            assert s["restored"] and s["claimed"], s
            assert "other" not in workers(service)


if __name__ == "__main__":
    main(sys.modules[__name__])
