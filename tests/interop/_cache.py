"""A cache that lives: events as an engine would send them, and their truth.

Chains grow from what is there, blocks get second copies and lie on further
tiers, under other groups, localities and owners; copies leave in any order,
so that blocks outlive their parents; now and then all is cleared. Every block
was taught: it was stored once with its tokens while its parent was there.
"""

import random

import _batches
import _fold

SIZE = 4    # tokens a block
SCOPES = (  # where copies without tokens lie
    {"medium": "CPU"},
    {"medium": "CPU", "group_idx": 1},
    {"medium": "STORAGE", "locality": "REMOTE"},
    {"medium": "STORAGE", "locality": "LOCAL", "ownership": "tier-1"},
)


class Cache:
    """batch() gives the next batch's events; truth is what is then there."""

    def __init__(self, seed, clears=True):
        self.draw = random.Random(seed)
        self.clears = clears
        self.made = 0
        self.truth = _fold.Fold(gpu_only=True)
        self.taught = {}    # hash -> what a store of it alone would say
        self.salt = f"life-{seed}"

    def _hash(self):
        self.made += 1
        number = self.draw.getrandbits(64)
        return number.to_bytes(8, "big") * 4 if self.made % 3 == 2 else number

    def _live(self):
        return sorted(self.truth.copies, key=str)

    def _grow(self):
        """A run of blocks behind one that is there, or a new chain."""
        live = self._live()
        behind = self.draw.choice(live)[4] \
            if live and self.draw.random() < 0.7 else None
        root = behind is None
        if root:
            named = self.draw.random() < 0.3
            common = {"group_idx": self.draw.choice((0, 1))}
            if self.draw.random() < 0.3:
                common = {}
            if common.get("group_idx") == 1:
                common["kv_cache_spec_kind"] = "sliding_window"
                common["kv_cache_spec_sliding_window"] = 64
            if named:
                common.update(lora_id=7, lora_name="adapter-ä")
        else:
            common = {name: value for name, value in
                      self.taught[behind].items() if name in (
                          "group_idx", "kv_cache_spec_kind", "lora_id",
                          "kv_cache_spec_sliding_window", "lora_name")}
        event = {"type": "BlockStored", "block_hashes": [], "token_ids": [],
                 "block_size": SIZE, "medium": "GPU", **common}
        if not root:
            event["parent_block_hash"] = behind
        keys = []
        for k in range(self.draw.randrange(1, 5)):
            tokens = [self.draw.randrange(131072) for _ in range(SIZE)]
            value = self._hash()
            one = {**common, "token_ids": tokens, "block_size": SIZE,
                   "extra_keys": None}
            if behind is not None:
                one["parent_block_hash"] = behind
            if root and k == 0 and self.draw.random() < 0.3:
                one["extra_keys"] = [["image", 0], self.salt]
            keys.append(one["extra_keys"])
            self.taught[value] = one
            event["block_hashes"].append(value)
            event["token_ids"] += tokens
            behind = value
        if any(keys):
            event["extra_keys"] = keys
        return event

    def _again(self):
        """A second copy of a block that is there, told in full."""
        live = [key for key in self._live() if key[0] == "GPU"]
        if not live:
            return self._grow()
        value = self.draw.choice(live)[4]
        one = dict(self.taught[value])
        keys = one.pop("extra_keys")
        event = {"type": "BlockStored", "block_hashes": [value],
                 "medium": "GPU", **one}
        if keys:
            event["extra_keys"] = [keys]
        return event

    def _offload(self):
        """A copy without tokens on another tier."""
        live = self._live()
        if not live:
            return self._grow()
        chosen = {self.draw.choice(live)[4] for _ in range(3)}
        return {"type": "BlockStored", "block_hashes": sorted(chosen, key=str),
                "token_ids": [], "block_size": 0,
                **self.draw.choice(SCOPES)}

    def _remove(self):
        live = self._live()
        if not live:
            return self._grow()
        medium, locality, ownership, group, value = self.draw.choice(live)
        event = {"type": "BlockRemoved", "block_hashes": [value],
                 "medium": medium, "locality": locality,
                 "ownership": ownership, "group_idx": group}
        return {name: value for name, value in event.items()
                if value is not None}

    def batch(self):
        """The events of the next batch; they are in the truth at once."""
        events = []
        if self.clears and self.draw.random() < 0.01:
            events.append({"type": "AllBlocksCleared"})
            self.truth.apply(events)
        for _ in range(self.draw.randrange(1, 5)):
            full = len(self.truth.copies) > 400
            kind = self.draw.choices(
                (self._grow, self._again, self._offload, self._remove),
                (3, 1, 1, 6 if full else 2))[0]
            events.append(kind())
            self.truth.apply(events[-1:])
        return events


def taught_by(events):
    """What complete stores say of each of their blocks, as Cache has it."""
    taught = {}
    for event in _batches.plain_wire(events):
        if event["type"] != "BlockStored" or not event["token_ids"]:
            continue
        size = event["block_size"]
        behind = event.get("parent_block_hash")
        keys = event.get("extra_keys") or [None] * len(event["block_hashes"])
        for k, value in enumerate(event["block_hashes"]):
            one = {name: event[name] for name in (
                "group_idx", "kv_cache_spec_kind", "lora_id", "lora_name",
                "kv_cache_spec_sliding_window") if name in event}
            one.update(token_ids=event["token_ids"][k * size:(k + 1) * size],
                       block_size=size, extra_keys=keys[k])
            if behind is not None:
                one["parent_block_hash"] = _fold.bits(behind)
            taught[_fold.bits(value)] = one
            behind = value
    return taught
