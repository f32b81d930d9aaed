#!/usr/bin/env python3
"""After each message of each recording the index holds what the recording
says: every copy in its scope, and every block in its place.

What has to be there is computed in _residency.py, from the events alone, which
msgspec reads.
"""

import json
import os
import pathlib
import sys

import msgspec

import _batches
import _harness
import _residency

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "wire" / "fixtures"
TOOL = os.environ.get("KVEVENTS_INDEX_TOOL") or str(pathlib.Path(
    os.environ.get("KVEVENTS_BUILD_DIR",
                   HERE.parents[1] / "build" / "release"))
    / "tests" / "kve_index_tool")
HASHES = 503    # published in all recordings together

decode = msgspec.msgpack.Decoder().decode


def recordings():
    for path in sorted(FIXTURES.glob("*.jsonl")):
        if path.name.endswith(".replay.jsonl") or \
                path.name == "versions.jsonl":
            continue
        with open(path, encoding="utf-8") as lines:
            yield path.name, [bytes.fromhex(json.loads(line)["payload"])
                              for line in lines]


def follow(name, payloads, checks):
    """Judge one recording; how many hashes it published."""
    tool = _residency.Tool(TOOL, "feed")
    contents = _residency.Contents()
    ranks, published, largest = {}, 0, 0
    wrong = ""
    for number, payload in enumerate(payloads):
        batch = decode(payload)
        events = _batches.plain_wire(batch[1])
        rank = batch[2] if len(batch) > 2 and batch[2] is not None else 0
        truth = ranks.setdefault(rank, _residency.Residency())
        truth.apply(events)
        published += sum(len(event["block_hashes"]) for event in events
                         if event["type"] == "BlockStored")
        tool.apply(payload)
        dumps, _ = tool.dump()
        for rank, truth in ranks.items():
            wrong = wrong or _residency.compare(
                dumps.get(rank) or _residency.Dump([]), truth, contents)
            largest = max(largest, len(truth.fold.copies))
        empty = [rank for rank in dumps if rank not in ranks and
                 dumps[rank].copies]
        if wrong or empty:
            checks(f"{name}, message {number}", False,
                   wrong or f"rank {empty} holds something")
            break
    else:
        checks(name, True, f"{len(payloads)} messages, {published} hashes, up "
               f"to {largest} held by {len(ranks)} rank(s)")
    checks.equal(f"{name}: the tool ended well", tool.close(), 0)
    return published


def main():
    if not os.access(TOOL, os.X_OK):
        _harness.skip("no kve_index_tool was built")
    checks = _harness.Checks()
    checks.equal("published hashes in all",
                 sum(follow(name, payloads, checks)
                     for name, payloads in recordings()), HASHES)
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
