#!/usr/bin/env python3
# ctest-timeout: 240
"""Our publisher, received by plain pyzmq and decoded by msgspec.

Payloads are decoded with the types of vLLM's documentation and with the real
classes of several releases. The behaviours that vLLM's own tests ask of a
publisher are asked of ours, by their names there; where a behaviour is only
found in vLLM's code (odd replay requests), the real publisher is asked the
same and the answers are compared frame by frame.

    test_publish_to_pyzmq.py [--reference R] [CHECK...]

With --reference vLLM's publisher of release R takes the place of ours: the
judges are checked by it.
"""

import argparse
import collections
import contextlib
import socket
import sys
import tempfile
import threading
import time
import traceback

import msgspec
import zmq

import _batches
import _doc_types
import _harness
import _kve_ctypes
import _vllm_class
import _vllm_peer
from _harness import END, Checks, ranges
from _pyzmq import (TOPIC, answer, context, dealer, decode, free_ports,
                    number, receive, replayed, start, sub)

check = Checks()
LOOPBACK = "tcp://127.0.0.1:0"


# ---------------------------------------------------------------------------
# Publishers and readers


class Ours(_kve_ctypes.Publisher):
    """Our publisher; layout "map", "map_short" or "array"."""

    modules = [_doc_types.MAP]

    def __init__(self, layout="map", shape=None, **options):
        options["layout"] = _kve_ctypes.constant(
            "KVE_LAYOUT_" + layout.upper())
        if shape is not None:
            options["replay_shape"] = shape
        options.setdefault("replay_endpoint", LOOPBACK)
        options.setdefault("topic", TOPIC)
        super().__init__(**options)
        self.at = self.endpoint, self.replay_endpoint


class Real:
    """vLLM's publisher in this process, with the same calls."""

    release = None

    def __init__(self, replay_endpoint=LOOPBACK, topic=TOPIC, rank=None,
                 **options):
        assert rank is None
        self.peer = _vllm_peer.Peer(self.release)
        options.pop("layout", None)
        at = self.peer.do_open(
            _harness.ANY, replay_endpoint and _harness.ANY, topic=topic,
            **options)
        self.endpoint, self.replay_endpoint = at["live"], at["replay"]
        self.module = self.peer.module
        self.modules = [self.module]
        self.count = 0

    def publish(self, events, ts=None):
        if isinstance(events, _kve_ctypes.Events):
            events = events.source
        self.peer.publisher.publish(self.module.KVEventBatch(
            ts=ts or time.time(),
            events=[_batches.struct(self.module, event) for event in events]))
        self.count += 1
        return self.count - 1

    def flush(self):
        self.peer._sent()

    def close(self):
        self.peer.do_close()


make = Ours
have = []  # releases of vLLM that can be had


@contextlib.contextmanager
def publisher(**options):
    pub = make(**options)
    try:
        yield pub
    finally:
        pub.close()


# ---------------------------------------------------------------------------
# What vLLM's own tests ask of a publisher


def basic_publishing():
    with publisher() as pub, sub(pub.endpoint) as reader:
        events = _batches.batch(1, 19)
        sent = time.time()
        pub.publish(events)
        [frames] = receive(reader, 1)
        check.equal("basic publishing: topic, number, payload",
                    [len(frames), frames[0], frames[1]],
                    [3, TOPIC.encode(), start(0)])
        got, batch = decode(frames[2], pub.modules[0])
        check.equal("basic publishing: events, order and content", got,
                    events)
        check("basic publishing: the time is that of the call",
              abs(batch.ts - sent) < 0.1, f"{batch.ts - sent:+.4f} s")
        pub.publish(events, ts=1234.5)
        [frames] = receive(reader, 1)
        check.equal("basic publishing: a given time is kept",
                    decode(frames[2], pub.modules[0])[1].ts, 1234.5)


def multiple_events():
    with publisher() as pub, sub(pub.endpoint) as reader:
        for i in range(10):
            pub.publish(_batches.batch(1, i))
        got = receive(reader, 10)
        check.equal("multiple events: numbers", ranges(map(number, got)),
                    "0..9")
        check.equal("multiple events: content",
                    [decode(frames[2], pub.modules[0])[0] for frames in got],
                    [_batches.batch(1, i) for i in range(10)])
        check.equal("multiple events: no more", receive(reader, 1, 0.2), [])


def replay_mechanism():
    with publisher() as pub, sub(pub.endpoint) as reader:
        for i in range(19):
            pub.publish(_batches.batch(1, i))
        live = receive(reader, 19)
        got, ended = replayed(pub, 10)
        check.equal("replay mechanism: from 10, inclusive",
                    ranges(map(number, got)), "10..18")
        check("replay mechanism: an end marker follows", ended)
        check.equal("replay mechanism: the same bytes as live",
                    [frames[-1] for frames in got],
                    [frames[-1] for frames in live[10:]])
        got, ended = replayed(pub, 19)
        check("replay mechanism: beyond the end: the marker only",
              ended and not got)


def replay_includes_topic():
    with publisher() as pub:
        for i in range(5):
            pub.publish(_batches.batch(1, i))
        pub.flush()
        got, _ = replayed(pub)
        check.equal("replay includes topic: delimiter, topic, number",
                    [frames[:3] for frames in got],
                    [[b"", TOPIC.encode(), start(i)] for i in range(5)])


def buffer_limit():
    with publisher(buffer_steps=100) as pub:
        for i in range(110):
            pub.publish(_batches.batch(1, i))
        pub.flush()
        got, ended = replayed(pub)
        check.equal("buffer limit: the oldest are gone",
                    ranges(map(number, got)), "10..109")
        check("buffer limit: an end marker follows", ended)


def topic_filtering():
    with publisher(topic="foo", replay_endpoint=None) as pub, \
            sub(pub.endpoint, "foo") as foo, sub(pub.endpoint, "bar") as bar, \
            sub(pub.endpoint, "fo") as prefix:
        for i in range(3):
            pub.publish(_batches.batch(1, i))
        check.equal("topic filtering: foo gets all",
                    [frames[0] for frames in receive(foo, 3)], [b"foo"] * 3)
        check.equal("topic filtering: so does a prefix",
                    len(receive(prefix, 3)), 3)
        check.equal("topic filtering: bar gets none",
                    receive(bar, 1, 0.2), [])


def high_volume():
    batches, size = 10_000, 100
    events = [_batches.stored(1, i) for i in range(size)]
    made = _kve_ctypes.Events(events)
    made.source = events

    def work(pub):
        for _ in range(batches):
            pub.publish(made, ts=1.0)

    with publisher() as pub, sub(pub.endpoint, hwm=1000) as reader:
        thread = threading.Thread(target=work, args=(pub,))
        begun = time.monotonic()
        thread.start()
        got, sizes = [], collections.Counter()
        while len(got) < batches and \
                time.monotonic() - begun < 10 * _harness.PATIENCE / 20:
            if reader.poll(100):
                frames = reader.recv_multipart()
                got.append(number(frames))
                sizes[len(msgspec.msgpack.decode(frames[2])[1])] += 1
        took = time.monotonic() - begun
        thread.join()
    check("high volume: at least 90 % of 10,000 x 100 events came",
          len(got) >= 0.9 * batches, f"{len(got)} in {took:.1f} s")
    check("high volume: in ascending order",
          all(a < b for a, b in zip(got, got[1:])))
    check.equal("high volume: every batch is whole", list(sizes), [size])


def null_publisher():
    pub = _kve_ctypes.Publisher(null=True)
    check.equal("null publisher: numbers are given",
                [pub.publish(_batches.batch(1, i)) for i in range(3)],
                [0, 1, 2])
    pub.publish_payload(b"\x90")
    pub.flush()
    check.equal("null publisher: no endpoints, nothing lost",
                [pub.endpoint, pub.replay_endpoint, pub.shutdown()],
                ["", "", 0])
    pub.close()


def rank_publishers():
    """Ranks 0 and 1 of one configuration: live on ports p and p + 1, replay
    on p + 2 and p + 3."""
    for _ in range(10):
        port = free_ports(4)
        config = {"endpoint": f"tcp://127.0.0.1:{port}",
                  "replay_endpoint": f"tcp://127.0.0.1:{port + 2}",
                  "ranks": 2}
        pubs = []
        try:
            for rank in (0, 1):
                pubs.append(Ours(rank=rank, **config))
            return port, pubs
        except _kve_ctypes.Error as error:
            # Somebody took a port in between.
            for pub in pubs:
                pub.close()
            if error.status != _kve_ctypes.constant("KVE_E_IN_USE"):
                raise
    raise OSError("no free ports")


def data_parallel_rank_tagging():
    port, pubs = rank_publishers()
    try:
        check.equal("data parallel rank tagging: ports",
                    [pub.endpoint for pub in pubs],
                    [f"tcp://127.0.0.1:{port + rank}" for rank in (0, 1)])
        with sub(pubs[0].endpoint) as zero, sub(pubs[1].endpoint) as one:
            pubs[0].publish(_batches.batch(1, 1)[:1] * 2)
            pubs[1].publish(_batches.batch(1, 1)[:1] * 3)
            for reader, rank, count in ((zero, 0, 2), (one, 1, 3)):
                [frames] = receive(reader, 1)
                events, batch = decode(frames[2])
                check.equal(f"data parallel rank tagging: rank {rank}",
                            [batch.data_parallel_rank, len(events),
                             number(frames)], [rank, count, 0])
    finally:
        for pub in pubs:
            pub.close()
    check.equal("data parallel rank tagging: inproc names",
                [_kve_ctypes.endpoint_of_rank("inproc://kv", rank)
                 for rank in (0, 1)], ["inproc://kv", "inproc://kv_dp1"])
    check.equal("data parallel rank tagging: the default ports",
                [_kve_ctypes.endpoint_of_rank("tcp://*:5557", rank)
                 for rank in (0, 1)], ["tcp://*:5557", "tcp://*:5558"])


def event_publisher_factory():
    port, pubs = rank_publishers()
    try:
        check.equal("event publisher factory: rank 1, resolved",
                    [pubs[1].endpoint, pubs[1].replay_endpoint],
                    [f"tcp://127.0.0.1:{port + 1}",
                     f"tcp://127.0.0.1:{port + 3}"])
        check.equal("event publisher factory: options are left alone",
                    [pubs[1].options.endpoint,
                     pubs[1].options.replay_endpoint],
                    [f"tcp://127.0.0.1:{port}".encode(),
                     f"tcp://127.0.0.1:{port + 2}".encode()])
    finally:
        for pub in pubs:
            pub.close()
    for name, wrong in (
            ("endpoint", {"endpoint": "carrier-pigeon://roof"}),
            ("layout", {"layout": 99}), ("bind", {"bind": 99}),
            ("replay_shape", {"replay_shape": 99}),
            ("rank 1 behind the last port",
             {"endpoint": "tcp://127.0.0.1:65535", "rank": 1}),
            ("overlapping ports of live and replay",
             {"endpoint": "tcp://127.0.0.1:40000", "ranks": 8,
              "replay_endpoint": "tcp://127.0.0.1:40003"})):
        try:
            options = {"endpoint": LOOPBACK, **wrong}
            _kve_ctypes.Publisher(**options).close()
            check(f"event publisher factory: refuses {name}", False,
                  "accepted")
        except _kve_ctypes.Error as error:
            check(f"event publisher factory: refuses {name}",
                  error.status == _kve_ctypes.constant("KVE_E_INVAL"),
                  str(error))


# ---------------------------------------------------------------------------
# More of what readers rely on


def layouts():
    """What each layout writes is read by the types of its releases."""
    modules = {"doc, arrays": _doc_types.ARRAY, "doc, maps": _doc_types.MAP}
    for release in have:
        modules[f"vLLM {release}"] = _vllm_class.load(release)
    readers = {
        "array": [name for name in modules if name == "doc, arrays" or
                  name == "vLLM 0.23.0"],
        "map": [name for name in modules if name == "doc, maps" or
                name.startswith("vLLM") and name != "vLLM 0.23.0"],
    }
    readers["map_short"] = readers["map"]
    wanted = [_batches.batch(1, i) for i in range(60)]
    for layout, names in readers.items():
        with publisher(layout=layout) as pub, sub(pub.endpoint) as reader:
            for events in wanted:
                pub.publish(events, ts=1.25)
            payloads = [frames[2] for frames in receive(reader, len(wanted))]
        for name in names:
            try:
                got = [decode(payload, modules[name])[0]
                       for payload in payloads]
            except msgspec.MsgspecError as error:
                got = str(error)
            check(f"layout {layout}: read by {name}, field by field",
                  got == wanted, "" if got == wanted else
                  _harness.shortened(got))
        # And each release's own encoder makes the same bytes.
        twins = {"array": "vLLM 0.23.0", "map_short": "vLLM 0.32.0",
                 "map": "vLLM 0.33.0"}
        if twins[layout] in modules:
            module = modules[twins[layout]]
            theirs = [msgspec.msgpack.encode(module.KVEventBatch(
                ts=1.25, data_parallel_rank=None,
                events=[_batches.struct(module, event) for event in events]))
                for events in wanted]
            same = sum(a == b for a, b in zip(payloads, theirs))
            check(f"layout {layout}: the bytes of {twins[layout]}",
                  same == len(wanted), "" if same == len(wanted) else
                  f"{same} of {len(wanted)} equal; " + first_difference(
                      payloads, theirs))


def first_difference(ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return f"batch {i}: {a.hex()} for {b.hex()}"
    return ""


def replay_shapes():
    for name, shape, prefix, end in (
            ("with topic", "KVE_REPLAY_WITH_TOPIC", [b"", TOPIC.encode()],
             [b"", b"", END, b""]),
            ("without topic", "KVE_REPLAY_NO_TOPIC", [b""],
             [b"", END, b""])):
        with publisher(shape=_kve_ctypes.constant(shape)) as pub:
            for i in range(3):
                pub.publish(_batches.batch(1, i))
            pub.flush()
            with dealer(pub.replay_endpoint) as reader:
                got = answer(reader, b"", start(0))
            check.equal(f"replay {name}: data", [f[:-1] for f in got[:-1]],
                        [[*prefix, start(i)] for i in range(3)])
            check.equal(f"replay {name}: end marker", got[-1], end)


# What a client might send: frames as a DEALER sends them.
REQUESTS = {
    "1 frame": [b"\0" * 8],
    "3 frames": [b"", b"\0" * 8, b"more"],
    "4 frames": [b"", b"\0" * 8, b"", b""],
    "no delimiter": [b"x", b"\0" * 8],
    "an empty start": [b"", b""],
    "a start of 4 bytes": [b"", b"\0\0\0\x05"],
    "a start of 16 bytes": [b"", b"\0" * 15 + b"\x06"],
    "a start beyond 2^64": [b"", b"\xff" * 16],
    "the word snapshot": [b"", b"snapshot"],
    "a start beyond the end": [b"", start(1 << 40)],
    "the reserved number": [b"", END],
    "a good one": [b"", start(3)],
}


def odd_requests(endpoint):
    """The answers to REQUESTS, each on a socket of its own."""
    answers = {}
    with contextlib.ExitStack() as stack:
        for name, frames in REQUESTS.items():
            reader = stack.enter_context(dealer(endpoint))
            reader.send_multipart(frames)
            answers[name] = reader
        # An idle vLLM serves one request in 0.1 s.
        time.sleep(1.0 + 0.1 * len(REQUESTS))
        return {name: receive(reader, 100, 0.02)
                for name, reader in answers.items()}


def bad_replay_requests():
    """Odd requests are answered as vLLM answers them, or not at all."""
    twins = {release: shape for release, shape in (
        ("0.25.0", "KVE_REPLAY_NO_TOPIC"), ("0.32.0", "KVE_REPLAY_WITH_TOPIC"),
        ("0.33.0", "KVE_REPLAY_WITH_TOPIC")) if release in have}
    for release, shape in twins.items():
        peer = _vllm_peer.Peer(release)
        at = peer.do_open(_harness.ANY, _harness.ANY, topic=TOPIC)
        with sub(at["live"]) as reader:
            peer.do_publish(1, 0, 10)
            payloads = [frames[2] for frames in receive(reader, 10)]
        theirs = odd_requests(at["replay"])
        peer.do_close()
        with publisher(shape=_kve_ctypes.constant(shape)) as pub:
            for payload in payloads:
                pub.publish_payload(payload)
            pub.flush()
            ours = odd_requests(pub.replay_endpoint)
            for name in ours:
                check.equal(f"replay request, {name}: as vLLM {release}",
                            ours[name], theirs[name])
            check("replay request: bad ones are counted",
                  pub.counter("PUB_REPLAY_BAD") == 3,
                  pub.counter("PUB_REPLAY_BAD"))
            got, ended = replayed(pub)
            check("replay request: good ones are served after them",
                  ended and len(got) == 10)


def slow_reader():
    """10,000 batches to a reader that takes nothing for 2 s: all arrive, and
    the live stream is not delayed meanwhile (B4, B5)."""
    count = 10_000
    small = msgspec.msgpack.encode([1.0, [], None])
    large = msgspec.msgpack.encode(
        [1.0, [["BlockStored", [7], None, list(range(200, 900)), 700, None]],
         None])
    with publisher() as pub, sub(pub.endpoint) as live, \
            dealer(pub.replay_endpoint) as reader:
        for _ in range(count):
            pub.publish_payload(large)
        pub.flush()
        receive(live, count)
        reader.send_multipart([b"", start(0)])
        time.sleep(0.2)
        delays = []
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            sent = time.monotonic()
            pub.publish_payload(small)
            receive(live, 1)
            delays.append(time.monotonic() - sent)
            time.sleep(0.01)
        begun = time.monotonic()
        got = answer(reader)
        took = time.monotonic() - begun
        numbers = [number(frames) for frames in got[:-1]]
        # What was published meanwhile may stand behind it.
        check.equal("slow reader: all 10,000, in order, each once",
                    ranges(numbers[:count]), f"0..{count - 1}")
        check.equal("slow reader: and those behind, in order",
                    numbers[count:], list(range(count, len(numbers))))
        check("slow reader: an end marker", got[-1][-2:] == [END, b""],
              f"{took:.2f} s after the 2 s")
        check("slow reader: no batch is changed", all(
            frames[-1] == large for frames in got[:count]))
        delays.sort()
        p99 = delays[int(len(delays) * 0.99)]
        # A live stream that waits for the reader waits for all of its 2 s.
        check("slow reader: the live stream goes on meanwhile",
              p99 < 1.5,
              f"{len(delays)} batches, p99 {1000 * p99:.2f} ms")


def req_client():
    """A REQ socket can read one answer; it must not harm anybody (B3)."""
    with publisher() as pub:
        for i in range(5):
            pub.publish(_batches.batch(1, i))
        pub.flush()
        with context.socket(zmq.REQ) as reader:
            reader.linger = 0
            reader.connect(pub.replay_endpoint)
            reader.send(start(2))
            [frames] = receive(reader, 1)
            check.equal("REQ client: the first batch asked for",
                        [number(frames), frames[0]], [2, TOPIC.encode()])
        got, ended = replayed(pub)
        check("REQ client: others are served after it",
              ended and len(got) == 5)


def many_threads():
    """Four threads publish at once: numbers are the order on the wire."""
    threads, each = 4, 5_000
    given = [[] for _ in range(threads)]

    def work(pub, who):
        for i in range(each):
            given[who].append(pub.publish_payload(
                msgspec.msgpack.encode([float(i), [], who])))

    with publisher() as pub, sub(pub.endpoint) as reader:
        workers = [threading.Thread(target=work, args=(pub, who))
                   for who in range(threads)]
        for worker in workers:
            worker.start()
        got = receive(reader, threads * each)
        for worker in workers:
            worker.join()
        replay, ended = replayed(pub, threads * each - 10_000)
    total = threads * each
    check.equal("many threads: numbers on the wire",
                ranges(map(number, got)), f"0..{total - 1}")
    check.equal("many threads: every number is given once",
                sorted(n for numbers in given for n in numbers),
                list(range(total)))
    seen = [[] for _ in range(threads)]
    for frames in got:
        ts, _, who = msgspec.msgpack.decode(frames[2])
        seen[who].append((int(ts), number(frames)))
    check("many threads: each thread's batches in its order, with the "
          "numbers it was told", seen == [
              list(enumerate(numbers)) for numbers in given])
    check("many threads: the replay has the last 10,000 as they were sent",
          ended and [frames[-1] for frames in replay] ==
          [frames[-1] for frames in got[-10_000:]])


def addresses():
    """Loopback of both kinds, and a path; each is free again at once (D2,
    D7)."""
    with tempfile.TemporaryDirectory() as folder:
        places = [(LOOPBACK, LOOPBACK),
                  (f"ipc://{folder}/live", f"ipc://{folder}/replay")]
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
            places.append(("tcp://[::1]:0", "tcp://[::1]:0"))
        except OSError:
            print("      no IPv6 here")
        for live, replay in places:
            for attempt in ("first", "again"):
                with publisher(endpoint=live, replay_endpoint=replay) as pub, \
                        sub(pub.endpoint) as reader:
                    pub.publish(_batches.batch(1, 0))
                    got = receive(reader, 1)
                    check.equal(f"address {live}, {attempt}: live and replay",
                                [map_of(got), map_of(replayed(pub)[0])],
                                [[(0, got[0][-1])]] * 2 if got else None)
                # The second time on the very same ports.
                live, replay = pub.at


def map_of(messages):
    return [(number(frames), frames[-1]) for frames in messages]


BEHAVIOURS = (basic_publishing, multiple_events, replay_mechanism,
              replay_includes_topic, buffer_limit, topic_filtering,
              high_volume)
OURS = (null_publisher, data_parallel_rank_tagging, event_publisher_factory,
        layouts, replay_shapes, bad_replay_requests, slow_reader, req_client,
        many_threads, addresses)


def main():
    global make, have  # what the checks are about
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", metavar="RELEASE")
    parser.add_argument("checks", nargs="*")
    arguments = parser.parse_args()

    have, lines = _vllm_class.available()
    if arguments.reference:
        Real.release = arguments.reference
        make = Real
        chosen = BEHAVIOURS + (req_client,)
    else:
        _kve_ctypes.library()
        chosen = BEHAVIOURS + OURS
    for one in chosen:
        if arguments.checks and one.__name__ not in arguments.checks:
            continue
        try:
            one()
        except Exception:
            check(one.__name__, False, traceback.format_exc())
    for line in lines:
        print(f"not compared with {line}")
    check.finish()


if __name__ == "__main__":
    sys.exit(main())
