#!/usr/bin/env python3
# ctest-timeout: 300
# ctest-serial: yes
"""The service under what a fleet does to it: a burst that a publisher's queue
can not hold, and many sources of which some are dead and some come and go.

Publishers are pyzmq's, and so is what they serve at their replay endpoint.
"""

import http.client
import json
import resource
import struct
import sys
import threading
import time

import msgspec
import zmq

from _command import LIMIT, main
from _dialect import Service, context

BLOCK = 4
END = struct.pack(">q", -1)


def batch(number):
    """One block behind the last one of a chain of eight."""
    parent = None if number % 8 == 0 else number
    return msgspec.msgpack.encode([1.5, [{
        "type": "BlockStored", "block_hashes": [number + 1],
        "parent_block_hash": parent,
        "token_ids": [number * BLOCK + i for i in range(BLOCK)],
        "block_size": BLOCK, "medium": "GPU"}], None])


class Burst(threading.Thread):
    """A publisher with a queue of 1,000 that says n batches as fast as it can,
    and then serves replay; replay False: it serves none, and says something now
    and then, because nothing else shows that the end of a burst was dropped."""

    def __init__(self, n, replay=True):
        super().__init__(daemon=True)
        self.payloads = [batch(number) for number in range(n)]
        self.pub = context.socket(zmq.XPUB)
        self.pub.linger = 0
        self.pub.sndhwm = 1000
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router = context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.sndhwm = 0
        self.replay = self.router.bind_to_random_port("tcp://127.0.0.1") \
            if replay else None
        self.ended = threading.Event()

    def run(self):
        self.pub.recv()
        for number, payload in enumerate(self.payloads):
            self.say(number, payload)
        number = len(self.payloads)
        while self.replay is None and not self.ended.wait(0.05):
            self.say(number, batch(number))
            number += 1
        while not self.ended.is_set():
            if not self.router.poll(20):
                continue
            who, _, first = self.router.recv_multipart()
            for number in range(struct.unpack(">Q", first)[0],
                                len(self.payloads)):
                self.router.send_multipart(
                    [who, b"", b"", struct.pack(">Q", number),
                     self.payloads[number]])
            self.router.send_multipart([who, b"", b"", END, b""])

    def say(self, number, payload):
        self.pub.send_multipart([b"", struct.pack(">Q", number), payload])

    def close(self):
        self.ended.set()
        self.join()
        self.pub.close()
        self.router.close()


def register(service, worker, burst, **more):
    body = {"worker": worker, "model": "m", "rank": 0,
            "endpoint": f"tcp://127.0.0.1:{burst.port}", **more}
    if burst.replay:
        body["replay_endpoint"] = f"tcp://127.0.0.1:{burst.replay}"
    service.post("/v1/sources", body, 201)


def longest(service, worker, chain):
    tokens = [chain * 8 * BLOCK + i for i in range(8 * BLOCK)]
    answer = service.post("/v1/query", {
        "model": "m", "tokens": tokens, "workers": [worker]})
    rows = answer["prompts"][0]["workers"]
    return rows[0]["longest"] if rows else 0


def test_a_burst_above_the_high_water_mark():
    """Nothing is missing where there is replay."""
    n = 16000
    burst = Burst(n)
    with Service() as service:
        register(service, "w", burst)
        burst.start()
        source = service.wait_number("w", n - 1)
        service.wait_equal("live", lambda: service.source("w")["state"])
        chains = [chain for chain in range(n // 8)
                  if longest(service, "w", chain) != 8 * BLOCK]
        assert chains == [], chains[:10]
        assert source["missing"] is None, source
        burst.close()


def test_a_burst_without_replay():
    """What the publisher's queue dropped is said, or nothing was."""
    n = 16000
    burst = Burst(n, replay=False)
    with Service() as service:
        register(service, "w", burst)
        burst.start()
        service.wait_number("w", n - 1)
        source = service.source("w")
        short = [chain for chain in range(n // 8)
                 if longest(service, "w", chain) != 8 * BLOCK]
        lost = source["counters"]["batches_lost"]
        assert bool(lost) == (source["state"] == "degraded"), source
        assert lost or not short, (lost, short[:10])
        burst.close()


def dead_port():
    """Where nobody listens, and nobody will while this process lives."""
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    socket.unbind(f"tcp://127.0.0.1:{port}")
    return port


def ask_all_the_while(service, ended, slow):
    client = service.connect()
    body = json.dumps({"model": "m", "tokens": list(range(64))})
    while not ended.is_set():
        begin = time.monotonic()
        status = service.call("POST", "/v1/query", body, client=client)[0]
        assert status == 200, status
        slow.append(time.monotonic() - begin)
    client.close()


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_many_sources_of_which_some_are_dead():
    """400 sources, 60 of them dead or coming and going: those that live are
    followed, registrations and questions go on, memory is bounded."""
    n, dead, rounds = 400, 60, 4
    engines = []
    for _ in range(n - dead):
        socket = context.socket(zmq.PUB)
        socket.linger = 0
        engines.append((socket, socket.bind_to_random_port(
            "tcp://127.0.0.1")))
    with Service() as service:
        ended, slow = threading.Event(), []
        for i, (_, port) in enumerate(engines):
            service.post("/v1/sources", {
                "worker": f"w{i}", "model": "m",
                "endpoint": f"tcp://127.0.0.1:{port}"}, 201)
        asker = threading.Thread(target=ask_all_the_while,
                                 args=(service, ended, slow))
        asker.start()
        sizes = []
        for _ in range(rounds):
            ids = []
            for i in range(dead):
                ids.append(service.post("/v1/sources", {
                    "worker": f"dead{i}", "model": "m",
                    "endpoint": f"tcp://127.0.0.1:{dead_port()}"},
                    201)["id"])
            for id_ in ids:
                service.json("DELETE", f"/v1/sources/{id_}")
            sizes.append(resident(service.process.pid))

        def connected():
            return sum(source["connected"] for source in
                       service.json("GET", "/v1/sources")["sources"])

        service.wait_equal(n - dead, connected)
        for number in range(3):
            for socket, _ in engines:
                socket.send_multipart(
                    [b"", struct.pack(">Q", number), batch(number)])
        service.wait_equal(n - dead, lambda: service.post("/v1/query", {
            "model": "m", "tokens": list(range(3 * BLOCK))})
            ["prompts"][0]["total"])
        ended.set()
        asker.join(LIMIT)
        assert len(slow) > rounds, slow
        # The first round makes room; the later ones use it again.
        assert sizes[-1] < sizes[0] + (64 << 20), sizes
    for socket, _ in engines:
        socket.close()


if __name__ == "__main__":
    main(sys.modules[__name__])
