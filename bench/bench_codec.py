"""msgspec with vLLM's classes: decode and encode every payload of a file.

    bench_codec.py FILE

Prints one JSON line with CPU nanoseconds a batch for both. Nothing is decoded
or encoded twice in the pass that is timed.
"""

import collections
import json
import sys
import time

import msgspec

import codec_types


def timer_cost():
    """What two looks at the clock take by themselves."""
    return min(-time.process_time_ns() + time.process_time_ns()
               for _ in range(1000))


def time_each(function, items):
    """CPU nanoseconds of function over items; results are dropped at once."""
    cost = timer_cost()
    start = time.process_time_ns()
    collections.deque(map(function, items), maxlen=0)
    return (time.process_time_ns() - start - cost) / len(items)


def main():
    payloads = codec_types.read_payloads(sys.argv[1])
    decoder = msgspec.msgpack.Decoder(type=codec_types.KVEventBatch)
    encoder = msgspec.msgpack.Encoder()

    # What is decoded here was not seen before; a first pass over a tenth of
    # it, copied, lets both sides start warm.
    warm = [bytes(bytearray(p)) for p in payloads[::10]]
    collections.deque(map(decoder.decode, warm), maxlen=0)
    decode = time_each(decoder.decode, payloads)

    batches = [decoder.decode(p) for p in payloads]
    collections.deque(map(encoder.encode, batches[::10]), maxlen=0)
    encode = time_each(encoder.encode, batches)
    print(json.dumps({"decode": decode, "encode": encode,
                      "batches": len(payloads),
                      "bytes": sum(map(len, payloads))}))


main()
