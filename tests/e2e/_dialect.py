"""What the tests of Dynamo's and Mooncake's dialects share: the service, a
client that knows nothing but HTTP, and engines that are nothing but pyzmq and
msgspec. Neither end is ours."""

import http.client
import json
import socket
import threading
import time

import msgspec
import zmq

from _command import LIMIT, ROOT, Running

DATA = ROOT / "tests" / "http"
context = zmq.Context()


class Service(Running):
    """kvevents serve on a port of its own."""

    def __init__(self, *args):
        super().__init__("serve", "--listen", "127.0.0.1:0",
                         "--test-endpoints", *args)
        self.port = int(self.wait_for(
            r"listening on 127\.0\.0\.1:(\d+)").group(1))
        self.client = None

    def __exit__(self, *exc):
        if self.client is not None:
            self.client.close()
        super().__exit__(*exc)

    def connect(self):
        """One more connection, for a thread of its own."""
        return http.client.HTTPConnection("127.0.0.1", self.port,
                                          timeout=LIMIT)

    def call(self, method, path, body=None, media="application/json",
             client=None):
        """(status, content type or None, body as bytes)."""
        headers = {} if media is None else {"Content-Type": media}
        if isinstance(body, str):
            body = body.encode()
        if client is None:
            if self.client is None:
                self.client = self.connect()
            client = self.client
        client.request(method, path, body=body, headers=headers)
        answer = client.getresponse()
        return (answer.status, answer.getheader("Content-Type"),
                answer.read())

    def json(self, method, path, body=None, status=200):
        """The answer as a value; it must have this status."""
        if body is not None:
            body = json.dumps(body)
        got, media, answer = self.call(method, path, body)
        assert got == status, (path, body, got, answer)
        assert media == "application/json", (path, media)
        return json.loads(answer)

    def post(self, path, body, status=200):
        return self.json("POST", path, body, status)

    def msgpack(self, path, body, status=200):
        got, media, answer = self.call(
            "POST", path, msgspec.msgpack.encode(body), "application/msgpack")
        assert got == status, (path, got, answer)
        assert media == "application/msgpack", (path, media)
        return msgspec.msgpack.decode(answer)

    def source(self, worker, rank=0):
        for source in self.json("GET", "/v1/sources")["sources"]:
            if source["worker"] == str(worker) and source["rank"] == rank:
                return source
        raise AssertionError(f"no source {worker}/{rank}")

    def wait_number(self, worker, number, rank=0):
        """Until batch number of a worker's rank was applied."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            source = self.source(worker, rank)
            last = source["last_number"]
            if last is not None and last >= number:
                return source
            time.sleep(0.01)
        raise AssertionError(f"{worker}/{rank} is not at {number}: {source}")

    def wait_equal(self, expected, ask):
        """Until ask() gives what is expected; for what nothing announces."""
        end = time.monotonic() + LIMIT
        while True:
            got = ask()
            if got == expected:
                return got
            assert time.monotonic() < end, (got, expected)
            time.sleep(0.02)


class Engine:
    """A publisher as the document of the wire says: three frames."""

    def __init__(self, topic=b""):
        self.socket = context.socket(zmq.XPUB)
        self.socket.linger = 0
        # Tell of every subscription, also beside one that is about to go.
        self.socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.topic = topic
        self.next = 0
        self.sent = {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()

    def wait_subscribed(self):
        """Until somebody follows: what is sent before is lost."""
        said = b"\x00"  # somebody left
        while said[:1] == b"\x00":
            assert self.socket.poll(1000 * LIMIT), "nobody subscribed"
            said = self.socket.recv()
        assert said[:1] == b"\x01"

    def send(self, *frames):
        self.socket.send_multipart(frames)

    def publish(self, *events, rank=None, number=None):
        """One batch; its number."""
        if number is None:
            number = self.next
        self.next = max(self.next, number + 1)
        self.sent[number] = (
            self.topic, number.to_bytes(8, "big"),
            msgspec.msgpack.encode([time.time(), list(events), rank]))
        self.again(number)
        return number

    def again(self, number):
        """The same bytes as before."""
        self.send(*self.sent[number])


def stored(hashes, tokens, parent=None, size=4, medium="GPU", **more):
    return {"type": "BlockStored", "block_hashes": hashes,
            "parent_block_hash": parent, "token_ids": tokens,
            "block_size": size, "medium": medium, **more}


def removed(*hashes, medium="GPU"):
    return {"type": "BlockRemoved", "block_hashes": list(hashes),
            "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


class Replay:
    """A replay endpoint that has nothing: only end markers."""

    def __init__(self):
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.stopping = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while not self.stopping:
            if self.socket.poll(50):
                peer = self.socket.recv_multipart()[0]
                self.socket.send_multipart(
                    [peer, b"", b"", b"\xff" * 8, b""])

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stopping = True
        self.thread.join()
        self.socket.close()


def fill(text, names):
    """Replace {name} in a text of a data file, where name is one of names;
    other braces are the JSON's own."""
    for name, value in names.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def raw(port, data):
    """Send bytes as they are; all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as s:
        s.sendall(data)
        got = b""
        while piece := s.recv(65536):
            got += piece
        return got


def lines(name):
    """The rows of a data file; lines that begin with # are for people."""
    with open(DATA / name, encoding="utf-8") as f:
        return [json.loads(line) for line in f
                if line.strip() and not line.startswith("#")]


def _say(service, engines, workers, step):
    """One thing that an engine does before a question."""
    if "subscribed" in step:
        engines[step["subscribed"]].wait_subscribed()
        return
    engine = engines[step["engine"]]
    if "frames" in step:
        engine.send(*map(bytes.fromhex, step["frames"]))
    elif "again" in step:
        engine.again(step["again"])
    else:
        engine.publish(*step["events"], number=step["number"])
        worker, rank = workers[step["engine"]]
        service.wait_number(worker, step["number"], rank)


def play(service, rows, engines, workers, names, settled):
    """Ask the questions of a data file in their order; engines say what they
    say between them. settled(path, value) takes from a JSON answer what nobody
    promised. The differences, a line each."""
    wrong = []
    for row in rows:
        for step in row.get("before", []):
            _say(service, engines, workers, step)
        expected = row.get("instead", row)
        body = row.get("body")
        got = service.call(
            row["method"], row["path"], body and fill(body, names),
            row.get("content_type", "application/json"))
        same = got[:2] == (expected["status"], expected["media"])
        if same and "answer" in expected:
            want = fill(expected["answer"], names)
            if got[1] == "application/json":
                same = (settled(row["path"], json.loads(got[2])) ==
                        settled(row["path"], json.loads(want)))
            else:
                same = got[2].decode() == want
        if not same:
            wrong.append(f"{row['name']}: answered {got}, expected "
                         f"{expected['status']} {expected['media']} "
                         f"{expected.get('answer')}")
    return wrong
