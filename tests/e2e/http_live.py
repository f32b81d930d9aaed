#!/usr/bin/env python3
"""Live events of kvevents serve, read as any client of server-sent events
would: from a publisher to a line of data.

ctest-timeout: 240
"""

import contextlib
import http.client
import json
import signal
import socket
import sys
import threading

from _command import LIMIT, lines_of, main
from _serve import RECORDING, Service, publisher


class Events:
    """A reader of /v1/events."""

    def __init__(self, service, arguments=""):
        self.connection = http.client.HTTPConnection(
            "127.0.0.1", service.port, timeout=LIMIT)
        self.connection.request("GET", "/v1/events" + arguments, headers={
            "Accept": "text/event-stream"})
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.headers["Content-Type"] == "text/event-stream"
        assert self.answer.headers["Cache-Control"] == "no-store"
        # The first comment: it is heard from now on.
        assert self.answer.readline() == b":\n"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.connection.close()

    def next(self):
        """(type, data, id) of the next event; None: the end."""
        kind = data = number = None
        while True:
            line = self.answer.readline()
            if not line:
                return None
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif line.startswith("id: "):
                number = int(line[4:])
            elif not line and data is not None:
                return kind, data, number

    def until(self, kind, **fields):
        """Events up to the first of this type that has these fields."""
        found = []
        while True:
            event = self.next()
            assert event is not None, found[-5:]
            found.append(event)
            if event[0] == kind and all(
                    event[1].get(k) == v for k, v in fields.items()):
                return found


def recorded_events():
    """How many events each batch of the recording has."""
    return [len(line["wire"][1]) for line in lines_of(RECORDING)]


def recorded_tokens():
    found = set()
    for line in lines_of(RECORDING):
        for event in line["wire"][1]:
            if isinstance(event, dict):
                found.update(event.get("token_ids") or [])
    return found


# Everything that an ingest says of one source, in its order; hashes are texts
# and no token id is in it.
def test_a_source_from_begin_to_end():
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service())
        events = stack.enter_context(Events(service))
        pub = stack.enter_context(publisher())
        status, text = service.ask("POST", "/v1/sources", {
            "worker": "w0", "model": "m", "endpoint": pub.live,
            "replay_endpoint": pub.replay})
        assert status in (200, 201), text
        counts = recorded_events()
        found = events.until("batch", number=len(counts) - 1)
        kinds = [kind for kind, _, _ in found]
        assert kinds[0] == "added", kinds
        batches = [data for kind, data, _ in found if kind == "batch"]
        assert [b["number"] for b in batches] == list(range(len(counts)))
        assert [len(b["events"]) for b in batches] == counts
        numbers = [number for _, _, number in found]
        assert numbers == sorted(set(numbers))
        for _, data, _ in found:
            assert data["worker"] == "w0" and data["model"] == "m"
            assert data["tenant"] == "default" and data["rank"] == 0
        stored = [e for b in batches for e in b["events"]
                  if e["type"] == "BlockStored"]
        assert stored
        for event in stored:
            assert all(isinstance(h, str) for h in event["hashes"])
            assert event["blocks"] == len(event["hashes"])
            assert isinstance(event["tokens"], int)
        large = {t for t in recorded_tokens() if t > 100_000}
        text = json.dumps(found)
        assert not [t for t in large if f"[{t}" in text or f", {t}" in text]

        source_id = found[0][1]["source"]
        assert service.ask(
            "DELETE", f"/v1/sources/{source_id}")[0] in (200, 204)
        events.until("removed", source=source_id)


def test_filters():
    with contextlib.ExitStack() as stack:
        pubs = [stack.enter_context(publisher()) for _ in range(2)]
        service = stack.enter_context(Service())
        one = stack.enter_context(Events(service, "?worker=w1&types=batch"))
        other = stack.enter_context(Events(service, "?types=added"))
        for i, pub in enumerate(pubs):
            assert service.ask("POST", "/v1/sources", {
                "worker": f"w{i}", "model": "m", "endpoint": pub.live,
                "replay_endpoint": pub.replay})[0] in (200, 201)
        last = len(recorded_events()) - 1
        for kind, data, _ in one.until("batch", number=last):
            assert (kind, data["worker"]) == ("batch", "w1")
        assert [other.next()[1]["worker"] for _ in range(2)] == ["w0", "w1"]
        status, text = service.ask("GET", "/v1/events?types=batches")
        assert status == 422 and "batch" in json.loads(text)["error"]


# Readers that never read, hundreds of sources coming and going: the service
# answers all the while, and a reader is told what it lost.
def test_slow_reader():
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service("--event-bytes", "65536"))
        slow = socket.socket()
        stack.callback(slow.close)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", service.port))
        slow.settimeout(LIMIT)
        slow.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        # An endpoint where nobody is; the names make long events.
        worker = "w" * 1000
        rounds = 0
        lost = 0
        while lost == 0:
            rounds += 1
            assert rounds < 20_000
            status, text = service.ask("POST", "/v1/sources", {
                "worker": worker, "model": "m", "endpoint":
                "tcp://127.0.0.1:1"})
            assert status in (200, 201), text
            number = json.loads(text)
            number = number.get("id") or number["source"]["id"]
            assert service.ask(
                "DELETE", f"/v1/sources/{number}")[0] in (200, 204)
            if rounds % 100 == 0:
                metrics = service.ask("GET", "/metrics")[1]
                lost = sum(
                    int(float(line.split()[-1]))
                    for line in metrics.splitlines()
                    if "http_events_lost" in line and line[0] != "#")
        seen = b""
        while b"event: lost\n" not in seen:
            data = slow.recv(65536)
            assert data
            seen = seen[-100:] + data
        assert service.ask("GET", "/health")[0] == 200


# The end of the service is the end of the stream, not a cut.
def test_end():
    with Service() as service:
        with Events(service) as events:
            got = []
            thread = threading.Thread(target=lambda: got.append(events.next()))
            thread.start()
            service.signal(signal.SIGTERM)
            thread.join(LIMIT)
            assert not thread.is_alive()
            assert got == [None]
        assert service.end() == 0


if __name__ == "__main__":
    main(sys.modules[__name__])
