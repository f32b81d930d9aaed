#!/usr/bin/env python3
"""The peer of bench_stream: vLLM's ZmqEventPublisher to a pyzmq SUB.

    bench_stream.py RELEASE BATCHES TOKENS

A child publishes one-event batches with vLLM's own classes; the parent takes
the frames and decodes nothing. One JSON object, as bench_stream prints it.
"""

import json
import multiprocessing
import pathlib
import random
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent
                       / "tests" / "interop"))
import _vllm_class  # noqa: E402

import zmq  # noqa: E402

HWM = 10_000_000


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Bound(str):
    """vLLM binds endpoints with a * or ::; a loopback port needs this."""

    def __contains__(self, part):
        return part == "*" or super().__contains__(part)


def publish(pipe, release, batches, n_tokens):
    vllm = _vllm_class.load(release)

    class Publisher(vllm.ZmqEventPublisher):
        """Tells where it is bound."""

        def _socket_setup(self):
            super()._socket_setup()
            pipe.send(self._pub.getsockopt_string(zmq.LAST_ENDPOINT))

    publisher = Publisher(0, endpoint=Bound("tcp://127.0.0.1:*"), hwm=HWM,
                          max_queue_size=100_000)
    rng = random.Random(1)
    # The events stand ready: what is measured is the way, not their making.
    ready = [vllm.KVEventBatch(ts=1.7e9, events=[vllm.BlockStored(
        block_hashes=[rng.getrandbits(64)], parent_block_hash=None,
        token_ids=[rng.randrange(131072) for _ in range(n_tokens)],
        block_size=n_tokens, lora_id=None, medium="GPU", lora_name=None)])
        for _ in range(20_000)]
    pipe.recv()
    start = cpu()
    for i in range(batches):
        publisher.publish(ready[i % len(ready)])
    pipe.recv()
    pipe.send(cpu() - start)
    publisher.shutdown()


def main():
    release, batches, n_tokens = (sys.argv[1], int(sys.argv[2]),
                                  int(sys.argv[3]))
    pipe, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=publish, args=(theirs, release, batches, n_tokens))
    child.start()
    sub = zmq.Context().socket(zmq.SUB)
    sub.set(zmq.RCVHWM, HWM)
    sub.set(zmq.RCVTIMEO, 10_000)
    sub.subscribe(b"")
    sub.connect(pipe.recv())
    time.sleep(0.5)

    start = cpu()
    pipe.send("go")
    received = size = 0
    first = 0.0
    last_seq = -1
    while last_seq < batches - 1:
        try:
            _, seq, payload = sub.recv_multipart()
        except zmq.Again:
            break
        if not received:
            first = time.monotonic()
        received += 1
        size += len(payload)
        last_seq = int.from_bytes(seq, "big")
    seconds = time.monotonic() - first
    mine = cpu() - start
    pipe.send("done")
    used = pipe.recv()
    child.join()
    print(json.dumps({
        "batches": received, "tokens": n_tokens, "seconds": seconds,
        "batches_per_s": received / seconds,
        "cpu_ns_publisher": used * 1e9 / batches,
        "cpu_ns_subscriber": mine * 1e9 / batches,
        "payload_bytes": size / received, "lost": batches - received}))


if __name__ == "__main__":
    main()
