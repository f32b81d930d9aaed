"""The message types that vLLM's documentation shows to those who write a
subscriber, in its two forms: events as arrays (up to 0.23) and as maps.

Fields without a default must be there, those with one may be left out; array
slots and keys behind the last field are passed over.
"""

import types

import msgspec

Hash = bytes | int


def _make(array):
    form = {"array_like": array, "omit_defaults": True, "gc": False}

    class Event(msgspec.Struct, tag=True, **form):
        pass

    class BlockStored(Event):
        block_hashes: list[Hash]
        parent_block_hash: Hash | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class BlockRemoved(Event):
        block_hashes: list[Hash]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(Event):
        pass

    class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True,
                       gc=False):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return types.SimpleNamespace(
        BlockStored=BlockStored, BlockRemoved=BlockRemoved,
        AllBlocksCleared=AllBlocksCleared, KVEventBatch=KVEventBatch)


ARRAY = _make(True)
MAP = _make(False)
