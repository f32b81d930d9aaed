"""What vLLM publishes, as its own classes write it, for the codec benchmarks.

The classes have the fields, order, defaults and options of vLLM 0.33, so that
msgspec does here exactly the work it does in an engine and in a subscriber
written after vLLM's documentation. make_batches() fills them; every batch of a
set is different, and so is every list of tokens in it.
"""

import bisect
import itertools
import random
import struct
from typing import Any

import msgspec

Hash = bytes | int
OPTIONS = {"array_like": False, "omit_defaults": True, "gc": False}
VOCABULARY = 131072
BLOCK_SIZE = 16
TOKENS_A_PASS = 1 << 21


class Event(msgspec.Struct, tag=True, **OPTIONS):
    pass


class BlockStored(Event):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(Event):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True,
                   gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


# Events in a batch, tokens in an event.
SHAPES = {"1x16": (1, 16), "64x64": (64, 64)}


def zipf_weights():
    """Running sums of 1/rank: token r is 1/r as likely as token 1."""
    return list(itertools.accumulate(1 / r for r in range(1, VOCABULARY + 1)))


def token_source(name, rng):
    """A function that draws n token ids of a distribution."""
    if name == "uniform":
        return lambda n: [rng.randrange(VOCABULARY) for _ in range(n)]
    if name == "all3":
        return lambda n: [rng.randrange(256, 65536) for _ in range(n)]
    sums = zipf_weights()
    return lambda n: [bisect.bisect(sums, rng.random() * sums[-1])
                      for _ in range(n)]


DISTRIBUTIONS = ("uniform", "all3", "zipf")


def make_batches(shape, distribution, seed=1):
    """Batches that hold TOKENS_A_PASS tokens in all."""
    n_events, n_tokens = SHAPES[shape]
    rng = random.Random(f"{shape} {distribution} {seed}")
    draw = token_source(distribution, rng)
    n_hashes = n_tokens // BLOCK_SIZE

    def stored():
        return BlockStored(
            block_hashes=[rng.getrandbits(64) for _ in range(n_hashes)],
            parent_block_hash=rng.getrandbits(64),
            token_ids=draw(n_tokens), block_size=BLOCK_SIZE, lora_id=None,
            medium="GPU", lora_name=None, extra_keys=[None] * n_hashes,
            group_idx=0, kv_cache_spec_kind="full_attention")

    for i in range(TOKENS_A_PASS // (n_events * n_tokens)):
        yield KVEventBatch(ts=1.8e9 + i / 64,
                           events=[stored() for _ in range(n_events)],
                           data_parallel_rank=0)


def write_payloads(path, batches):
    """Payloads in a file, each behind its length as 4 bytes, little-endian."""
    encode = msgspec.msgpack.Encoder().encode
    with open(path, "wb") as out:
        for batch in batches:
            payload = encode(batch)
            out.write(struct.pack("<I", len(payload)) + payload)


def read_payloads(path):
    with open(path, "rb") as file:
        data = file.read()
    payloads, at = [], 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        payloads.append(data[at + 4:at + 4 + n])
        at += 4 + n
    return payloads
