#!/usr/bin/env python3
"""A client of Mooncake's indexers, written from their document only, against
ours: tenants, tiers, ranks, adapters, salts, and msgpack in both ways. The
engines are plain pyzmq and msgspec."""

import struct
import sys

import msgspec

from _command import main
from _dialect import Engine, Service, removed, stored

TOKENS = list(range(1, 25))


def register(service, engine, instance, model="m", **more):
    answer = service.post("/register", {
        "endpoint": engine.endpoint, "type": "vLLM", "modelname": model,
        "instance_id": instance, "block_size": 4, "dp_rank": 0, **more})
    assert answer == {"status": "registered successfully",
                      "instance_id": instance}
    engine.wait_subscribed()


def query(service, tokens=TOKENS, model="m", **more):
    return service.post("/query", {"model": model, "token_ids": tokens,
                                   "block_size": 4, **more})


def row(longest, gpu, cpu=0, disk=0, **ranks):
    return {"longest_matched": longest, "GPU": gpu, "CPU": cpu, "DISK": disk,
            "DP": {rank[1:]: n for rank, n in ranks.items()}}


def test_tiers_are_each_medium_s_own_tokens():
    with Service() as service, Engine() as engine:
        register(service, engine, "e1")
        service.wait_number("e1", engine.publish(
            stored([1, 2], TOKENS[:8]),
            stored([3], TOKENS[8:12], 2, medium="cpu", extra_keys=[None]),
            stored([4, 5], TOKENS[12:20], 3, medium="disk",
                   extra_keys=[None, None])))
        assert query(service) == {
            "default": {"e1": row(20, 8, 4, 8, r0=20)}}
        # What is on the host as well is the host's, too.
        service.wait_number("e1", engine.publish(
            stored([1, 2], TOKENS[:8], medium="cpu")))
        assert query(service) == {
            "default": {"e1": row(20, 8, 12, 8, r0=20)}}
        # And what is only there, from the front on.
        service.wait_number("e1", engine.publish(removed(1)))
        assert query(service) == {
            "default": {"e1": row(20, 0, 12, 8, r0=20)}}


def test_ranks_are_those_of_one_instance():
    with Service() as service, Engine() as zero, Engine() as one:
        register(service, zero, "e1")
        register(service, one, "e1", dp_rank=1)
        zero.publish(stored([1, 2], TOKENS[:8]))
        one.publish(stored([1, 2, 3], TOKENS[:12]))
        service.wait_number("e1", 0)
        service.wait_number("e1", 0, rank=1)
        assert query(service) == {
            "default": {"e1": row(12, 12, r0=8, r1=12)}}
        answer = service.post("/unregister", {
            "type": "vLLM", "modelname": "m", "lora_name": "",
            "tenant_id": "default", "instance_id": "e1", "block_size": 4,
            "dp_rank": 1})
        assert answer == {"status": "unregistered successfully",
                          "removed_instances": ["e1|default|1"]}
        assert query(service) == {"default": {"e1": row(8, 8, r0=8)}}


def test_tenants_and_models_are_apart():
    with Service() as service, Engine() as a, Engine() as b, Engine() as c:
        register(service, a, "e1")
        register(service, b, "e1", tenant_id="acme")
        register(service, c, "e2", model="n", tenant_id="acme")
        a.publish(stored([1], TOKENS[:4]))
        b.publish(stored([1, 2], TOKENS[:8]))
        c.publish(stored([1, 2, 3], TOKENS[:12]))
        numbers = {(s["worker"], s["tenant"]): None for s in
                   service.json("GET", "/v1/sources")["sources"]}
        assert set(numbers) == {("e1", "default"), ("e1", "acme"),
                                ("e2", "acme")}
        service.wait_equal({"default": {"e1": row(4, 4, r0=4)}},
                           lambda: query(service))
        service.wait_equal({"acme": {"e1": row(8, 8, r0=8)}},
                           lambda: query(service, tenant_id="acme"))
        service.wait_equal({"acme": {"e2": row(12, 12, r0=12)}},
                           lambda: query(service, model="n",
                                         tenant_id="acme"))
        # A name is a service's only once: another model is another service.
        got = service.call("POST", "/register", msgspec.json.encode({
            "endpoint": c.endpoint, "type": "vLLM", "modelname": "m",
            "instance_id": "e2", "tenant_id": "acme", "block_size": 4,
            "dp_rank": 0}))
        assert got[0] == 409 and b"e2|acme|0 is of model n" in got[2], got


def test_adapters_and_salts():
    with Service() as service, Engine() as engine:
        register(service, engine, "e1")
        service.wait_number("e1", engine.publish(
            stored([1], TOKENS[:4]),
            stored([2, 3], TOKENS[:8], lora_name="ad"),
            stored([4, 5, 6], TOKENS[:12],
                   extra_keys=[["salt"], None, None]),
            stored([7, 8, 9, 10], TOKENS[:16], lora_id=5)))
        for more, n in (({}, 4), ({"lora_name": "", "cache_salt": ""}, 4),
                        ({"lora_name": "ad"}, 8), ({"cache_salt": "salt"}, 12),
                        ({"lora_id": 5}, 16), ({"cache_salt": "other"}, 0)):
            assert query(service, **more) == {
                "default": {"e1": row(n, n, r0=n)}}, more


def test_engine_hashes_of_every_form():
    big = (1 << 64) - 3
    digest = bytes(range(32))
    with Service() as service, Engine() as engine:
        register(service, engine, "e1")
        service.wait_number("e1", engine.publish(
            stored([big, 9007199254740993], TOKENS[:8]),
            stored([digest], [50] * 4)))
        for hashes in ([big, 9007199254740993], [-3, "9007199254740993"],
                       [str(big)], [hex(big), hex(9007199254740993)]):
            n = 4 * len(hashes)
            for name in ("seq_hashes", "block_hash"):
                got = service.post("/query_by_hash", {
                    "model": "m", name: hashes, "block_size": 4})
                assert got == {"default": {"e1": row(n, n, r0=n)}}, hashes
        for hashes in ([9007199254740992], [9007199254740994], []):
            got = service.post("/query_by_hash", {
                "model": "m", "seq_hashes": hashes, "block_size": 4})
            assert got == {"default": {"e1": row(0, 0, r0=0)}}, hashes
        got = service.post("/query_by_hash", {
            "model": "m", "seq_hashes": [digest.hex()], "block_size": 4})
        assert got == {"default": {"e1": row(4, 4, r0=4)}}


def test_msgpack_is_answered_as_the_newer_form():
    with Service() as service, Engine() as zero, Engine() as one:
        register(service, zero, "e1")
        register(service, one, "e1", dp_rank=1)
        service.wait_number("e1", zero.publish(
            stored([1, 2], TOKENS[:8]),
            stored([3], TOKENS[8:12], 2, medium="cpu", extra_keys=[None])))
        match = {"longest_matched": 12, "gpu": 8, "cpu": 12, "disk": 12,
                 "dp": {"0": 12, "1": 0},
                 "rank_matches": {"0": {"gpu": 8, "cpu": 12, "disk": 12},
                                  "1": {"gpu": 0, "cpu": 0, "disk": 0}}}
        none = {"longest_matched": 0, "gpu": 0, "cpu": 0, "disk": 0,
                "dp": {"0": 0, "1": 0},
                "rank_matches": {r: {"gpu": 0, "cpu": 0, "disk": 0}
                                 for r in "01"}}
        packed = struct.pack(f"<{len(TOKENS)}i", *TOKENS)
        for tokens in (TOKENS, packed):
            question = {"model": "m", "block_size": 4, "token_ids": tokens,
                        "tenant_id": "default", "lora_name": "",
                        "cache_salt": None}
            assert service.msgpack("/query", question) == {
                "instances": {"e1": match}}
            assert service.msgpack("/query", {
                **question, "instance_id": "e1"}) == {
                "instances": {"e1": match}}
            assert service.msgpack("/query", {
                **question, "cache_salt": "x"}) == {"instances": {"e1": none}}
            for unknown in ({"instance_id": "e5"}, {"model": "n"},
                            {"tenant_id": "acme"}):
                assert service.msgpack("/query", {**question, **unknown}) == {
                    "instances": {}}, unknown
        assert service.msgpack("/query_by_hash", {
            "model": "m", "block_size": 4, "seq_hashes": [1, 2, 3]}) == {
            "instances": {"e1": match}}
        assert service.msgpack("/query_by_hash", {
            "model": "m", "block_size": 4, "seq_hashes": [2]})[
                "instances"]["e1"]["longest_matched"] == 4


def test_msgpack_in_dynamo_s_spelling():
    with Service() as service, Engine() as engine:
        register(service, engine, "7")
        service.wait_number("7", engine.publish(stored([1, 2], TOKENS[:8])))
        want = {"frequencies": [],
                "instances": {"7": {"longest_matched": 8, "gpu": 8,
                                    "dp": {"0": 8}, "cpu": 8, "disk": 8}},
                "scores": {"7": {"0": 8}}}
        assert service.msgpack("/query", {
            "model_name": "m", "token_ids": TOKENS}) == want
        assert service.msgpack("/query_by_hash", {
            "model_name": "m", "block_hashes": [
                14643705804678351452, 16777012769546811212]}) == want
        assert service.msgpack("/query", {
            "model_name": "n", "token_ids": TOKENS}, 404) == {
            "error": "no indexer for model=n routing_group=default"}


def test_msgpack_that_is_not_right():
    with Service() as service:
        for body, reason, field in (
                (b"\xc1", "invalid_msgpack", None),
                (b"\x82\xa5model", "invalid_msgpack", None),
                ({"model": "m", "token_ids": "x"}, "invalid_type",
                 "token_ids"),
                ({"model": "m", "token_ids": [-1]}, "invalid_type",
                 "token_ids"),
                ({"model": 1, "token_ids": [1]}, "invalid_type", "model"),
                ({"model_name": "m"}, "missing", "token_ids"),
                ({"token_ids": [1]}, "missing", "model_name")):
            if not isinstance(body, bytes):
                body = msgspec.msgpack.encode(body)
            got = service.call("POST", "/query", body, "application/msgpack")
            assert got[:2] == (400, "application/msgpack"), (body, got)
            answer = msgspec.msgpack.decode(got[2])
            assert answer["reason"] == reason, (body, answer)
            assert answer.get("field") == field, (body, answer)
            assert isinstance(answer["error"], str) and answer["error"]


if __name__ == "__main__":
    main(sys.modules[__name__])
