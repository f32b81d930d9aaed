#!/usr/bin/env python3
"""Make seeds for the fuzz targets from tests/wire: seeds.py FOLDER

FOLDER/payloads gets every payload, and FOLDER/frames every message, its frames
one after the other, each behind a byte with its length; 255 says that the
frame is all the rest. FOLDER/questions gets bodies of HTTP requests, in JSON
and in msgpack. A seed is named by its content, so there are no two.
"""

import hashlib
import json
import pathlib
import struct
import sys

# What clients ask. Texts are JSON; each is a seed in msgpack, too.
QUESTIONS = (
    '{"token_ids": [1, 2, 3, 131071, 4294967295], "model_name": "m"}',
    '{"token_ids":[17,204,99825,0,1234567,99999999,100000000,5,6,7,8,9,10,11,'
    '12,13,14,15,16,17,18,19,20],"model_name":"m","lora_name":null}',
    '{"block_hashes": [-3803038269031200164, 135165725823939817, "18446744073'
    '709551615", "0x1f"], "model_name": "m\\u00e4", "routing_group": "g"}',
    '{"model":"m","tenant":"ä€😀","prompts":[[1,2],[],[3]],'
    '"workers":["a","b"],"tiers":["GPU"],"limit":10,"explain":true}',
    '{"hashes":["00112233445566778899aabbccddeeff",-1],"instance_id":7,'
    '"block_size":16,"cache_salt":"\\ud83d\\ude00\\n","x":{"y":[1.5e3,'
    'true,null,{}]}}',
    '{"content_hashes":[1],"instance_id":"w0","recompute_last":false}',
)

WIRE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "wire"


def pack(frames):
    """Frames as one seed, or None when one of them is too long to say so."""
    out = bytearray()
    for i, frame in enumerate(frames):
        if len(frame) < 255:
            out += bytes([len(frame)]) + frame
        elif i == len(frames) - 1:
            out += b"\xff" + frame
        else:
            return None
    return bytes(out)


def msgpack(value):
    """A value in msgpack; short forms only where they are as short."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        if value < 0:
            return b"\xd3" + struct.pack(">q", value)
        for tag, form, top in ((b"", "B", 7), (b"\xcc", "B", 8),
                               (b"\xcd", ">H", 16), (b"\xce", ">I", 32),
                               (b"\xcf", ">Q", 64)):
            if value < 1 << top:
                return tag + struct.pack(form, value)
    if isinstance(value, str):
        text = value.encode()
        return b"\xd9" + bytes([len(text)]) + text
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(
            map(msgpack, value))
    return bytes([0x80 + len(value)]) + b"".join(
        msgpack(k) + msgpack(v) for k, v in value.items())


def questions():
    """Yield (kind, bytes) for the bodies above."""
    for text in QUESTIONS:
        yield "questions", text.encode()
        yield "questions", msgpack(json.loads(text))


def read(row):
    """Yield (kind, bytes) for one line of data."""
    for key in ("payload", "hex"):
        if isinstance(row.get(key), str):
            yield "payloads", bytes.fromhex(row[key])
    if isinstance(row.get("seq_hex"), str):
        yield "frames", pack([row["topic"].encode(),
                              bytes.fromhex(row["seq_hex"]),
                              bytes.fromhex(row["payload"])])
    messages = row.get("received", [])
    if "frames" in row:
        messages = [row["frames"]]
    for frames in messages:
        frames = [bytes.fromhex(frame) for frame in frames]
        yield "frames", pack(frames)
        if frames:
            yield "payloads", frames[-1]


def main():
    folder = pathlib.Path(sys.argv[1])
    count = 0
    for kind in ("payloads", "frames", "questions"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    seeds = list(questions())
    for path in sorted(WIRE.rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            seeds += read(json.loads(line))
    for kind, seed in seeds:
        if seed is not None:
            name = hashlib.sha256(seed).hexdigest()[:16]
            (folder / kind / name).write_bytes(seed)
            count += 1
    print(f"{count} seeds in {folder}")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
