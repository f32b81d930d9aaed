"""What the tests of this folder share: checks, relays, processes, readers.

    publisher --live--> Relay (withholds) --live--> reader
        ^                                             |
        +---- replay ---- ReplayTap (counts) <--------+

Everything listens on loopback, on ports the system picks.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import zmq

HERE = pathlib.Path(__file__).resolve().parent
ANY = "tcp://127.0.0.1:*"
END = b"\xff" * 8
SANITIZED = bool(os.environ.get("KVEVENTS_SANITIZE"))
# Patience, not speed, is what time limits here are for.
PATIENCE = 20 * (4 if SANITIZED else 1)


def skip(why):
    """End the test as skipped, with one line that says why."""
    print(f"skipped: {why}", flush=True)
    sys.exit(77)


def command():
    """The kvevents command under test."""
    build = os.environ.get("KVEVENTS_BUILD_DIR", HERE.parents[1] /
                           "build" / "release")
    path = pathlib.Path(os.environ.get("KVEVENTS_BIN") or
                        pathlib.Path(build) / "kvevents")
    if not os.access(path, os.X_OK):
        skip(f"no command {path.name} was built")
    return str(path)


class Checks:
    """One printed line a check; finish() ends the test by them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.passed = 0
        self.failed = 0

    def __call__(self, what, right, detail=""):
        with self.lock:
            if right:
                self.passed += 1
                print(f"ok    {what}" + (f" ({detail})" if detail else ""),
                      flush=True)
            else:
                self.failed += 1
                print(f"FAIL  {what}: {detail}", flush=True)
        return bool(right)

    def equal(self, what, got, wanted):
        return self(what, got == wanted,
                    "" if got == wanted else
                    f"got {shortened(got)}, wanted {shortened(wanted)}")

    def finish(self):
        print(f"{self.passed} checks passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)


def shortened(value, limit=600):
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def ranges(numbers):
    """Numbers as text: 0..7, 9."""
    parts = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in parts)


def eventually(condition, seconds=PATIENCE, pause=time.sleep):
    """Whether condition() became true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        pause(0.05)
    return True


# ---------------------------------------------------------------------------
# Between publisher and reader


class _Loop(threading.Thread):
    """A thread with sockets of its own, ended by close()."""

    def __init__(self):
        super().__init__(daemon=True)
        self.context = zmq.Context()
        self.ended = threading.Event()

    def socket(self, kind):
        socket = self.context.socket(kind)
        socket.set_hwm(0)
        socket.linger = 0
        return socket

    def close(self):
        self.ended.set()
        self.join()
        self.context.destroy(linger=0)


class Relay(_Loop):
    """Passes live messages on, but for those it is told to withhold.

    withhold(number, life) decides; life counts how often numbers fell. With
    withhold_last, a message that nothing follows for so many seconds is
    withheld as well; each message waits for the next one then.
    """

    def __init__(self, upstream, withhold=lambda number, life: False,
                 withhold_last=0):
        super().__init__()
        self.withhold = withhold
        self.withhold_last = withhold_last
        self.withheld = []
        self.passed = 0
        self.subscribed = threading.Event()
        self.upstream = self.socket(zmq.XSUB)
        self.upstream.connect(upstream)
        self.downstream = self.socket(zmq.XPUB)
        self.downstream.bind(ANY)
        self.endpoint = self.downstream.getsockopt_string(zmq.LAST_ENDPOINT)
        self.start()

    def _receive(self):
        """All that has come: (number, frames)."""
        while not self.ended.is_set():
            try:
                frames = self.upstream.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield int.from_bytes(frames[1][:8], "big"), frames

    def _pass_on(self, number, frames, life):
        if self.withhold(number, life):
            self.withheld.append(number)
        else:
            self.passed += 1
            self.downstream.send_multipart(frames)

    def run(self):
        poller = zmq.Poller()
        poller.register(self.upstream, zmq.POLLIN)
        poller.register(self.downstream, zmq.POLLIN)
        life, last, waiting, since = 0, -1, None, 0.0
        while not self.ended.is_set():
            ready = dict(poller.poll(20))
            if self.downstream in ready:
                self.upstream.send(self.downstream.recv())
                self.subscribed.set()
            for number, frames in self._receive():
                life += number <= last
                last = number
                if not self.withhold_last:
                    self._pass_on(number, frames, life)
                    continue
                if waiting:
                    self._pass_on(*waiting)
                waiting, since = (number, frames, life), time.monotonic()
            if waiting and time.monotonic() - since > self.withhold_last:
                self.withheld.append(waiting[0])
                waiting = None

    def wait_for_reader(self):
        """Until a reader's subscription has come through to the publisher."""
        if not self.subscribed.wait(PATIENCE):
            raise TimeoutError("no reader subscribed")
        time.sleep(0.2)


class ReplayTap(_Loop):
    """Passes replay requests and answers on; remembers the requests."""

    def __init__(self, upstream):
        super().__init__()
        self.starts = []
        self.to = upstream
        self.front = self.socket(zmq.ROUTER)
        self.front.bind(ANY)
        self.endpoint = self.front.getsockopt_string(zmq.LAST_ENDPOINT)
        self.start()

    def run(self):
        poller = zmq.Poller()
        poller.register(self.front, zmq.POLLIN)
        behind, whose = {}, {}
        while not self.ended.is_set():
            for socket, _ in poller.poll(20):
                frames = socket.recv_multipart()
                if socket is not self.front:
                    self.front.send_multipart([whose[socket], *frames])
                    continue
                name = frames.pop(0)
                if name not in behind:
                    behind[name] = self.socket(zmq.DEALER)
                    behind[name].connect(self.to)
                    whose[behind[name]] = name
                    poller.register(behind[name], zmq.POLLIN)
                self.starts.append(int.from_bytes(frames[-1], "big"))
                behind[name].send_multipart(frames)


# ---------------------------------------------------------------------------
# Processes


class Process:
    """A child with its standard error in a file."""

    def __init__(self, arguments, **options):
        self.errors = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            [str(argument) for argument in arguments], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, **options)

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def kill(self):
        self.child.kill()
        self.child.wait()

    def pause(self):
        """Stop it and wait until it stands."""
        self.child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.child.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self):
        self.child.send_signal(signal.SIGCONT)


class VllmPeer(Process):
    """The real publisher of one release, in a process of its own."""

    def __init__(self, release):
        super().__init__([sys.executable, HERE / "_vllm_peer.py", release])
        self.live = self.replay = None

    def do(self, verb, **arguments):
        self.child.stdin.write(json.dumps({"do": verb, **arguments}) + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{verb}: the publisher ended: {self.stderr()}")
        return json.loads(answer)

    def open(self, live=ANY, replay=ANY, **options):
        at = self.do("open", live=live, replay=replay, **options)
        self.live, self.replay = at["live"], at["replay"]

    def publish(self, first, n, life=1, **arguments):
        self.do("publish", life=life, first=first, n=n, **arguments)


# ---------------------------------------------------------------------------
# Readers: what they received, as items in order


class Reader:
    """What a reader said, as a list of tuples:

        ("batch", number, events, replayed, hidden)
        ("chunk", number, events)    a part of a snapshot
        ("begin",), ("swap",), ("abort",)    of the twin
        ("clear",)
        ("lost", first, last)
        ("state", name, reason)
        ("other", what it was)

    and behind each the time it was said at. Events are as _batches has them.
    """

    def __init__(self):
        self.items = []
        self.changed = threading.Condition()

    def add(self, *item):
        with self.changed:
            self.items.append((*item, time.monotonic()))
            self.changed.notify_all()

    def wait(self, condition, seconds=PATIENCE):
        """Whether condition(self) became true in time."""
        with self.changed:
            return eventually(lambda: condition(self), seconds,
                              self.changed.wait)

    def of(self, kind):
        return [item[1:-1] for item in self.items if item[0] == kind]

    def numbers(self):
        return [item[1] for item in self.items if item[0] == "batch"]

    def batches(self):
        return [(number, events) for number, events, *_ in self.of("batch")]

    def replayed(self):
        """The numbers of batches that came by replay."""
        return {number for number, _, replayed, _ in self.of("batch")
                if replayed}

    def states(self):
        return [name for name, _ in self.of("state")]

    def lost(self):
        """Every number said to be lost, in the order it was said."""
        return [number for first, last in self.of("lost")
                for number in range(first, last + 1)]

    def forgot(self):
        """Whether it was told to forget what it had, at once or by a twin
        that took its place."""
        return bool(self.of("clear") or self.of("swap"))

    def standing(self):
        """The batches that what is visible is made of."""
        visible, twin = [], None
        for kind, *item in list(self.items):
            if kind == "batch":
                number, events, _, hidden, _ = item
                (twin if hidden else visible).append((number, events))
            elif kind == "begin":
                twin = []
            elif kind == "swap":
                visible, twin = twin, None
            elif kind == "abort":
                twin = None
            elif kind == "clear":
                visible, twin = [], None
        return visible

    def has(self, number):
        return number in self.numbers()


class Reference(Reader):
    """A reader in plain pyzmq, by the protocol's text: it shows that the
    judges are right before they judge anybody else."""

    PROBE = 0.5
    TIME_OUT = 2.0

    def __init__(self, live, replay=None, topic=""):
        super().__init__()
        import msgspec
        self.decode = msgspec.msgpack.Decoder().decode
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.set_hwm(0)
        self.sub.subscribe(topic)
        self.sub.connect(live)
        self.replay_at = replay
        self.next = 0
        self.last_payload = None
        self.requests = 0
        self.ended = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _events(self, payload):
        from _batches import plain_wire
        return plain_wire(self.decode(payload)[1])

    def _deliver(self, number, payload, replayed):
        self.add("batch", number, self._events(payload), replayed, False)
        self.next = number + 1
        self.last_payload = payload

    def _ask(self, start):
        """Yield (number, payload) of one answer; None at its end marker."""
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(self.replay_at)
            dealer.send_multipart([b"", start.to_bytes(8, "big")])
            self.requests += 1
            while self.go.wait() and dealer.poll(1000 * self.TIME_OUT):
                *_, number, payload = dealer.recv_multipart()
                if number == END and not payload:
                    yield None
                    return
                yield int.from_bytes(number, "big"), payload

    def _restart(self):
        self.add("clear")
        self.next, self.last_payload = 0, None

    def _recover(self):
        """Ask until an answer ends with nothing missing before it."""
        again = False
        while True:
            first = True
            for got in self._ask(self.next):
                if got is None:
                    return
                number, payload = got
                if first and number > self.next:
                    # Gone for good. Before the first answer: start anew.
                    self.add("lost", self.next, number - 1)
                    if not again:
                        self.add("clear")
                    self.next = number
                first = False
                if number > self.next:
                    break
                if number == self.next:
                    self._deliver(number, payload, True)
            again = True

    def _probe(self):
        """Is the last number we have still the publisher's last?"""
        if not self.next:
            return self._recover()
        answer = list(self._ask(self.next - 1))
        if not answer or answer[-1] is not None:
            return None
        if answer[0] is None or answer[0] != (self.next - 1,
                                              self.last_payload):
            self._restart()
        if len(answer) != 2:
            self._recover()
        return None

    def _run(self):
        quiet = time.monotonic() - self.PROBE + 0.1
        while not self.ended.is_set():
            if self.sub.poll(20):
                _, number, payload = self.sub.recv_multipart()
                number = int.from_bytes(number, "big")
                if number < self.next and payload != self.last_payload \
                        and number == 0:
                    self._restart()
                if number > self.next:
                    self._recover()
                if number == self.next:
                    self._deliver(number, payload, False)
                quiet = time.monotonic()
            elif time.monotonic() - quiet > self.PROBE:
                self._probe()
                quiet = time.monotonic()

    def pause(self):
        self.go.clear()

    def resume(self):
        self.go.set()

    def close(self):
        self.ended.set()
        self.go.set()
        self.thread.join()
        if not self.context.closed:
            self.context.destroy(linger=0)
        return 130


class Watch(Reader, Process):
    """kvevents watch --format json."""

    def __init__(self, live, replay=None, topic="", *options):
        Reader.__init__(self)
        self.unreadable = []
        self.counters = {}  # known when it has ended
        arguments = [command(), "watch", live, "--format", "json", "--stats",
                     "--topic", topic, *options]
        if replay:
            arguments += ["--replay", replay]
        Process.__init__(self, arguments)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @staticmethod
    def hash(text):
        """Hashes are written as strings: decimal, or hex for bytes."""
        if text.startswith("hex:"):
            return bytes.fromhex(text[4:])
        return bytes.fromhex(text) if len(text) > 20 else int(text)

    @classmethod
    def value(cls, value):
        """A value as msgpack would have given it."""
        if isinstance(value, list):
            return [cls.value(item) for item in value]
        if isinstance(value, dict):
            return bytes.fromhex(value["$bytes"])
        return value

    @classmethod
    def event(cls, event):
        got = {}
        for name, value in event.items():
            if name == "block_hashes":
                got[name] = [cls.hash(text) for text in value]
            elif name == "parent_block_hash" and value is not None:
                got[name] = cls.hash(value)
            elif value is not None:
                got[name] = cls.value(value)
        return got

    def _take(self, line):
        got = json.loads(line)
        if got["kind"] == "batch":
            if got["faults"] or "error" in got:
                self.unreadable.append(line)
            events = [self.event(event) for event in got["events"]]
            if got["snapshot"]:
                self.add("chunk", got["seq"], events)
            else:
                self.add("batch", got["seq"], events, got["replayed"],
                         got["hidden"])
        elif got["kind"] == "notice" and got["type"] == "lost":
            self.add("lost", got["first"], got["last"])
        elif got["kind"] == "notice" and got["type"] in (
                "clear", "begin", "swap", "abort"):
            self.add(got["type"])
        elif got["kind"] == "notice" and got["type"] == "state":
            self.add("state", got["state"], got["reason"])
        elif got["kind"] == "stats":
            self.counters = got["counters"]
        else:
            self.add("other", got)

    def _read(self):
        for line in self.child.stdout:
            # One that was killed may leave half a line, as its last.
            if not line.endswith("\n"):
                break
            try:
                self._take(line)
            except (ValueError, KeyError, TypeError) as error:
                self.unreadable.append(f"{error}: {line}")

    def close(self):
        """Interrupt it; its exit status."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        self.thread.join(PATIENCE)
        self.requests = self.counters.get("replays", -1)
        return self.child.returncode
