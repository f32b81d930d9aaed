"""Plain pyzmq and msgspec readers of a publisher, for the tests here."""

import contextlib
import socket
import time

import msgspec
import zmq

import _batches
import _doc_types
import _harness
from _harness import END

TOPIC = "kv-events"
context = zmq.Context()


@contextlib.contextmanager
def sub(endpoint, topic=TOPIC, hwm=0):
    with context.socket(zmq.SUB) as reader:
        reader.linger = 0
        reader.ipv6 = True
        reader.set_hwm(hwm)
        reader.subscribe(topic)
        # The subscription follows the handshake; the publisher must have it.
        monitor = reader.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        reader.connect(endpoint)
        monitor.poll(1000 * _harness.PATIENCE)
        reader.disable_monitor()
        time.sleep(0.2)
        yield reader


@contextlib.contextmanager
def dealer(endpoint, hwm=1000):
    with context.socket(zmq.DEALER) as reader:
        reader.linger = 0
        reader.ipv6 = True
        reader.set_hwm(hwm)
        reader.connect(endpoint)
        yield reader


def receive(reader, count, seconds=_harness.PATIENCE):
    """Up to count messages, fewer when there are no more in time."""
    got = []
    while len(got) < count and reader.poll(1000 * seconds):
        got.append(reader.recv_multipart())
    return got


def answer(reader, *request, seconds=_harness.PATIENCE):
    """Send a request; its answer's messages, with the end marker."""
    if request:
        reader.send_multipart(request)
    got = []
    while reader.poll(1000 * seconds):
        got.append(reader.recv_multipart())
        if got[-1][-2:] == [END, b""]:
            break
    return got


def number(frames):
    return int.from_bytes(frames[-2], "big")


def start(value):
    return value.to_bytes(8, "big")


def decode(payload, module=_doc_types.MAP):
    batch = msgspec.msgpack.decode(payload, type=module.KVEventBatch)
    return [_batches.plain(event) for event in batch.events], batch


def replayed(pub, first=0):
    """The data messages of a replay, and whether it ended as it must."""
    with dealer(pub.replay_endpoint) as reader:
        got = answer(reader, b"", start(first))
    return got[:-1], bool(got) and got[-1][-2:] == [END, b""]


def free_ports(count):
    """The first of count free ports in a row."""
    for _ in range(200):
        with contextlib.ExitStack() as stack:
            try:
                first = stack.enter_context(socket.socket())
                first.bind(("127.0.0.1", 0))
                port = first.getsockname()[1]
                for more in range(1, count):
                    stack.enter_context(socket.socket()).bind(
                        ("127.0.0.1", port + more))
                return port
            except (OSError, OverflowError):
                continue
    raise OSError("no free ports in a row")
