"""The codec beside msgspec with vLLM's classes, both ways, on random batches.

What msgspec writes, our decoder must read to the same values; what our encoder
writes of it, in every layout, must be the bytes that msgspec writes with the
classes of that release, and must be read back by them, and without types, to
the same values.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys

try:
    import msgspec
except ImportError:
    print("skipped: msgspec is missing; scripts/venv.sh installs it")
    sys.exit(77)

ROOT = pathlib.Path(os.environ.get("KVEVENTS_SOURCE_DIR",
                                   pathlib.Path(__file__).parents[2]))
TOOL = os.environ.get("KVEVENTS_CODEC_TOOL") or str(
    pathlib.Path(os.environ.get("KVEVENTS_BUILD_DIR",
                                ROOT / "build" / "release"))
    / "tests" / "kve_codec_tool")
SEED = 20
BATCHES = 3000

encode = msgspec.msgpack.Encoder().encode

# ---------------------------------------------------------------- classes

Hash = bytes | int
REQUIRED = object()
STORED = [("block_hashes", list[Hash], REQUIRED),
          ("parent_block_hash", Hash | None, REQUIRED),
          ("token_ids", list[int], REQUIRED),
          ("block_size", int, REQUIRED),
          ("lora_id", int | None, REQUIRED),
          ("medium", str | None, REQUIRED),
          ("lora_name", str | None, REQUIRED),
          ("extra_keys", list | None, None),
          ("group_idx", int | None, None),
          ("kv_cache_spec_kind", str | None, None),
          ("kv_cache_spec_sliding_window", int | None, None),
          ("locality", str | None, None),
          ("ownership", str | None, None),
          ("session_id", str | None, None),
          ("lookahead_token_ids", list | None, None)]
REMOVED = [("block_hashes", list[Hash], REQUIRED),
           ("medium", str | None, REQUIRED),
           ("group_idx", int | None, None),
           ("locality", str | None, None),
           ("ownership", str | None, None)]


class Release:
    """The classes of one release, as far as they differ on the wire."""

    def __init__(self, array, n_stored, n_removed):
        def make(name, fields):
            given = [(n, t) if d is REQUIRED else (n, t, d)
                     for n, t, d in fields]
            return msgspec.defstruct(name, given, tag=name, array_like=array,
                                     omit_defaults=True, gc=False)

        self.classes = {
            "BlockStored": make("BlockStored", STORED[:n_stored]),
            "BlockRemoved": make("BlockRemoved", REMOVED[:n_removed]),
            "AllBlocksCleared": make("AllBlocksCleared", []),
        }
        stored, removed, cleared = self.classes.values()
        self.batch = msgspec.defstruct(
            "KVEventBatch",
            [("ts", float), ("events", list[stored | removed | cleared]),
             ("data_parallel_rank", int | None, None)],
            array_like=True, omit_defaults=True, gc=False)
        self.decode = msgspec.msgpack.Decoder(type=self.batch).decode

    def build(self, ts, events, rank):
        """A batch of events given as (tag, fields); others are left out."""
        made = []
        for tag, fields in events:
            known = self.classes[tag].__struct_fields__
            made.append(self.classes[tag](
                **{k: v for k, v in fields.items() if k in known}))
        return self.batch(ts=ts, events=made, data_parallel_rank=rank)


# In our layouts' names; fields of BlockStored and BlockRemoved.
RELEASES = {"map": Release(False, 15, 5),       # 0.33
            "map-short": Release(False, 14, 5),  # 0.30 to 0.32
            "array": Release(True, 11, 3),      # 0.22, 0.23
            "first": Release(True, 5, 1)}       # 0.10

# ---------------------------------------------------------------- batches

WIDTHS = (7, 8, 16, 17, 31, 32)


class Source:
    """Random events: every field, every width, nil wherever it may be."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def number(self, widths):
        return self.rng.getrandbits(self.rng.choice(widths))

    def hash(self):
        kind = self.rng.randrange(10)
        if kind < 5:
            return self.number((1, 7, 8, 16, 32, 63, 64))
        if kind == 5:
            return -self.number((4, 5, 6, 8, 16, 32, 63)) - 1
        return self.rng.randbytes(self.rng.choice((1, 8, 16, 32, 32, 32, 300)))

    def hashes(self):
        n = self.rng.choice((0, 1, 1, 2, 3, 17))
        return [self.hash() for _ in range(n)]

    def text(self):
        return self.rng.choice((
            "", "a", "adapter-ä", "m" * 31, "m" * 32, "quote\"back\\slash\n",
            "x" * 255, "y" * 256, "日本語", "\x00\x1f"))

    def tokens(self):
        n = self.rng.choice((0, 1, 4, 15, 16, 17, 64, 300))
        widths = self.rng.choice((WIDTHS, (7,), (8,), (16,), (17,), (32,)))
        return [self.number(widths) for _ in range(n)]

    def extra_item(self):
        kind = self.rng.randrange(3)
        if kind == 0:
            return self.text()
        if kind == 1:
            return (self.text(), self.rng.randrange(-5000, 5000))
        return self.rng.randbytes(32)

    def extra_keys(self):
        return [None if self.rng.randrange(2) else
                tuple(self.extra_item() for _ in range(self.rng.randrange(4)))
                for _ in range(self.rng.choice((0, 1, 3, 16)))]

    def integer(self):
        return self.rng.choice((0, 1, 127, 128, 40000, -1, -33, -200, -40000,
                                2**31, -2**31 - 1, 2**63 - 1, -2**63))

    def maybe(self, make, chance=2):
        return make() if self.rng.randrange(chance) == 0 else None

    def medium(self):
        return self.rng.choice((None, "", "GPU", "CPU", "STORAGE",
                                "host_pinned", "QUANTUM"))

    def event(self):
        kind = self.rng.randrange(10)
        if kind == 0:
            return "AllBlocksCleared", {}
        late = {"group_idx": self.maybe(self.integer),
                "locality": self.maybe(lambda: "REMOTE", 3),
                "ownership": self.maybe(self.text, 3)}
        if kind < 4:
            return "BlockRemoved", {"block_hashes": self.hashes(),
                                    "medium": self.medium(), **late}
        return "BlockStored", {
            "block_hashes": self.hashes(),
            "parent_block_hash": self.maybe(self.hash),
            "token_ids": self.tokens(),
            "block_size": self.number(WIDTHS),
            "lora_id": self.maybe(self.integer, 3),
            "medium": self.medium(),
            "lora_name": self.maybe(self.text, 3),
            "extra_keys": self.maybe(self.extra_keys),
            "kv_cache_spec_kind": self.maybe(lambda: "sliding_window"),
            "kv_cache_spec_sliding_window": self.maybe(self.integer, 3),
            "session_id": self.maybe(self.text, 3),
            "lookahead_token_ids": self.maybe(
                lambda: [self.tokens() for _ in range(2)], 4),
            **late}

    def batch(self):
        n = self.rng.choice((0, 1, 1, 2, 5, 15, 16, 40))
        ts = self.rng.uniform(1, 4e9)
        return ts, [self.event() for _ in range(n)], self.maybe(
            lambda: self.rng.choice((0, 1, 127, 128, 70000)), 1)


# ---------------------------------------------------------------- the tool

def frame(payloads):
    return b"".join(struct.pack("<I", len(p)) + p for p in payloads)


def run_tool(mode, payloads):
    return subprocess.run([TOOL, mode], input=frame(payloads), check=True,
                          stdout=subprocess.PIPE, timeout=100).stdout


def split(data):
    payloads, at = [], 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        payloads.append(data[at + 4:at + 4 + n])
        at += 4 + n
    return payloads


def fail(what, *values):
    print(f"FAILED: {what}")
    for value in values:
        print(f"  {str(value)[:1500]}")
    sys.exit(1)


# ---------------------------------------------------------------- judging

RAW = ("extra_keys", "lookahead_token_ids")


def plain(value):
    """A value as JSON and untyped msgpack give it."""
    return msgspec.msgpack.decode(encode(value))


def want_hash(value):
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return value % 2**64 if value is not None else None


def want_event(tag, fields, known):
    """What the tool should print of an event: the fields that were written."""
    want = {"type": tag}
    for name, value in fields.items():
        if name not in known:
            continue
        if name == "block_hashes":
            value = [want_hash(v) for v in value]
        elif name == "parent_block_hash":
            value = want_hash(value)
        elif name in RAW and value is not None:
            value = encode(value).hex()
        want[name] = value
    return want


def check_decoded(name, release, batches):
    """Our decoder on msgspec's bytes."""
    payloads = [encode(release.build(*batch)) for batch in batches]
    lines = run_tool("decode", payloads).decode().splitlines()
    if len(lines) != len(batches):
        fail(f"{name}: {len(lines)} lines for {len(batches)} payloads")
    for (ts, events, rank), line in zip(batches, lines):
        got = json.loads(line)
        if (got["ts"], got["rank"], got["faults"], got["trailing"]) != (
                ts, rank, 0, 0):
            fail(f"{name}: the batch", (ts, rank), line)
        if len(got["events"]) != len(events):
            fail(f"{name}: {len(got['events'])} events", line)
        for (tag, fields), event in zip(events, got["events"]):
            cls = release.classes[tag]
            want = want_event(tag, fields, cls.__struct_fields__)
            event.pop("notes")
            if cls.__struct_config__.array_like:
                missing = {}
            else:  # defaults are not written
                required = {n for n, _, d in STORED + REMOVED if d is REQUIRED}
                missing = {n for n, v in want.items()
                           if v is None and n not in required}
            want = {n: v for n, v in want.items() if n not in missing}
            if event != want:
                fail(f"{name}: decoded otherwise", want, event)
    return payloads


def check_encoded(name, batches, payloads):
    """Our encoder's bytes, written from what our decoder read."""
    release = RELEASES[name]
    written = split(run_tool(name, payloads))
    if len(written) != len(batches):
        fail(f"{name}: {len(written)} payloads for {len(batches)}")
    for batch, data in zip(batches, written):
        want = release.build(*batch)
        if data != encode(want):
            fail(f"{name}: other bytes than msgspec's", encode(want).hex(),
                 data.hex())
        if release.decode(data) != release.decode(encode(want)):
            fail(f"{name}: the classes read something else", want)
        if msgspec.msgpack.decode(data) != plain(want):
            fail(f"{name}: read without types it is something else", want)


def main():
    source = Source(SEED)
    # A hash is a pattern of 64 bits: our encoder writes it without a sign.
    batches = [source.batch() for _ in range(BATCHES)]
    unsigned = [(ts, [unsigned_hashes(*event) for event in events], rank)
                for ts, events, rank in batches]
    n_events = sum(len(events) for _, events, _ in batches)

    for name, release in RELEASES.items():
        check_decoded(name, release, batches)
        print(f"{name}: {BATCHES} batches, {n_events} events decoded")
    for name in RELEASES:
        # Maps have a place for every field, so the short one gets what its
        # releases had; arrays are to leave out what they have no slot for.
        origin = RELEASES["map-short" if name == "map-short" else "map"]
        chosen = [b for b in unsigned
                  if name != "first" or not has_bytes(b[1])]
        payloads = [encode(origin.build(*batch)) for batch in chosen]
        check_encoded(name, chosen, payloads)
        print(f"{name}: {len(chosen)} batches encoded to msgspec's bytes")
    check_refused(unsigned)
    print("first: hashes of bytes, which 0.10 had not, are refused")
    for name in ("map", "map-short", "array"):
        payloads = [encode(RELEASES[name].build(*b)) for b in unsigned]
        if split(run_tool("keep", payloads)) != payloads:
            fail(f"keep: {name} did not stay the same bytes")
    print("keep: maps and arrays stay the same bytes")


def has_bytes(events):
    return any(isinstance(h, bytes) for _, fields in events
               for h in (fields.get("parent_block_hash"),
                         *fields.get("block_hashes", ())))


def check_refused(batches):
    batch = next(b for b in batches if has_bytes(b[1]))
    payload = frame([encode(RELEASES["map"].build(*batch))])
    done = subprocess.run([TOOL, "first"], input=payload, timeout=100,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode == 0 or b"hashes are bytes" not in done.stderr:
        fail("first: hashes of bytes were written", done)


def unsigned_hashes(tag, fields):
    def plus(value):
        return value % 2**64 if isinstance(value, int) else value

    changed = dict(fields)
    if "block_hashes" in fields:
        changed["block_hashes"] = [plus(v) for v in fields["block_hashes"]]
    if "parent_block_hash" in fields:
        changed["parent_block_hash"] = plus(fields["parent_block_hash"])
    return tag, changed


main()
