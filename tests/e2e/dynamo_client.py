#!/usr/bin/env python3
"""A client of Dynamo's indexer service, written from its document only, against
ours: ranks, tiers, adapters, salts, forms of hashes, wrong types, dumps. The
engines are plain pyzmq and msgspec."""

import json
import signal
import sys
import threading
import time

from _command import main
from _dialect import (CLEARED, Engine, Service, removed, stored)

# Hashes of blocks of 16 tokens, 1 to 48: plain; with the adapter "my-lora";
# with the salt "tenant-a"; with both. Printed by the product itself.
PROMPT = list(range(1, 49))
PLAIN = [0xea06fc71a5ee6e88, 0x1fbf39bd106be0b5, 0xa8562fe663b7a097]
LORA = [0x3990f1b14309d7e6, 0x27c809c22da91b94, 0xe0ee5d0e535bfbf1]
SALT = [0x71742dfed90682a9, 0xb7db648aa3dfb040, 0x27ea5f8baebff2fd]
BOTH = [0x12ed440cccc38cf3, 0x9db0a52cbd130133, 0xde036775f15cf586]
NOTHING = {"frequencies": [], "instances": {}, "scores": {}}


def register(service, engine, worker, model="m", size=4, wait=True, **more):
    answer = service.post("/register", {
        "instance_id": worker, "endpoint": engine.endpoint,
        "model_name": model, "block_size": size, **more}, 201)
    assert answer == {"status": "ok"}
    if wait:
        engine.wait_subscribed()


def query(service, tokens, model="m", **more):
    return service.post("/query", {"token_ids": tokens, "model_name": model,
                                   **more})


def by_hash(service, hashes, model="m", **more):
    return service.post("/query_by_hash", {
        "block_hashes": hashes, "model_name": model, **more})


def on_gpu(**workers):
    """The answer where workers hold so many tokens on rank 0's device:
    w1=8 is worker 1."""
    held = {name[1:]: n for name, n in workers.items()}
    return {"frequencies": [],
            "instances": {w: {"longest_matched": n, "gpu": n, "dp": {"0": n},
                              "cpu": n, "disk": n} for w, n in held.items()},
            "scores": {w: {"0": n} for w, n in held.items()}}


def signed(hashes):
    return [h - (1 << 64) if h >= 1 << 63 else h for h in hashes]


# ---- ranks ----

def test_c14_ranks_come_and_go_alone():
    tokens = list(range(8))
    with Service() as service, Engine() as zero, Engine() as one:
        register(service, zero, 5)
        zero.publish(stored([1, 2], tokens))
        # The batch's rank counts, whatever was registered.
        service.wait_number(
            5, zero.publish(stored([1], tokens[:4]), rank=1))
        assert query(service, tokens) == {
            "frequencies": [],
            "instances": {"5": {"longest_matched": 8, "gpu": 8,
                                "dp": {"0": 8, "1": 4}, "cpu": 8, "disk": 8}},
            "scores": {"5": {"0": 8, "1": 4}}}
        # A clear in a batch of rank 1 is rank 1's.
        service.wait_number(5, zero.publish(CLEARED, rank=1))
        assert query(service, tokens) == on_gpu(w5=8)
        register(service, one, 5, dp_rank=1)
        service.wait_number(5, one.publish(stored([7], tokens[:4])), rank=1)
        assert query(service, tokens)["scores"] == {"5": {"0": 8, "1": 4}}
        # Rank 0 goes alone, though no group is named.
        service.post("/unregister", {"instance_id": 5, "model_name": "m",
                                     "dp_rank": 0})
        assert query(service, tokens)["scores"] == {"5": {"1": 4}}
        service.post("/unregister", {"instance_id": 5, "model_name": "m",
                                     "dp_rank": 0}, 404)
        # Without a rank: all of it; and the model's index with it.
        service.post("/unregister", {"instance_id": 5, "model_name": "m"})
        assert service.post("/query", {"token_ids": tokens,
                                       "model_name": "m"}, 404) == {
            "error": "no indexer for model=m routing_group=default"}


def test_ranks_of_many_workers():
    tokens = list(range(12))
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        for rank in range(40):
            engine.publish(stored([100 + rank], tokens[:4]), rank=rank)
        service.wait_number(1, 39)
        answer = query(service, tokens)
        assert answer["scores"] == {"1": {str(r): 4 for r in range(40)}}
        assert answer["instances"]["1"]["dp"] == answer["scores"]["1"]


def test_c29_a_worker_that_comes_again_is_empty():
    tokens = list(range(4))
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        service.wait_number(1, engine.publish(stored([1], tokens)))
        assert query(service, tokens) == on_gpu(w1=4)
        service.post("/unregister", {"instance_id": 1, "model_name": "m"})
        register(service, engine, 1)
        assert query(service, tokens) == NOTHING


def test_an_id_of_64_bits():
    worker = (1 << 64) - 1
    tokens = list(range(4))
    with Service() as service, Engine() as engine:
        register(service, engine, worker)
        service.wait_number(worker, engine.publish(stored([1], tokens)))
        assert query(service, tokens)["scores"] == {str(worker): {"0": 4}}
        workers = service.json("GET", "/workers")
        assert [one["instance_id"] for one in workers] == [worker]


# ---- tiers ----

def test_c32_c34_tiers_are_cumulative_tokens():
    tokens = list(range(10))  # blocks of 2: gpu 0, 1; cpu 2, 3; disk 4
    with Service() as service, Engine() as engine:
        register(service, engine, 1, size=2)
        engine.publish(
            stored([1, 2], tokens[:4], size=2),
            stored([3, 4], tokens[4:8], 2, 2, "CPU", extra_keys=[None] * 2))
        service.wait_number(1, engine.publish(
            stored([5], tokens[8:], 4, 2, "DISK", extra_keys=[None])))
        assert query(service, tokens) == {
            "frequencies": [],
            "instances": {"1": {"longest_matched": 10, "gpu": 4,
                                "dp": {"0": 4}, "cpu": 8, "disk": 10}},
            "scores": {"1": {"0": 4}}}
        # Each tier's own tokens are in Mooncake's answer.
        assert service.post("/query", {
            "token_ids": tokens, "model": "m"}) == {
            "default": {"1": {"longest_matched": 10, "DP": {"0": 10},
                              "GPU": 4, "CPU": 4, "DISK": 2}}}
        # Only below the device: no score, but an instance.
        service.wait_number(1, engine.publish(
            stored([1], tokens[:2], None, 2, "CPU"), removed(1)))
        assert query(service, tokens[:2]) == {
            "frequencies": [],
            "instances": {"1": {"longest_matched": 2, "gpu": 0,
                                "dp": {"0": 0}, "cpu": 2, "disk": 2}},
            "scores": {}}


def test_media_by_any_name():
    names = {None: "gpu", "": "gpu", "GPU": "gpu", "gpu": "gpu",
             "CPU": "cpu", "CPU_PINNED": "cpu", "CPU_TIER1": "cpu",
             "host_pinned": "cpu", "DISK": "disk", "NVME": "disk",
             "STORAGE": "disk", "EXTERNAL": "disk", "NETWORK": "disk",
             "REMOTE": "disk", "SHARED": "disk"}
    tiers = ["gpu", "cpu", "disk"]
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        for i, (name, tier) in enumerate(names.items()):
            tokens = [1000 + i] * 4
            service.wait_number(1, engine.publish(
                stored([50 + i], tokens, medium=name, extra_keys=[None])))
            got = query(service, tokens)["instances"]["1"]
            want = {t: 4 * (tiers.index(t) >= tiers.index(tier))
                    for t in tiers}
            assert {t: got[t] for t in tiers} == want, (name, got)


# ---- adapters and salts ----

def test_adapters_and_salts():
    with Service() as service, Engine() as plain, Engine() as lora, \
            Engine() as vllm, Engine() as sglang, Engine() as both:
        for worker, engine in enumerate((plain, lora, vllm, sglang, both)):
            register(service, engine, worker, size=16)
        plain.publish(stored([1, 2, 3], PROMPT, size=16))
        lora.publish(stored([4, 5, 6], PROMPT, size=16, lora_name="my-lora"))
        # vLLM: the first block's extra keys, with Dynamo's prefix.
        vllm.publish(stored(
            [7, 8, 9], PROMPT, size=16,
            extra_keys=[["dynamo-cache-salt:tenant-a"], None, None]))
        # SGLang: a field, as it is.
        sglang.publish(stored([10, 11], PROMPT[:32], size=16,
                              cache_salt="tenant-a"))
        both.publish(stored(
            [12, 13, 14], PROMPT, size=16, lora_name="my-lora",
            extra_keys=[["my-lora", "dynamo-cache-salt:tenant-a"],
                        ["my-lora"], ["my-lora"]]))
        for worker in range(5):
            service.wait_number(worker, 0)
        assert query(service, PROMPT) == on_gpu(w0=48)
        assert query(service, PROMPT, lora_name="", cache_salt="") == \
            on_gpu(w0=48)
        assert query(service, PROMPT, lora_name=None) == on_gpu(w0=48)
        assert query(service, PROMPT, lora_name="my-lora") == on_gpu(w1=48)
        assert query(service, PROMPT, cache_salt="tenant-a") == \
            on_gpu(w2=48, w3=32)
        assert query(service, PROMPT, cache_salt="tenant-b") == NOTHING
        assert query(service, PROMPT, lora_name="my-lora",
                     cache_salt="tenant-a") == on_gpu(w4=48)
        # The hashes that carry adapter and salt themselves.
        assert by_hash(service, PLAIN) == on_gpu(w0=48)
        assert by_hash(service, LORA) == on_gpu(w1=48)
        assert by_hash(service, SALT) == on_gpu(w2=48)
        assert by_hash(service, BOTH) == on_gpu(w4=48)
        # They are in the dump, so that a reader of it can not mix them up.
        events = service.json("GET", "/dump")["m:default"]["events"]
        hashes = {event["worker_id"]: [
            block["tokens_hash"] for block in
            event["event"]["data"]["stored"]["blocks"]] for event in events}
        # A salt that is not Dynamo's has no hash of Dynamo's.
        assert hashes == {0: PLAIN, 1: LORA, 2: SALT, 4: BOTH}


def test_an_instance_with_both_forms_of_a_salt():
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        tokens = list(range(8))
        service.wait_number(1, engine.publish(
            stored([1], tokens[:4], cache_salt="s"),
            stored([2, 3], tokens,
                   extra_keys=[["dynamo-cache-salt:s"], None])))
        assert query(service, tokens, cache_salt="s") == on_gpu(w1=8)
        service.wait_number(1, engine.publish(removed(3)))
        assert query(service, tokens, cache_salt="s") == on_gpu(w1=4)


# ---- hashes ----

def test_a21_hashes_of_every_form():
    with Service() as service, Engine() as engine:
        register(service, engine, 1, size=16)
        service.wait_number(1, engine.publish(
            stored([1, 2, 3], PROMPT, size=16)))
        assert max(PLAIN) >= 1 << 63
        for form in (PLAIN, signed(PLAIN), [str(h) for h in PLAIN],
                     [hex(h) for h in PLAIN],
                     [PLAIN[0], str(PLAIN[1]), signed(PLAIN)[2]]):
            assert by_hash(service, form) == on_gpu(w1=48), form
        assert by_hash(service, PLAIN[:2]) == on_gpu(w1=32)
        assert by_hash(service, PLAIN[1:]) == NOTHING
        assert by_hash(service, []) == NOTHING
        # Not through a double: the neighbour is another hash.
        for h in (9007199254740993, (1 << 64) - 1, 1 << 63):
            assert by_hash(service, [h]) == NOTHING
        got = service.call("POST", "/query_by_hash", json.dumps(
            {"block_hashes": ["ab" * 32], "model_name": "m"}))
        assert got[0] == 422 and b"64 bits" in got[2], got
        # What is said beside them is not Dynamo's.
        assert by_hash(service, PLAIN, block_size=64, lora_name="x") == \
            on_gpu(w1=48)


def test_a20_events_of_pools():
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        big = (1 << 63) + 5
        engine.publish({"event_type": "BlockStored", "seq_hashes": [str(big)],
                        "backend_id": "b", "medium": "cpu", "block_size": 4,
                        "parent_hash": None, "token_ids": None})
        service.wait_number(1, engine.publish(
            {"event_type": "BlockStored", "type": "BlockStored",
             "seq_hashes": [77], "block_hashes": [77], "medium": "disk"}))
        for form in (big, big - (1 << 64), str(big), hex(big)):
            got = service.post("/query_by_hash", {
                "model": "m", "seq_hashes": [form], "block_size": 4})
            assert got["default"]["1"]["CPU"] == 4, (form, got)
        got = service.post("/query_by_hash", {
            "model": "m", "block_hash": [77], "block_size": 4})
        assert got["default"]["1"]["DISK"] == 4, got
        assert service.source(1)["blocks"]["DISK"] == 1


# ---- bodies that are not right ----

def test_bodies_of_another_shape():
    said = "Failed to deserialize the JSON body into the target type: "
    broken = "Failed to parse the request body as JSON: "
    rows = [
        ("/register", "", 400, broken + "EOF while parsing a value at line 1 "
         "column 0"),
        ("/register", '{"instance_id": 1', 400, None),
        ("/register", '{"instance_id": -1}', 422, said + "instance_id: "
         "invalid value: integer `-1`, expected u64 at line 1 column 18"),
        ("/register", '{"instance_id": 1.5}', 422, said + "instance_id: "
         "invalid type: floating point `1.5`, expected u64 at line 1 column "
         "19"),
        ("/register", '{"instance_id": 1e2}', 422, said + "instance_id: "
         "invalid type: floating point `100.0`, expected u64 at line 1 "
         "column 19"),
        ("/register", '{"instance_id": null}', 422, said + "instance_id: "
         "invalid type: null, expected u64 at line 1 column 20"),
        ("/register", '{"instance_id": true}', 422, said + "instance_id: "
         "invalid type: boolean `true`, expected u64 at line 1 column 20"),
        ("/register", '{"instance_id": [1]}', 422, said + "instance_id: "
         "invalid type: sequence, expected u64 at line 1 column 16"),
        ("/register", '{"instance_id":1,\n "endpoint":7}', 422, said +
         "endpoint: invalid type: integer `7`, expected a string at line 2 "
         "column 13"),
        ("/register", '{"instance_id":1,"instance_id":1}', 422, said +
         "duplicate field `instance_id` at line 1 column 30"),
        ("/register", "{}", 422, said + "missing field `instance_id` at line "
         "1 column 2"),
        ("/register", '{"instance_id":1,"endpoint":"tcp://h:1",'
         '"model_name":"m","block_size":4294967296}', 422, said +
         "block_size: invalid value: integer `4294967296`, expected u32 at "
         "line 1 column 80"),
        ("/unregister", '{"instance_id":1}', 422, said + "missing field "
         "`model_name` at line 1 column 17"),
        ("/register_peer", '{"url":1}', 422, said + "url: invalid type: "
         "integer `1`, expected a string at line 1 column 8"),
        ("/test/pause_listener", '{"instance_id":"1"}', 422, said +
         'instance_id: invalid type: string "1", expected u64 at line 1 '
         "column 18"),
        ("/query", "{}", 422, said + "missing field `token_ids` at line 1 "
         "column 2"),
        ("/query", '{"token_ids":[1],"model_name":null}', 422, said +
         "model_name: invalid type: null, expected a string at line 1 column "
         "34"),
        ("/query", '{"token_ids":[4294967296],"model_name":"m"}', 422, None),
        ("/query", '{"token_ids":[1.5],"model_name":"m"}', 422, None),
        ("/query", '{"token_ids":["1"],"model_name":"m"}', 422, None),
        ("/query", '{"token_ids":[[1]],"model_name":"m"}', 422, None),
        ("/query", '{"token_ids":1,"model_name":"m"}', 422, None),
        ("/query", '{"token_ids":[1,],"model_name":"m"}', 400, None),
        ("/query", '{"token_ids":[1],"model_name":"m"', 400, None),
        ("/query", '{"token_ids":[1],"model_name":"m"} x', 400, None),
        ("/query", '{"token_ids":[1],"model_name":["m"]}', 422, None),
        ("/query", "[]", 422, None),
        ("/query_by_hash", '{"block_hashes":[true],"model_name":"m"}', 422,
         None),
        ("/query_by_hash", '{"model_name":"m"}', 422, said + "missing field "
         "`block_hashes` at line 1 column 18"),
    ]
    with Service() as service:
        for path, body, status, text in rows:
            got = service.call("POST", path, body)
            assert got[0] == status, (path, body, got)
            assert got[1] == "text/plain; charset=utf-8", (path, body, got)
            prefix = said if status == 422 else broken
            assert got[2].decode().startswith(prefix), (path, body, got)
            assert text in (None, got[2].decode()), (path, body, got)
        for path in ("/register", "/unregister", "/query", "/query_by_hash",
                     "/register_peer", "/test/resume_listener"):
            for media in (None, "text/plain", "application/jsonx"):
                got = service.call("POST", path, "{}", media)
                assert got == (
                    415, "text/plain; charset=utf-8", b"Expected request with "
                    b"`Content-Type: application/json`"), (path, media, got)
            got = service.call("POST", path, "{", "application/json; "
                               "charset=utf-8")
            assert got[0] == 400, (path, got)
            got = service.call("GET", path)
            assert got == (405, None, b""), (path, got)


def test_endpoints_that_are_none():
    rows = {
        "tcp": "missing scheme", "": "missing scheme",
        "tcp://": "missing address", "ipc://": "missing address",
        "tcp://h": "missing TCP port", "tcp://h:": "missing TCP port",
        "tcp://:5557": "missing TCP host", "tcp://[::1": "missing closing `]`",
        "tcp://[::1]": "missing TCP port",
        "tcp://h:x": "invalid TCP port: invalid digit found in string",
        "tcp://h:65536":
            "invalid TCP port: number too large to fit in target type",
        "http://h:1": "unsupported scheme `http`",
    }
    with Service() as service:
        for endpoint, why in rows.items():
            body = {"instance_id": 1, "endpoint": endpoint,
                    "model_name": "m", "block_size": 4}
            text = f"invalid ZMQ endpoint `{endpoint}`: {why}"
            assert service.post("/register", body, 400) == {"error": text}
            if endpoint:
                body.update(endpoint="tcp://127.0.0.1:1",
                            replay_endpoint=endpoint)
                assert service.post("/register", body, 400) == {
                    "error": f"invalid replay endpoint `{endpoint}`: {text}"}
        assert service.json("GET", "/workers") == []
        # One that nobody answers is none of these.
        service.post("/register", {
            "instance_id": 1, "endpoint": "tcp://127.0.0.1:1",
            "model_name": "m", "block_size": 4}, 201)
        assert query(service, [1, 2, 3, 4]) == NOTHING


# ---- workers, groups, peers ----

def test_groups_and_models_are_apart():
    tokens = list(range(4))
    with Service() as service, Engine() as one, Engine() as two, \
            Engine() as three:
        register(service, one, 1)
        register(service, two, 2, routing_group="g")
        register(service, three, 3, model="org/m:v2@x", size=8)
        one.publish(stored([1], tokens))
        two.publish(stored([1], tokens))
        three.publish(stored([1], tokens + tokens, size=8))
        for worker in (1, 2, 3):
            service.wait_number(worker, 0)
        assert query(service, tokens) == on_gpu(w1=4)
        assert query(service, tokens, routing_group="g") == on_gpu(w2=4)
        assert query(service, tokens * 2, "org/m:v2@x") == on_gpu(w3=8)
        assert service.post("/query", {
            "token_ids": tokens, "model_name": "m", "routing_group": "h"},
            404) == {"error": "no indexer for model=m routing_group=h"}
        names = [(w["instance_id"], w["model_name"], w["routing_group"])
                 for w in service.json("GET", "/workers?model_name=m")]
        assert sorted(names) == [(1, "m", "default"), (2, "m", "g")]
        names = [w["instance_id"] for w in service.json(
            "GET", "/workers?model_name=m&routing_group=g")]
        assert names == [2]
        # A colon in a model's name does not break the keys of a dump.
        dump = service.json("GET", "/dump")
        assert {key: (index["block_size"], len(index["events"]))
                for key, index in dump.items()} == {
            "m:default": (4, 1), "m:g": (4, 1), "org/m:v2@x:default": (8, 1)}


def test_peers_are_kept():
    with Service() as service:
        for url in ("http://a:1", "http://b:2", "http://a:1"):
            service.post("/register_peer", {"url": url}, 201)
        assert sorted(service.json("GET", "/peers")) == [
            "http://a:1", "http://b:2"]
        service.post("/deregister_peer", {"url": "http://a:1"})
        assert service.json("GET", "/peers") == ["http://b:2"]


def test_a_paused_listener_hears_nothing():
    tokens = list(range(8))
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        service.wait_number(1, engine.publish(stored([1], tokens[:4])))
        service.post("/test/pause_listener", {"instance_id": 1})
        worker, = service.json("GET", "/workers")
        assert worker["status"] == "paused"
        assert worker["listeners"]["0"]["status"] == "paused"
        assert query(service, tokens) == on_gpu(w1=4)
        service.post("/test/resume_listener", {"instance_id": 1})
        assert service.post("/test/resume_listener", {"instance_id": 1},
                            409) == {"error": "instance 1 dp_rank 0 cannot be "
                                     "resumed from status active"}
        engine.wait_subscribed()
        service.wait_number(1, engine.publish(stored([2], tokens[4:], 1)))
        assert query(service, tokens) == on_gpu(w1=8)


# ---- dumps ----

class Tree:
    """What a reader of RouterEvents knows of one worker's rank and tier."""

    def __init__(self):
        self.blocks = {}  # hash -> (parent, tokens_hash)
        self.held = set()

    def take(self, data):
        if "removed" in data:
            self.held -= set(data["removed"]["block_hashes"])
            return
        parent = data["stored"]["parent_hash"]
        assert parent is None or parent in self.blocks, "no such parent"
        for block in data["stored"]["blocks"]:
            assert block["block_hash"] not in self.held
            self.blocks[block["block_hash"]] = (parent, block["tokens_hash"])
            parent = block["block_hash"]
            self.held.add(parent)

    def match(self, hashes):
        parent, n = None, 0
        for wanted in hashes:
            found = [h for h, (p, t) in self.blocks.items()
                     if p == parent and t == wanted]
            if not found or found[0] not in self.held:
                break
            parent, n = found[0], n + 1
        return n


def test_a_dump_says_what_queries_say():
    """Holes in chains, branches, and a block that was waited for."""
    with Service() as service, Engine() as engine, Engine() as other:
        register(service, engine, 1)
        register(service, other, 2)
        tokens = list(range(1, 41))
        engine.publish(stored(list(range(1, 11)), tokens))
        engine.publish(stored([21, 22], [7] * 8, 4))
        engine.publish(removed(3, 4, 9))
        engine.publish(stored([90], [8] * 4, 89))  # nobody knows 89
        other.publish(stored([31, 32, 33], tokens[:12]), removed(31))
        service.wait_number(1, 3)
        service.wait_number(2, 0)
        trees = {}
        for event in service.json("GET", "/dump")["m:default"]["events"]:
            assert event["storage_tier"] == "device"
            trees.setdefault(event["worker_id"], Tree()).take(
                event["event"]["data"])
        assert trees[1].held == {1, 2, 5, 6, 7, 8, 10, 21, 22}
        assert trees[2].held == {32, 33}
        chain = []
        for h in range(1, 11):
            chain.append(trees[1].blocks[h][1] if h in trees[1].held else None)
        assert trees[1].match(chain) == 2
        # Filled again, everything behind matches: as the tree has it, too.
        service.wait_number(1, engine.publish(
            stored([3, 4], tokens[8:16], 2)))
        assert query(service, tokens) == on_gpu(w1=32)
        for event in service.json("GET", "/dump")["m:default"]["events"]:
            if event["worker_id"] == 1 and "removed" in event["event"]["data"]:
                holes = event["event"]["data"]["removed"]["block_hashes"]
                assert len(holes) == 1  # that of 9


def test_hashes_in_bytes_are_their_last_eight():
    digest = bytes(range(32))
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        service.wait_number(1, engine.publish(
            stored([digest], [1, 2, 3, 4])))
        event, = service.json("GET", "/dump")["m:default"]["events"]
        assert event["event"]["data"]["stored"]["blocks"][0] == {
            "block_hash": int.from_bytes(digest[-8:], "big"),
            "tokens_hash": 14643705804678351452, "mm_extra_info": None}


def test_a_dump_of_many_blocks_is_whole():
    n = 20000
    with Service() as service, Engine() as engine:
        register(service, engine, 1)
        parent = None
        for first in range(0, n, 100):
            hashes = list(range(first + 1, first + 101))
            last = engine.publish(stored(
                hashes, [t % 97 for t in range(4 * first, 4 * first + 400)],
                parent))
            parent = hashes[-1]
        service.wait_number(1, last)
        tree = Tree()
        for event in service.json("GET", "/dump")["m:default"]["events"]:
            tree.take(event["event"]["data"])
        assert tree.held == set(range(1, n + 1))


# ---- many at once ----

def churn(service, worker, endpoint, failures):
    """Register, ask, dump and unregister, again and again."""
    client = service.connect()
    body = {"instance_id": worker, "model_name": "m"}
    steps = [
        ("POST", "/register", {**body, "endpoint": endpoint,
                               "block_size": 4}, {201}),
        ("POST", "/query", {"token_ids": [1] * 16, "model_name": "m"}, {200}),
        ("POST", "/query", {"token_ids": [1] * 16, "model": "m"}, {200}),
        ("POST", "/query_by_hash", {"block_hashes": [1], "model_name": "m"},
         {200}),
        ("GET", "/workers", None, {200}),
        ("GET", "/dump", None, {200, 503}),  # only so many at a time
        ("GET", "/global_view", None, {200, 503}),
        ("GET", "/services", None, {200}),
        ("POST", "/register_peer", {"url": f"http://h:{worker}"}, {201}),
        ("POST", "/unregister", body, {200}),
    ]
    try:
        for _ in range(15):
            for method, path, ask, expected in steps:
                got = service.call(method, path, ask and json.dumps(ask),
                                   client=client)
                if got[0] not in expected:
                    failures.append((worker, path, got))
                elif got[0] == 200:
                    json.loads(got[2])
    except Exception as error:  # every kind of failure is one
        failures.append((worker, repr(error)))
    client.close()


def test_many_clients_at_once():
    with Service() as service, Engine() as engine:
        failures = []
        threads = [threading.Thread(
            target=churn, args=(service, worker, engine.endpoint, failures))
            for worker in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            engine.publish(stored([1, 2], [1] * 8), removed(2))
            time.sleep(0.002)
        for thread in threads:
            thread.join()
        assert not failures, failures[:5]
        assert service.json("GET", "/workers") == []
        assert service.json("GET", "/dump") == {}
        assert len(service.json("GET", "/peers")) == 8
        service.signal(signal.SIGTERM)
        assert service.end() == 0, service.err[-20:]


if __name__ == "__main__":
    main(sys.modules[__name__])
