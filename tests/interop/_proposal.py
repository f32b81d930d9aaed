"""Both ends of the snapshot proposal in plain Python: pyzmq and msgspec.

    Recorder      folds what was published into the program of a snapshot
    Publisher     live, replay and snapshot sockets, heartbeats, ids
    Subscriber    the example's protocol: bootstrap, follow, start again

Nothing of the library is used here; the tests hold it against these.
"""

import collections
import os
import queue
import threading
import time

import msgspec
import zmq

import _batches
import _cache
import _fold
from _harness import ANY, END

WORD = b"snapshot"
UNAVAILABLE = -2
CHUNK = 256         # events a chunk at most

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode


def signed(number):
    return number.to_bytes(8, "big", signed=True)


# ---------------------------------------------------------------------------


class Recorder:
    """What is there and what was taught about it."""

    def __init__(self):
        self.fold = _fold.Fold(gpu_only=True)
        self.taught = {}

    def apply(self, events):
        self.fold.apply(events)
        self.taught.update(_cache.taught_by(events))

    def _order(self):
        """Blocks that can be rebuilt, parents first, dead ancestors too."""
        order, known = [], set()
        for *_, value in sorted(self.fold.copies, key=str):
            chain = []
            while value is not None and value not in known:
                if value not in self.taught:
                    break
                chain.append(value)
                value = self.taught[value].get("parent_block_hash")
            if value is None or value in known:
                known.update(chain)
                order += reversed(chain)
        return order

    def program(self):
        """The events that make this residency in a fresh index."""
        order = self._order()
        live = {key[4] for key in self.fold.copies}
        first, dead, more, last = [], [], [], []
        for value in order:
            one = dict(self.taught[value])
            keys = one.pop("extra_keys")
            store = {"type": "BlockStored", "block_hashes": [value],
                     "parent_block_hash": None, "lora_id": None,
                     "lora_name": None, **one, "medium": "GPU"}
            if keys:
                store["extra_keys"] = [keys]
            first.append(store)
            removal = {"type": "BlockRemoved", "block_hashes": [value],
                       "medium": "GPU"}
            if "group_idx" in one:
                removal["group_idx"] = one["group_idx"]
            (last if value in live else dead).append(removal)
        for (medium, locality, ownership, group, value), n in \
                self.fold.copies.items():
            if value not in self.taught:
                continue
            store = {"type": "BlockStored", "block_hashes": [value],
                     "parent_block_hash": None, "token_ids": [],
                     "block_size": 0, "lora_id": None, "medium": medium,
                     "lora_name": None}
            store.update((name, field) for name, field in (
                ("group_idx", group), ("locality", locality),
                ("ownership", ownership)) if field is not None)
            more += [store] * n
        return first + dead + more + last

    def chunks(self):
        events = self.program()
        return [pack([time.time(), events[at:at + CHUNK], None])
                for at in range(0, len(events), CHUNK)]


# ---------------------------------------------------------------------------


class Publisher(threading.Thread):
    """A publisher of one life after the other.

    snapshots says how requests for one are answered: "serve", "silent",
    "unavailable", or a function that makes the reply's frames of the right
    ones. With long_number the id stands behind the number and not in the
    batch, as a draft had it.
    """

    def __init__(self, heartbeat=0.3, snapshots="serve", replay=True,
                 long_number=False, buffer_steps=10_000):
        super().__init__(daemon=True)
        self.heartbeat = heartbeat
        self.snapshots = snapshots
        self.long_number = long_number
        self.buffer_steps = buffer_steps
        self.withhold = lambda number: False
        self.requests = collections.Counter()
        self.orders = queue.Queue()
        self.context = zmq.Context()
        self.ended = threading.Event()
        self.recorder = None
        self._open(ANY, ANY if replay else None, ANY)
        self._new_life(0)
        self.start()

    def _open(self, live, replay, snapshot):
        def bound(kind, at):
            if not at:
                return None, None
            socket = self.context.socket(kind)
            socket.linger = 0
            socket.set_hwm(0)
            socket.bind(at)
            return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)

        self.pub, self.live = bound(zmq.PUB, live)
        self.router, self.replay = bound(zmq.ROUTER, replay)
        self.server, self.snapshot = bound(zmq.ROUTER, snapshot)

    def _new_life(self, first):
        self.id = os.urandom(16)
        self.next = first
        self.buffer = collections.deque(maxlen=self.buffer_steps)
        self.recorder = Recorder()

    # -- orders of the test, carried out by the thread

    def _order(self, what):
        done = threading.Event()
        self.orders.put((what, done))
        done.wait()

    def publish(self, *batches):
        """Publish batches, each a list of events."""
        def do():
            for events in batches:
                self._send(events)
        self._order(do)

    def restart(self, first=0):
        """Another life with another id, at the same endpoints."""
        self._order(lambda: self._new_life(first))

    def close(self):
        self.ended.set()
        self.join()
        self.context.destroy(linger=0)

    # -- the thread

    def _frames(self, number, payload):
        text = number.to_bytes(8, "big")
        return [text + self.id if self.long_number else text, payload]

    def _send(self, events):
        number, self.next = self.next, self.next + 1
        batch = [time.time(), events, 0]
        if not self.long_number:
            batch.append(self.id)
        frames = self._frames(number, pack(batch))
        self.recorder.apply(_batches.plain_wire(events))
        self.buffer.append((number, frames))
        if not self.withhold(number):
            self.pub.send_multipart([b"kv-events", *frames])
        self.quiet_since = time.monotonic()

    def _reply(self):
        if self.snapshots == "unavailable":
            return [signed(UNAVAILABLE), self.id]
        right = [signed(self.next - 1), self.id, *self.recorder.chunks()]
        if callable(self.snapshots):
            return self.snapshots(right)
        return right

    def _answer_snapshot(self, socket, who):
        self.requests["snapshot"] += 1
        if self.snapshots != "silent":
            socket.send_multipart([who, b"", *self._reply()])

    def _answer_replay(self, who, start):
        self.requests["replay"] += 1
        for number, frames in list(self.buffer):
            if number >= start:
                self.router.send_multipart([who, b"", b"kv-events", *frames])
        self.router.send_multipart([who, b"", b"", END, b""])

    def _serve(self, socket):
        who, *request = socket.recv_multipart()
        if request == [b"", WORD]:
            self._answer_snapshot(socket, who)
        elif socket is self.router and len(request) == 2:
            self._answer_replay(who, int.from_bytes(request[1], "big"))
        else:
            self.requests["odd"] += 1

    def run(self):
        poller = zmq.Poller()
        for socket in filter(None, (self.router, self.server)):
            poller.register(socket, zmq.POLLIN)
        self.quiet_since = time.monotonic()
        while not self.ended.is_set():
            for socket, _ in poller.poll(5):
                self._serve(socket)
            while not self.orders.empty():
                what, done = self.orders.get()
                what()
                done.set()
            if self.heartbeat and \
                    time.monotonic() - self.quiet_since > self.heartbeat:
                self._send([])


# ---------------------------------------------------------------------------


class Subscriber(threading.Thread):
    """The example's protocol.

    It first receives a live message, then asks for a snapshot and keeps what
    comes live; it builds a private fold from the chunks, applies what it kept
    and only then shows it. A gap, another id, silence or a reply that is
    wrong makes the source unavailable, and it starts again.
    """

    def __init__(self, live, snapshot, kind=zmq.REQ, topic="",
                 time_out=5.0):
        super().__init__(daemon=True)
        self.at = snapshot
        self.kind = kind
        self.time_out = time_out
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.set_hwm(0)
        self.sub.linger = 0
        self.sub.subscribe(topic)
        self.sub.connect(live)
        self.lock = threading.Lock()
        self.visible = None     # a Fold, None while unavailable
        self.number = None
        self.id = None
        self.bootstraps = 0
        self.restarts = collections.Counter()   # by reason
        self.replies = []       # (number, id, chunks)
        self.ended = threading.Event()
        self.start()

    def close(self):
        self.ended.set()
        self.join()
        self.context.destroy(linger=0)

    def shown(self):
        """(number, copies) or None."""
        with self.lock:
            return self.visible and (self.number, self.visible.cached())

    def _live(self, wait):
        """(number, id, events) or None."""
        if not self.sub.poll(1000 * wait):
            return None
        _, number, payload = self.sub.recv_multipart()
        batch = unpack(payload)
        return (int.from_bytes(number[:8], "big"), batch[3],
                _batches.plain_wire(batch[1]))

    def _ask(self, kept):
        """A reply's frames; live messages are kept meanwhile."""
        with self.context.socket(self.kind) as socket:
            socket.linger = 0
            socket.connect(self.at)
            socket.send_multipart([WORD] if self.kind == zmq.REQ
                                  else [b"", WORD])
            until = time.monotonic() + self.time_out
            while time.monotonic() < until and not self.ended.is_set():
                got = self._live(0.005)
                if got:
                    kept.append(got)
                if socket.poll(0):
                    frames = socket.recv_multipart()
                    return frames if self.kind == zmq.REQ else frames[1:]
        raise Again("time-out")

    def _get_whole(self):
        kept = []
        while not kept:
            if self.ended.is_set():
                raise Again("end")
            got = self._live(0.1)
            kept += [got] if got else []
        number, life, *chunks = self._ask(kept)
        number = int.from_bytes(number, "big", signed=True)
        self.replies.append((number, life, chunks))
        if number == UNAVAILABLE:
            raise Again("unavailable")
        fold = _fold.Fold(gpu_only=True)
        for chunk in chunks:
            fold.apply(_batches.plain_wire(unpack(chunk)[1]))
        for item in kept:
            if item[0] > number:
                number = self._next(fold, number, life, item)
        with self.lock:
            self.visible, self.number, self.id = fold, number, life
        self.bootstraps += 1

    @staticmethod
    def _next(fold, number, life, item):
        if item[1] != life:
            raise Again("another id")
        if item[0] != number + 1:
            raise Again("gap")
        fold.apply(item[2])
        return item[0]

    def _follow(self):
        heard = time.monotonic()
        while not self.ended.is_set():
            got = self._live(0.05)
            if got is None:
                if time.monotonic() - heard > self.time_out:
                    raise Again("silence")
                continue
            heard = time.monotonic()
            with self.lock:
                self.number = self._next(self.visible, self.number, self.id,
                                         got)

    def run(self):
        while not self.ended.is_set():
            try:
                self._get_whole()
                self._follow()
            except Again as why:
                self.restarts[str(why)] += 1
                with self.lock:
                    self.visible = None
                self.ended.wait(0.05)


class Again(Exception):
    """The source is unavailable: start again."""
