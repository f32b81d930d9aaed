"""A running kvevents serve, asked with Python's own HTTP client."""

import contextlib
import http.client
import json
import time

from _command import BIN, FIXTURES, LIMIT, Publisher, Running, lines_of

RECORDING = FIXTURES / "sha256-int-defaults.jsonl"


class Service(Running):
    """kvevents serve on a free port. environment: more variables."""

    def __init__(self, *args, environment=None, listen="127.0.0.1:0",
                 wait=True):
        args = [*(f"{k}={v}" for k, v in (environment or {}).items()), BIN,
                "serve", *(str(a) for a in args)]
        if listen is not None:
            args += ["--listen", listen]
        self.port = None
        super().__init__(*args, program="env")
        if wait:
            self.wait_port()

    def wait_port(self):
        m = self.wait_for(r'"?event"?[=:]"?listening"? ?.*port"?[=:](\d+)')
        self.port = int(m.group(1))
        return self.port

    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, token=None):
        """(status, text)"""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=LIMIT)
        headers = {}
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def get(self, path):
        status, text = self.ask("GET", path)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def sources(self):
        """{(worker, rank): source}"""
        return {(s["worker"], s["rank"]): s
                for s in self.get("/v1/sources")["sources"]}

    def wait_until(self, what, limit=LIMIT):
        """Wait until what(self) is true; what it returned."""
        end = time.monotonic() + limit
        while True:
            got = what(self)
            if got:
                return got
            assert self.process.poll() is None, "\n".join(self.err[-20:])
            assert time.monotonic() < end, "\n".join(
                [repr(got), *self.err[-20:]])
            time.sleep(0.02)

    def wait_live(self, n):
        """Wait until n sources are live; their table."""
        def look(service):
            sources = service.sources()
            live = [s for s in sources.values() if s["state"] == "live"]
            return sources if len(live) == n else None
        return self.wait_until(look)

    def wait_ready(self):
        self.wait_until(lambda s: s.ask("GET", "/ready")[0] == 200)

    def query(self, tokens, model="default", **more):
        """{(worker, rank): row} of one prompt."""
        status, text = self.ask("POST", "/v1/query", dict(
            model=model, tokens=tokens, **more))
        assert status == 200, (status, text)
        return {(row["worker"], row["rank"]): row
                for row in json.loads(text)["prompts"][0]["workers"]}


def publisher(recording=RECORDING, *args):
    """A publisher of a whole recording that serves replay."""
    return Publisher(str(recording), *args)


def source(worker, pub):
    """--source of a publisher."""
    return f"{worker}={pub.live},replay_endpoint={pub.replay}"


def as_names(wire):
    """Decoded events with texts for hashes in bytes."""
    if isinstance(wire, dict):
        return wire.get("$bytes") or {k: as_names(v) for k, v in wire.items()}
    return [as_names(v) for v in wire] if isinstance(wire, list) else wire


def held(recording=RECORDING):
    """Prompts that a recording leaves held: {hash: tokens from the root on}, by
    reading its decoded events as they are written there. Of engines with one
    group of blocks, and without adapters."""
    tokens, parents, alive = {}, {}, {}
    for line in lines_of(recording):
        for event in as_names(line["wire"])[1]:
            if event["type"] == "AllBlocksCleared":
                alive.clear()
            elif event["type"] == "BlockRemoved":
                for hash_ in event["block_hashes"]:
                    alive.pop(hash_, None)
            else:
                size, parent = event["block_size"], event["parent_block_hash"]
                for i, hash_ in enumerate(event["block_hashes"]):
                    tokens[hash_] = event["token_ids"][i * size:(i + 1) * size]
                    parents[hash_], alive[hash_] = parent, True
                    parent = hash_
    prompts = {}
    for hash_ in alive:
        chain, at = [], hash_
        while at is not None and at in alive:
            chain, at = tokens[at] + chain, parents[at]
        if at is None:
            prompts[hash_] = chain
    return prompts
