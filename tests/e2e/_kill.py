"""A service that is killed under load, and what it must say afterwards.

Engines (nothing but pyzmq and msgspec) publish all the time and serve replays;
each keeps the truth about its own cache. The service writes its state twenty
times a second, is killed with SIGKILL at any moment, and started again from
what is there. Whenever a source says that it is live at the engine's last
batch, its dump must be the truth, block by block, and so must the answers to
prompts. A source that lost something for good must say so."""

import collections
import json
import os
import random
import tempfile
import threading
import time

import msgspec
import zmq

from _command import LIMIT
from _dialect import Service, context

SIZE = 4  # tokens a block
END = (b"\xff" * 8, b"")


class Engine:
    """One engine: its streams, its cache, and prompts that share beginnings."""

    def __init__(self, name, rng, *, bytes_hashes=False, history=None,
                 loses=0.0, restarts=0.0):
        self.name, self.rng = name, rng
        self.bytes_hashes, self.loses, self.restarts = (
            bytes_hashes, loses, restarts)
        self.keep = history
        self.lock = threading.Lock()
        self.ports = [0, 0]
        self.lives = 0
        self.prompts = [self._prompt(i) for i in range(12)]
        self._open()
        self._begin()

    def _prompt(self, i):
        shared = self.prompts_shared if i else []
        if not i:
            self.prompts_shared = [
                tuple(self.rng.randrange(50000) for _ in range(SIZE))
                for _ in range(4)]
            shared = self.prompts_shared
        return shared[:self.rng.randrange(5)] + [
            tuple(self.rng.randrange(50000) for _ in range(SIZE))
            for _ in range(8)]

    # -- sockets --

    def _bind(self, kind, at):
        s = context.socket(kind)
        s.linger = 0
        s.sndhwm = 0
        end = time.monotonic() + LIMIT
        while True:
            try:
                if self.ports[at]:
                    s.bind(f"tcp://127.0.0.1:{self.ports[at]}")
                else:
                    self.ports[at] = s.bind_to_random_port("tcp://127.0.0.1")
                return s
            except zmq.ZMQError:
                assert time.monotonic() < end, "the port does not come back"
                time.sleep(0.01)

    def _open(self):
        self.live = self._bind(zmq.PUB, 0)
        self.router = self._bind(zmq.ROUTER, 1)

    def close(self):
        self.live.close()
        self.router.close()

    # -- lives --

    def _begin(self):
        self.lives += 1
        self.number = -1
        self.history = collections.deque(maxlen=self.keep)
        self.held = collections.Counter()  # (medium, hash) -> copies
        self.path = {}  # hash -> (adapter, blocks)

    def restart(self):
        with self.lock:
            self.close()
            self._open()
            self._begin()

    def _hash(self, adapter, path):
        h = hash((self.name, self.lives % 2, adapter, path)) & (2**64 - 1)
        return h.to_bytes(32, "big") if self.bytes_hashes else h

    # -- what it says --

    def _store(self):
        rng = self.rng
        prompt = rng.choice(self.prompts)
        adapter = rng.choice([None, None, None, "ad"])
        medium = rng.choice(["GPU", "GPU", "CPU"])
        hashes = [self._hash(adapter, tuple(prompt[:i + 1]))
                  for i in range(len(prompt))]
        known = {h for (_, h), n in self.held.items() if n > 0}
        starts = [0] + [i + 1 for i, h in enumerate(hashes) if h in known]
        at = rng.choice(starts)
        n = min(rng.randrange(1, 5), len(prompt) - at)
        if n <= 0:
            return None
        for i in range(at, at + n):
            self.held[medium, hashes[i]] += 1
            self.path[hashes[i]] = (adapter, tuple(prompt[:i + 1]))
        return {"type": "BlockStored", "block_hashes": hashes[at:at + n],
                "parent_block_hash": hashes[at - 1] if at else None,
                "token_ids": [t for b in prompt[at:at + n] for t in b],
                "block_size": SIZE, "medium": medium, "lora_name": adapter,
                "extra_keys": [None] * n}

    def _remove(self):
        held = [key for key, n in self.held.items() if n > 0]
        if not held:
            return None
        medium, h = self.rng.choice(held)
        self.held[medium, h] -= 1
        return {"type": "BlockRemoved", "block_hashes": [h], "medium": medium}

    def _event(self):
        what = self.rng.random()
        if what < 0.004:
            self.held.clear()
            return {"type": "AllBlocksCleared"}
        # About as many go as come.
        if what < 0.4 + 0.3 * (sum(self.held.values()) < 40):
            return self._store()
        return self._remove()

    def publish(self, always=False):
        """A batch; the live stream may lose it."""
        if not always and self.rng.random() < self.restarts:
            self.restart()
        with self.lock:
            events = [e for _ in range(self.rng.randrange(1, 4))
                      if (e := self._event()) is not None]
            self.number += 1
            frames = (self.number.to_bytes(8, "big"), msgspec.msgpack.encode(
                [time.time(), events, None]))
            self.history.append(frames)
            if always or self.rng.random() >= self.loses:
                self.live.send_multipart((b"",) + frames)

    def serve(self):
        """Answer one request for a replay, when there is one."""
        if not self.router.poll(0):
            return
        peer, _, start = self.router.recv_multipart()
        first = int.from_bytes(start, "big")
        for number, payload in list(self.history):
            if int.from_bytes(number, "big") >= first:
                self.router.send_multipart([peer, b"", number, payload])
        self.router.send_multipart([peer, b"", *END])

    def source(self):
        return (f"{self.name}=tcp://127.0.0.1:{self.ports[0]},"
                f"replay_endpoint=tcp://127.0.0.1:{self.ports[1]},model=m")

    # -- what is true --

    def truth(self):
        """{(medium, hash, adapter, blocks): copies}"""
        return {(medium, text_of(h), *self.path[h]): n
                for (medium, h), n in self.held.items() if n > 0}

    def prefix(self, adapter, prompt):
        """Tokens of a prompt that the GPU has."""
        n = 0
        while n < len(prompt) and self.held["GPU", self._hash(
                adapter, tuple(prompt[:n + 1]))] > 0:
            n += 1
        return n * SIZE


def text_of(h):
    return h.hex() if isinstance(h, bytes) else str(h)


class Contents:
    """Content hashes stand for tokens, one for one."""

    def __init__(self):
        self.tokens, self.content = {}, {}

    def same(self, content, tokens):
        return (self.tokens.setdefault(content, tokens) == tokens and
                self.content.setdefault(tokens, content) == content)


class World:
    """Engines that never stop, and a state directory."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.engines = [
            Engine("plain", random.Random(seed + 1)),
            Engine("lossy", random.Random(seed + 2), bytes_hashes=True,
                   loses=0.05),
            Engine("short", random.Random(seed + 3), history=40, loses=0.02),
            Engine("anew", random.Random(seed + 4), restarts=0.004),
        ]
        self.dir = tempfile.TemporaryDirectory(prefix="kvevents-kill-")
        self.contents = Contents()
        self.tally = collections.Counter()
        self.quiet = threading.Event()
        self.resting = threading.Event()
        self.ended = False
        self.failure = None
        self.thread = threading.Thread(target=self._publish, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.ended = True
        self.thread.join()
        for engine in self.engines:
            engine.close()
        self.dir.cleanup()

    def _publish(self):
        try:
            while not self.ended:
                quiet = self.quiet.is_set()
                for engine in self.engines:
                    if not quiet:
                        engine.publish()
                    engine.serve()
                if quiet:
                    self.resting.set()
                time.sleep(0.004)
        except Exception as error:  # the test must see it
            self.failure = error
            self.resting.set()

    def rest(self):
        """Nobody publishes from now on; the last batches were not lost."""
        self.resting.clear()
        self.quiet.set()
        assert self.resting.wait(LIMIT)
        assert self.failure is None, self.failure
        for engine in self.engines:
            engine.publish(always=True)

    def go_on(self):
        self.quiet.clear()

    def start(self):
        service = Service(
            "--state", self.dir.name, "--state-interval", "0.05",
            "--log-level", "info",
            *[a for e in self.engines for a in ("--source", e.source())])
        text = "\n".join(service.err)
        self.tally["state_loaded"] += "state_loaded" in text
        assert "state_bad" not in text, text
        assert not [f for f in os.listdir(self.dir.name) if "bad" in f]
        return service

    # -- what the service says --

    def settled(self, service, engine):
        """Its source, once it is at the engine's last batch and knows how it
        is."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            source = service.source(engine.name)
            if (source["state"] in ("live", "degraded") and
                    source["last_number"] == engine.number):
                return source
            time.sleep(0.01)
        raise AssertionError(
            f"{engine.name} is at {engine.number}, and its source stays "
            f"{source}")

    def dump(self, service, engine):
        """The same as Engine.truth(), from the dump."""
        status, _, body = service.call(
            "GET", f"/v1/dump?model=m&worker={engine.name}&rank=0")
        assert status == 200, body
        paths, held, run = {}, {}, None
        for line in map(json.loads, body.splitlines()):
            if line["type"] == "run":
                run = line
                assert run["taught"] and run["waits_for"] is None, run
                adapter, before = paths.get(
                    run["parent"], (run["lora_name"] or None, ()))
                paths[run["id"]] = adapter, before + tuple(run["contents"])
            elif line["type"] == "held":
                adapter, path = paths[run["id"]]
                first = len(path) - run["blocks"]
                for i, (h, n) in enumerate(
                        zip(line["hashes"], line["copies"])):
                    if n > 0:
                        held[line["medium"] or "GPU", h, adapter,
                             path[:first + i + 1]] = n
        assert line["type"] == "end", line
        return held

    def check_dump(self, service, engine):
        dump = self.dump(service, engine)
        truth = engine.truth()
        by_hash = {(m, h): (a, p, n) for (m, h, a, p), n in dump.items()}
        for (medium, h, adapter, blocks), n in truth.items():
            a, path, copies = by_hash.pop((medium, h), (None, None, 0))
            assert copies == n, (
                f"{engine.name} has {n} copies of {h} on {medium}, and the "
                f"dump {copies}")
            assert a == adapter and len(path) == len(blocks) and all(
                map(self.contents.same, path, blocks)), (engine.name, h)
        assert not by_hash, f"{engine.name} does not hold {by_hash}"

    def check_prompts(self, service, engine):
        for adapter in (None, "ad"):
            answer = service.post("/v1/query", {
                "model": "m", "workers": [engine.name],
                "block_size": SIZE, "lora_name": adapter or "",
                "prompts": [[t for b in p for t in b]
                            for p in engine.prompts]})
            for prompt, said in zip(engine.prompts, answer["prompts"]):
                gpu = max((row["tiers"].get("GPU", {}).get("alone", 0)
                           for row in said["workers"]), default=0)
                assert gpu == engine.prefix(adapter, prompt), (
                    engine.name, adapter, said)

    def check(self, service):
        """Everything, while nobody publishes."""
        self.rest()
        for engine in self.engines:
            source = self.settled(service, engine)
            self.tally[engine.name, source["state"]] += 1
            self.tally["restored"] += bool(source["restored"])
            if source["state"] == "live":
                self.check_dump(service, engine)
                self.check_prompts(service, engine)
        self.go_on()

    def round(self):
        with self.start() as service:
            time.sleep(self.rng.choice([0.0, 0.02, 0.1, 0.3]) *
                       self.rng.random())
            if self.rng.random() < 0.7:
                self.check(service)
                time.sleep(0.25 * self.rng.random())
            service.process.kill()
            service.process.wait()
            self.tally["kills"] += 1
        time.sleep(0.1 * self.rng.random())


def run(kills, seed):
    print(f"seed {seed}")
    with World(seed) as world:
        for _ in range(kills):
            world.round()
        with world.start() as service:
            world.check(service)
            # In the end it may end as it likes.
            service.signal(15)
            assert service.end() == 0, service.err[-5:]
        tally = world.tally
    for key, n in sorted(tally.items(), key=str):
        print(f"{key}: {n}")
    assert tally["kills"] == kills
    # It went on from a state, and most sources did so in the same life.
    assert tally["state_loaded"] >= kills // 2, tally
    assert tally["restored"] >= kills // 2, tally
    # What replay can repair is whole.
    for name in ("plain", "lossy"):
        assert tally[name, "degraded"] == 0, tally
        assert tally[name, "live"] > 0, tally
    return tally
