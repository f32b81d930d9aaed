#!/usr/bin/env python3
# ctest-timeout: 4200
# ctest-label: long
# ctest-serial: yes
"""The service with workers that come and go, for a long time.

Twelve engines publish chains of blocks and remove them again. Every now and
then a worker is unregistered and another one, of a name never used before, is
registered at one of the engines; meanwhile prompts are asked for. Judged:

  * the resident size of the service is flat: the median over the last quarter
    is at most 5 % or 4 MiB above the median over the second quarter;
  * every question and registration is answered as it should be;
  * a worker that was unregistered is in no answer.

    service.py [--seconds N] [--seed N]
"""

import argparse
import http.client
import json
import random
import re
import struct
import subprocess
import sys
import threading
import time

import msgspec
import zmq

from _soak import flat, rss, spawn

BLOCK = 16
CHAIN = 8
ENGINES = 12
FORGET = 200  # chains an engine holds at a time


class Engines(threading.Thread):
    """Publishers that store chains and remove the oldest ones."""

    def __init__(self, rate):
        super().__init__(daemon=True)
        self.context = zmq.Context()
        self.rate = rate
        self.sockets, self.endpoints = [], []
        for _ in range(ENGINES):
            socket = self.context.socket(zmq.PUB)
            socket.linger = 0
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            self.sockets.append(socket)
            self.endpoints.append(f"tcp://127.0.0.1:{port}")
        self.number = 0
        self.ended = threading.Event()

    @staticmethod
    def hashes(chain):
        return [chain * CHAIN + i + 1 for i in range(CHAIN)]

    @staticmethod
    def tokens(chain):
        return [(chain * 7919 + i) % 100_000 for i in range(CHAIN * BLOCK)]

    def batch(self, chain):
        events = [{"type": "BlockStored", "block_hashes": self.hashes(chain),
                   "parent_block_hash": None, "token_ids": self.tokens(chain),
                   "block_size": BLOCK, "medium": "GPU"}]
        if chain >= FORGET:
            events.append({"type": "BlockRemoved", "medium": "GPU",
                           "block_hashes": self.hashes(chain - FORGET)})
        return msgspec.msgpack.encode([1.5, events, None])

    def run(self):
        while not self.ended.wait(1 / self.rate):
            payload = self.batch(self.number)
            number = struct.pack(">Q", self.number)
            for socket in self.sockets:
                socket.send_multipart([b"", number, payload])
            self.number += 1

    def close(self):
        self.ended.set()
        self.join()
        for socket in self.sockets:
            socket.close()
        self.context.term()


class Client:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port,
                                                     timeout=60)

    def ask(self, method, path, body=None):
        self.connection.request(
            method, path, None if body is None else json.dumps(body),
            {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None


def start():
    """The service and its port."""
    process = spawn("serve", "--listen", "127.0.0.1:0", "--log-level", "info",
                    stderr=subprocess.PIPE)
    for line in process.stderr:
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", line)
        if found:
            threading.Thread(target=lambda: [None for _ in process.stderr],
                             daemon=True).start()
            return process, int(found.group(1))
    sys.exit("the service does not start")


def asks(port, engines, ended, wrong):
    client = Client(port)
    draw = random.Random(port)
    while not ended.is_set():
        chain = max(engines.number - draw.randrange(FORGET), 0)
        status, _ = client.ask("POST", "/v1/query", {
            "model": "m", "tokens": engines.tokens(chain)})
        # The model is there as soon as a worker is.
        if status not in (200, 404):
            wrong.append(status)
        time.sleep(0.002)


def run(seconds, seed, memory=True):
    """Whether all was as it should be; memory: judge that, too."""
    draw = random.Random(seed)
    engines = Engines(rate=50)
    process, port = start()
    client = Client(port)
    ended, wrong = threading.Event(), []
    workers, samples, count = {}, [], 0
    engines.start()
    asker = threading.Thread(target=asks, args=(port, engines, ended, wrong))
    asker.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if len(workers) == ENGINES:
            worker = draw.choice(list(workers))
            status, _ = client.ask(
                "DELETE", f"/v1/sources/{workers.pop(worker)}")
            wrong += [status] if status != 200 else []
            status, got = client.ask("POST", "/v1/query", {
                "model": "m", "tokens": engines.tokens(engines.number)})
            if status == 200 and worker in [
                    row["worker"] for row in got["prompts"][0]["workers"]]:
                wrong.append(f"{worker} is still in answers")
        status, got = client.ask("POST", "/v1/sources", {
            "worker": f"w{count}", "model": "m",
            "endpoint": engines.endpoints[count % ENGINES]})
        if status == 201:
            workers[f"w{count}"] = got["id"]
        else:
            wrong.append((status, got))
        count += 1
        samples.append(rss(process.pid) or 0)
        time.sleep(0.05)
    alive = process.poll() is None
    ended.set()
    asker.join()
    process.terminate()
    status = process.wait(60)
    engines.close()
    print(f"{count} workers came, {engines.number} batches of each engine; "
          f"the service {'ended with ' + str(status) if alive else 'died'}; "
          f"{len(wrong)} wrong answers {wrong[:5]}")
    good = not memory or flat("service", samples)
    return good and alive and not wrong and status in (0, 143)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(0 if run(arguments.seconds, arguments.seed) else 1)


if __name__ == "__main__":
    main()
