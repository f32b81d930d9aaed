"""Starts processes that run the real vLLM ZmqEventPublisher, for fault.

    _vllm_starter.py RELEASE

Its standard input is a socket. Each byte that comes brings one end of a pair
of sockets along; a process is forked that listens there, and its number is
sent back in 4 bytes. So a publisher is ready at once, although Python is slow
to start, and may be killed at any moment. It is told what to do by lines:

    open LIFE BUFFER_STEPS HWM     -> ok LIVE-PORT REPLAY-PORT 0
    publish N GAP                  -> ok, when the N lines of JSON that follow
                                      (time stamp, events) were published, GAP
                                      microseconds apart
    flush                          -> ok, when all were sent
"""

import array
import json
import os
import pathlib
import signal
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] /
                       "interop"))
# pylint: disable=wrong-import-position
import _batches  # noqa: E402
import _vllm_class  # noqa: E402
from _vllm_peer import Bound  # noqa: E402

import zmq  # noqa: E402


def block_hash(value):
    return bytes.fromhex(value) if isinstance(value, str) else value


def of_line(module, event):
    """An event of a line as an object of vLLM's classes."""
    if event is None:
        return object()  # which cannot be encoded
    if "block_hashes" in event:
        event["block_hashes"] = [block_hash(h) for h in event["block_hashes"]]
    if "parent_block_hash" in event:
        event["parent_block_hash"] = block_hash(event["parent_block_hash"])
    return _batches.struct(module, event)


class Publisher:
    def __init__(self, module, file):
        self.module = module
        self.file = file
        self.publisher = None

    def answer(self, text):
        self.file.write(text.encode() + b"\n")
        self.file.flush()

    def do_open(self, _life, buffer_steps, hwm):
        at = []

        class Telling(self.module.ZmqEventPublisher):
            """Tells where it is: its thread does not run yet here."""

            def _socket_setup(self):
                super()._socket_setup()
                at.extend(s.getsockopt_string(zmq.LAST_ENDPOINT)
                          for s in (self._pub, self._replay))

        options = {"hwm": int(hwm)} if int(hwm) else {}
        self.publisher = Telling(
            0, endpoint=Bound("tcp://127.0.0.1:*"),
            replay_endpoint=Bound("tcp://127.0.0.1:*"),
            buffer_steps=int(buffer_steps), **options)
        ports = [endpoint.rsplit(":", 1)[1] for endpoint in at]
        self.answer(f"ok {ports[0]} {ports[1]} 0")

    def do_publish(self, n, gap):
        for _ in range(int(n)):
            ts, *events = json.loads(self.file.readline())
            self.publisher.publish(self.module.KVEventBatch(
                ts=ts, events=[of_line(self.module, event)
                               for event in events]))
            if int(gap):
                time.sleep(int(gap) / 1e6)
        self.answer("ok")

    def do_flush(self):
        while self.publisher._event_queue.qsize():
            time.sleep(0.001)
        self.answer("ok")

    def serve(self):
        for line in self.file:
            verb, *arguments = line.decode().split()
            getattr(self, "do_" + verb)(*arguments)
        if self.publisher is not None:
            self.publisher.shutdown()


def main():
    try:
        module = _vllm_class.load(sys.argv[1])
    except _vllm_class.Unavailable as error:
        sys.exit(f"_vllm_starter.py: vLLM {sys.argv[1]}: {error}")
    starter = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        fds = array.array("i")
        data, ancillary, *_ = starter.recvmsg(1, socket.CMSG_SPACE(4))
        if not data:
            return
        for _level, _kind, content in ancillary:
            fds.frombytes(content[:4])
        pid = os.fork()
        if pid == 0:
            starter.close()
            with socket.socket(fileno=fds[0]) as end:
                Publisher(module, end.makefile("rwb")).serve()
            os._exit(0)
        os.close(fds[0])
        starter.sendall(pid.to_bytes(4, sys.byteorder))


if __name__ == "__main__":
    main()
