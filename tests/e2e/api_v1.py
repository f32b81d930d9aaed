"""The service's own interface: what it says is what engines said.

ctest-timeout: 300

Engines are pyzmq and msgspec, the client is http.client; neither is ours.
"""

import http.client
import json
import socket
import sys
import time

import msgspec

from _command import LIMIT
from _dialect import CLEARED, Engine, Replay, Service, removed, stored
from _schema import DOCUMENT, check

TIERS = ("UNKNOWN", "GPU", "CPU", "DISK", "REMOTE")
SECRET = 3141592653  # a token id that must be in no text


def tokens_of(n, first=1):
    return list(range(first, first + n))


def add(service, engine, worker, **more):
    source = service.post("/v1/sources", {
        "worker": worker, "model": "m", "endpoint": engine.endpoint,
        **more}, 201)
    engine.wait_subscribed()
    return source


def rows(answer, prompt=0):
    return {(row["worker"], row["rank"]): row
            for row in answer["prompts"][prompt]["workers"]}


def ask(service, **question):
    return service.post("/v1/query", {"model": "m", **question})


# ---- questions ----

def test_questions():
    with Service() as service, Engine() as a, Engine() as b:
        add(service, a, "a")
        add(service, b, "b", rank=2)
        prompt = tokens_of(14)
        a.publish(stored([1, 2, 3], prompt[:12]))
        a.publish(stored([2], prompt[4:8], 1, medium="CPU",
                         extra_keys=[None]))
        b.publish(stored([71, 72], prompt[:8]))
        b.publish(removed(71))
        service.wait_number("a", 1)
        service.wait_number("b", 1, 2)
        check_tokens(service, prompt)
        check_forms(service, prompt)
        check_explained(service, prompt)
        check_block(service)
        check_msgpack(service, prompt)


def check_tokens(service, prompt):
    answer = ask(service, tokens=prompt)
    assert answer["prompts"][0]["tokens"] == 14
    assert answer["prompts"][0]["total"] == 1
    row = rows(answer)["a", 0]
    assert row["longest"] == 12 and not row["moving"]
    assert row["tiers"] == {"GPU": {"alone": 12, "upto": 12},
                            "CPU": {"alone": 0, "upto": 12},
                            "DISK": {"alone": 0, "upto": 12}}, row
    assert row["source"] == service.source("a")["id"]
    assert row["state"] == service.source("a")["state"]
    assert "ended" not in row
    # Another order of tiers; the last token is computed anyway.
    row = rows(ask(service, tokens=prompt[:12], recompute_last=True,
                   tiers=["disk", "CPU", "gpu"]))["a", 0]
    assert list(row["tiers"]) == ["DISK", "CPU", "GPU"]
    assert [t["upto"] for t in row["tiers"].values()] == [0, 0, 8], row
    # Several prompts; some workers; not too many rows.
    answer = ask(service, prompts=[prompt, prompt[:5], [9], []])
    assert [p["tokens"] for p in answer["prompts"]] == [14, 5, 1, 0]
    assert [len(p["workers"]) for p in answer["prompts"]] == [1, 1, 0, 0]
    assert rows(answer, 1)["a", 0]["longest"] == 4
    assert not rows(ask(service, tokens=prompt, workers=["b", "nobody"]))
    assert not rows(ask(service, tokens=prompt, workers=[]))
    answer = ask(service, tokens=prompt, limit=0)
    assert answer["prompts"][0] == {"tokens": 14, "total": 1, "workers": []}
    # Neither another adapter's nor another salt's.
    assert not rows(ask(service, tokens=prompt, lora_name="x"))
    assert not rows(ask(service, tokens=prompt, cache_salt="x"))
    assert service.post("/v1/query", {"tokens": [1]}, 404)["status"] == 404


def contents_of(service, worker):
    """Content hashes of the first chain that a worker holds."""
    for line in dump(service, f"?worker={worker}"):
        if line["type"] == "run" and line["rooted"]:
            return line["contents"]
    raise AssertionError(worker)


def check_forms(service, prompt):
    """Tokens, their content hashes and the engine's hashes are one chain."""
    contents = contents_of(service, "a")
    assert len(contents) == 3, contents
    for hashes in (contents, [int(c) for c in contents],
                   [hex(int(c)) for c in contents],
                   [int(c) - (1 << 64) if int(c) >> 63 else int(c)
                    for c in contents]):
        answer = ask(service, content_hashes=hashes, block_size=4)
        assert answer["prompts"][0]["tokens"] == 12
        assert rows(answer)["a", 0]["longest"] == 12, hashes
    answer = ask(service, hashes=[1, "2", "0x3", 4])
    assert answer["prompts"][0]["tokens"] is None
    assert rows(answer)["a", 0]["longest"] == 12
    assert not rows(ask(service, hashes=[2 + (1 << 32), 1]))


def ended(service, worker, rank, **question):
    return rows(ask(service, explain=True, **question))[
        worker, rank]["ended"]


def check_explained(service, prompt):
    end = ended(service, "a", 0, tokens=prompt)
    assert (end["why"], end["at"]) == ("prompt_end", 12), end
    end = ended(service, "b", 2, tokens=prompt)  # a row, though it has none
    assert (end["why"], end["at"]) == ("hole", 0), end
    end = ended(service, "a", 0, tokens=prompt[:12] + [9] * 4)
    assert (end["why"], end["at"]) == ("not_stored", 12), end
    end = ended(service, "b", 2, tokens=prompt[:4] + [9] * 4)
    assert (end["why"], end["at"]) == ("not_held", 0), end
    end = ended(service, "a", 0, tokens=prompt, lora_name="x")
    assert (end["why"], end["at"]) == ("other_root", 0), end
    end = ended(service, "a", 0, tokens=prompt, tiers=["DISK"], limit=5)
    assert end["at"] == 12 and end["why"] == "prompt_end", end
    answer = ask(service, tokens=prompt, explain=True, workers=["b"])
    assert list(rows(answer)) == [("b", 2)], answer
    assert rows(answer)["b", 2]["longest"] == 0
    assert answer["prompts"][0]["total"] == 0


def check_block(service):
    block = service.json("GET", "/v1/blocks/2?model=m")
    assert block["hash"] == "2" and block["total"] == 2
    holders = {h["tier"]: h for h in block["holders"]}
    assert set(holders) == {"GPU", "CPU"}, block
    assert {h["worker"] for h in holders.values()} == {"a"}
    assert {h["end"] for h in holders.values()} == {8}
    assert holders["GPU"]["content"] == contents_of(service, "a")[1]
    assert service.json("GET", "/v1/blocks/0x48?model=m")["holders"][0][
        "worker"] == "b"
    assert service.json("GET", "/v1/blocks/5?model=m")["holders"] == []
    assert service.json("GET", "/v1/blocks/5?model=x", None, 404)


def check_msgpack(service, prompt):
    """The same questions and answers in msgpack; tokens as a bin, too."""
    for question in (
            {"model": "m", "tokens": prompt, "explain": True},
            {"model": "m", "prompts": [prompt, [1], []], "limit": 1},
            {"model": "m", "hashes": [1, 2, b"\x03" * 32]}):
        want = service.msgpack("/v1/query", question)
        check(want, DOCUMENT["components"]["schemas"]["Answer"], question)
        if b"\x03" * 32 not in question.get("hashes", []):
            assert want == service.post("/v1/query", question)
    packed = b"".join(t.to_bytes(4, "little") for t in prompt)
    assert service.msgpack("/v1/query", {"model": "m", "tokens": packed}) == \
        ask(service, tokens=prompt)
    # JSON in, msgpack out.
    connection = http.client.HTTPConnection(
        "127.0.0.1", service.port, timeout=LIMIT)
    connection.request(
        "POST", "/v1/query", json.dumps({"model": "m", "tokens": prompt}), {
            "Content-Type": "application/json",
            "Accept": "application/msgpack, application/json;q=0.5"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "application/msgpack"
    assert msgspec.msgpack.decode(answer.read()) == ask(
        service, tokens=prompt)
    connection.close()


def test_explaining_has_an_end():
    """So many rows of a question are explained, of all its prompts."""
    with Service() as service, Engine() as a:
        add(service, a, "a")
        for i in range(9):
            service.post("/v1/sources", {
                "worker": f"x{i}", "model": "m",
                "endpoint": "tcp://127.0.0.1:1"}, 201)
        a.publish(stored([1], tokens_of(4)))
        service.wait_number("a", 0)
        prompts = ask(service, prompts=[tokens_of(4)] * 256,
                      explain=True)["prompts"]
        n = [(len(p["workers"]), sum("ended" in r for r in p["workers"]))
             for p in prompts]
        assert n == [(10, 10)] * 102 + [(4, 4)] + [(1, 0)] * 153, n
        assert {p["total"] for p in prompts} == {1}
        # With a limit there are no more rows than that of a prompt.
        prompts = ask(service, prompts=[tokens_of(4)] * 256, explain=True,
                      limit=5)["prompts"]
        assert [len(p["workers"]) for p in prompts] == \
            [5] * 204 + [4] + [1] * 51
        # Many workers, of which one is there.
        answer = ask(service, prompts=[tokens_of(4), [9]] * 20, explain=True,
                     workers=[*(f"n{i}" for i in range(20000)), "x3"])
        assert {tuple(rows(answer, i)) for i in range(40)} == {(("x3", 0),)}
        answer = ask(service, tokens=[9], explain=True, workers=["nobody"])
        assert answer["prompts"][0]["workers"] == []


# ---- sources and workers ----

def test_sources():
    with Service() as service, Engine() as a, Engine() as b, \
            Replay() as replay:
        first = add(service, a, "w", block_size=16)
        again = service.post("/v1/sources", {
            "worker": "w", "model": "m", "endpoint": a.endpoint})
        assert again["id"] == first["id"]
        other = service.post("/v1/sources", {
            "worker": "w", "model": "m", "endpoint": b.endpoint}, 409)
        assert other["source"] == first["id"], other
        second = add(service, b, "w", rank=1, tenant="default",
                     replay_endpoint=replay.endpoint)
        assert second["endpoint"] == b.endpoint, second
        a.publish(stored([1, 2], tokens_of(8)))
        a.publish(stored([5], tokens_of(4, 50), medium="CPU",
                         extra_keys=[None]))
        b.publish(stored([1], tokens_of(4)))
        source = service.wait_number("w", 1)
        service.wait_number("w", 0, 1)
        assert source["block_sizes"] == [4] and source["block_size"] == 16
        assert source["block_size_differs"], source
        assert source["blocks"] == {
            "UNKNOWN": 0, "GPU": 2, "CPU": 1, "DISK": 0, "REMOTE": 0}
        assert source["counters"]["block_sizes_unexpected"] == 1
        assert source["counters"]["batches_ingested"] == 2
        assert source["connected"] and source["last_batch_at"] > 1.7e9
        check_workers(service, first, second)
        check_filters(service)
        check_pause(service, a, first)
        check_clear(service, first)
        check_removal(service, first, second)


def check_workers(service, first, second):
    (worker,) = service.json("GET", "/v1/workers")["workers"]
    assert (worker["worker"], worker["model"], worker["tenant"]) == (
        "w", "m", "default")
    assert worker["sources"] == [first["id"], second["id"]]
    assert [r["rank"] for r in worker["ranks"]] == [0, 1]
    assert worker["blocks"]["GPU"] == 3 and worker["blocks"]["CPU"] == 1
    assert worker["block_sizes"] == [4]
    order = ("live", "degraded", "recovering", "cold", "gone")
    assert worker["state"] == max(
        (r["state"] for r in worker["ranks"]), key=order.index)


def check_filters(service):
    def n(path, what):
        return len(service.json("GET", path)[what])

    assert n("/v1/sources?worker=w", "sources") == 2
    assert n("/v1/sources?worker=w&model=m&tenant=default", "sources") == 2
    assert n("/v1/sources?worker=x", "sources") == 0
    assert n("/v1/workers?model=m", "workers") == 1
    assert n("/v1/workers?model=x", "workers") == 0


def check_pause(service, engine, source):
    path = f"/v1/sources/{source['id']}"
    paused = service.post(path + "/pause", None)
    assert paused["paused"] and paused["state"] == "degraded"
    assert paused["reason"] == "paused", paused
    row = rows(ask(service, tokens=tokens_of(8)))["w", 0]
    assert (row["longest"], row["reason"]) == (8, "paused"), row
    service.post(path + "/pause", None, 409)
    assert not service.post(path + "/resume", None)["paused"]
    service.post(path + "/resume", None, 409)
    engine.wait_subscribed()


def check_clear(service, source):
    path = f"/v1/sources/{source['id']}"
    cleared = service.post(path + "/clear", {"tiers": ["cpu"]})
    assert cleared["blocks"]["CPU"] == 0 and cleared["blocks"]["GPU"] == 2
    service.post(path + "/clear", {"tier": ["cpu"]}, 422)
    assert service.post("/v1/clear", {"worker": "x"}) == {"cleared": 0}
    assert service.post("/v1/clear", {"worker": "w", "model": "m"}) == {
        "cleared": 2}
    assert not rows(ask(service, tokens=tokens_of(8)))


def check_removal(service, first, second):
    path = f"/v1/sources/{first['id']}"
    assert service.json("DELETE", path) == {"removed": 1}
    service.json("GET", path, None, 404)
    service.json("DELETE", path, None, 404)
    service.json("DELETE", "/v1/workers/w?model=x", None, 404)
    assert service.json("DELETE", "/v1/workers/w?model=m") == {"removed": 1}
    assert service.json("GET", "/v1/sources") == {"sources": []}
    assert service.json("GET", "/v1/workers") == {"workers": []}
    service.post("/v1/query", {"model": "m", "tokens": [1]}, 404)
    service.json("GET", f"/v1/sources/{second['id']}", None, 404)


def test_tiers_both_ways():
    """Raw tokens of each tier, and of it with those before it (C32, C34)."""
    with Service() as service, Engine() as engine:
        add(service, engine, "w")
        prompt = tokens_of(20)
        engine.publish(stored([1, 2], prompt[:8]))
        engine.publish(stored([3, 4], prompt[8:16], 2, medium="CPU",
                              extra_keys=[None, None]))
        engine.publish(stored([5], prompt[16:], 4, medium="DISK",
                              extra_keys=[None]))
        service.wait_number("w", 2)
        row = rows(ask(service, tokens=prompt))["w", 0]
        assert row["longest"] == 20 and row["tiers"] == {
            "GPU": {"alone": 8, "upto": 8}, "CPU": {"alone": 0, "upto": 16},
            "DISK": {"alone": 0, "upto": 20}}, row
        end = ended(service, "w", 0, tokens=prompt, tiers=["GPU"])
        assert (end["why"], end["at"]) == ("other_tier", 8), end


def test_ranks_without_a_source():
    """Batches may name another rank than their source's (C14)."""
    with Service() as service, Engine() as engine:
        source = add(service, engine, "w")
        engine.publish(stored([1], tokens_of(4)))
        engine.publish(stored([2, 3], tokens_of(8)), rank=1)
        service.wait_number("w", 1)
        (worker,) = service.json("GET", "/v1/workers")["workers"]
        assert [(r["rank"], r["source"], r["blocks"]["GPU"])
                for r in worker["ranks"]] == [
                    (0, source["id"], 1), (1, source["id"], 2)], worker
        assert set(rows(ask(service, tokens=tokens_of(8)))) == {
            ("w", 0), ("w", 1)}
        assert set(held_of(dump(service))) == {("w", 0), ("w", 1)}
        engine.publish(CLEARED, rank=1)
        service.wait_number("w", 2)
        assert set(rows(ask(service, tokens=tokens_of(8)))) == {("w", 0)}
        engine.publish(stored([2, 3], tokens_of(8)), rank=1)
        service.wait_number("w", 3)
        assert service.post("/v1/clear", {"worker": "w"}) == {"cleared": 1}
        assert not rows(ask(service, tokens=tokens_of(8)))
        check_orphaned_rank(service, source)
        assert service.json("DELETE", "/v1/workers/w?model=m") == {
            "removed": 1}
        assert service.json("GET", "/v1/workers") == {"workers": []}


def check_orphaned_rank(service, first):
    """The rank that only batches of a source named stays when the source goes
    and the worker has another one; it says that nobody feeds it."""
    with Engine() as other:
        add(service, other, "w", rank=5)
        service.json("DELETE", f"/v1/sources/{first['id']}")
        (worker,) = service.json("GET", "/v1/workers")["workers"]
        ranks = {r["rank"]: r["source"] for r in worker["ranks"]}
        assert 5 in ranks and 0 not in ranks, ranks
        assert {rank for _, rank in held_of(dump(service))} == set(ranks)


def numbers_of(value):
    """All numbers of an answer."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers_of(item)
    elif isinstance(value, (int, float)):
        yield value


def test_hashes_are_texts():
    """No number of an answer is changed by a reader in JavaScript (A21)."""
    with Service() as service, Engine() as engine:
        add(service, engine, "w")
        big = [2**64 - 1, 2**63 + 3, 2**53 + 1]
        engine.publish(stored(big, tokens_of(12)))
        service.wait_number("w", 0)
        for hashes in (big, [str(h) for h in big],
                       [h - 2**64 if h >> 63 else h for h in big]):
            assert rows(ask(service, hashes=hashes, block_size=4))[
                "w", 0]["longest"] == 12
        block = service.json("GET", f"/v1/blocks/{big[0]}?model=m")
        assert block["hash"] == str(big[0])
        for answer in (block, dump(service), service.json("GET", "/v1/sources"),
                       ask(service, tokens=tokens_of(12), explain=True)):
            assert all(abs(n) <= 2**53 for n in numbers_of(answer)), answer


# ---- ready ----

def test_ready():
    """A source that says nothing keeps the whole from being ready until it is
    gone, or past its limit; health does not care."""
    with Service() as service:
        assert service.json("GET", "/ready")["ready"]
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # not listening
            source = service.post("/v1/sources", {
                "worker": "dead", "endpoint":
                f"tcp://127.0.0.1:{nobody.getsockname()[1]}"}, 201)
            progress = service.json("GET", "/ready", None, 503)
            assert not progress["ready"] and not progress["loading"]
            assert progress["sources"] == 1 == progress["cold"], progress
            assert service.call("GET", "/health", None, None) == (
                200, None, b"")
            service.json("DELETE", f"/v1/sources/{source['id']}")
        assert service.json("GET", "/ready")["sources"] == 0


# ---- dumps ----

def dump(service, arguments=""):
    status, media, body = service.call(
        "GET", "/v1/dump" + arguments, None, None)
    assert status == 200 and media == "application/x-ndjson", media
    assert str(SECRET).encode() not in body
    return [json.loads(line) for line in body.decode().splitlines()]


def held_of(lines):
    """{(worker, rank): {(medium, hash): end in tokens}}; each run stands
    behind one that came before it."""
    found, who, ends = {}, None, None
    assert lines[0]["type"] == "begin" and lines[-1]["type"] == "end"
    for line in lines[1:-1]:
        if line["type"] == "instance":
            who = found[line["worker"], line["rank"]] = {}
            ends, runs, blocks = {}, 0, 0
        elif line["type"] == "run":
            before = 0 if line["parent"] is None else ends[line["parent"]][-1]
            size = line["block_size"] or 0
            runs += 1
            ends[line["id"]] = run = [
                before + size * (i + 1) for i in range(line["blocks"])]
            assert line["contents"] is None or \
                len(line["contents"]) == line["blocks"]
        elif line["type"] == "held":
            assert line["run"] in ends
            for end, name, n in zip(run, line["hashes"], line["copies"],
                                    strict=True):
                assert (name is None) == (n == 0)
                if n > 0:
                    blocks += 1
                    who[line["medium"], name] = end
        else:
            assert line["type"] == "instance_end", line
            assert (line["runs"], line["blocks"]) == (runs, blocks)
    assert lines[-1]["instances"] == len(found)
    return found


def test_dump():
    with Service() as service, Engine() as a, Engine() as b:
        add(service, a, "a")
        add(service, b, "b", rank=1)
        want = {}
        for chain in range(4):
            parent = None
            for part in range(50):
                names = [1 + chain * 10**6 + part * 100 + i
                         for i in range(100)]
                first = [SECRET, chain, 0, 0] if part == 0 else tokens_of(4)
                a.publish(stored(
                    names, first + tokens_of(396, 10**6 * part + chain),
                    parent))
                want.update({str(n): 4 * (part * 100 + i + 1)
                             for i, n in enumerate(names)})
                parent = names[-1]
        b.publish(stored([b"\x01" * 32, b"\x02" * 32], tokens_of(8)))
        service.wait_number("a", 199)
        service.wait_number("b", 0, 1)
        found = held_of(dump(service))
        assert {n: e for (_, n), e in found["a", 0].items()} == want
        assert {n: e for (_, n), e in found["b", 1].items()} == {
            "01" * 32: 4, "02" * 32: 8}
        assert set(held_of(dump(service, "?worker=b"))) == {("b", 1)}
        assert set(held_of(dump(service, "?rank=0&model=m"))) == {("a", 0)}
        assert held_of(dump(service, "?tenant=x")) == {}
        check_slow_reader(service)
        check_state(service)


def check_slow_reader(service):
    """Readers that stop in the middle hold up nobody, and too many of them are
    told so; when they leave others may read again."""
    readers = []
    for _ in range(40):
        s = socket.create_connection(("127.0.0.1", service.port), LIMIT)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(b"GET /v1/dump HTTP/1.1\r\nHost: x\r\n\r\n")
        readers.append(s)
        if s.recv(64).startswith(b"HTTP/1.1 503"):
            break
    else:
        raise AssertionError("40 dumps at a time")
    assert len(readers) > 1
    assert rows(ask(service, tokens=[SECRET, 0, 0, 0]))["a", 0]["longest"] == 4
    for s in readers:
        s.close()
    end = time.monotonic() + LIMIT
    while service.call("GET", "/v1/dump?worker=b", None, None)[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.02)


def check_state(service):
    status, media, body = service.call("GET", "/v1/state", None, None)
    assert status == 200 and media == "application/octet-stream"
    assert body.startswith(b"KVESTATE") and len(body) > 100000, body[:16]


# ---- the rest ----

def test_rest():
    with Service() as service, Engine() as engine:
        assert isinstance(service.json("GET", "/v1/settings"), dict)
        add(service, engine, "w")
        stream = socket.create_connection(("127.0.0.1", service.port), LIMIT)
        stream.sendall(
            b"GET /v1/events?types=batch HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while b"\r\n\r\n" not in got:
            got += stream.recv(65536)
        assert b"text/event-stream" in got, got
        engine.publish(stored([1], [SECRET, 2, 3, 4]))
        while b'"type":"batch"' not in got:
            piece = stream.recv(65536)
            assert piece, got
            got += piece
        assert b"event: batch\n" in got and str(SECRET).encode() not in got
        stream.close()
        service.json("GET", "/v1/events?types=nonsense", None, 422)


def main():
    for test in (test_questions, test_sources, test_tiers_both_ways,
                 test_ranks_without_a_source, test_hashes_are_texts,
                 test_ready, test_dump, test_rest):
        print(test.__name__, flush=True)
        test()


if __name__ == "__main__":
    sys.exit(main())
