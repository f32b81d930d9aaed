#!/usr/bin/env python3
"""Make seeds for the fuzz targets from tests/wire: seeds.py FOLDER

FOLDER/payloads gets every payload, and FOLDER/frames every message, its frames
one after the other, each behind a byte with its length; 255 says that the
frame is all the rest. A seed is named by its content, so there are no two.
"""

import hashlib
import json
import pathlib
import sys

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
    for kind in ("payloads", "frames"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for path in sorted(WIRE.rglob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for kind, seed in read(json.loads(line)):
                if seed is None:
                    continue
                name = hashlib.sha256(seed).hexdigest()[:16]
                (folder / kind / name).write_bytes(seed)
                count += 1
    print(f"{count} seeds in {folder}")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
