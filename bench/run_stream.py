#!/usr/bin/env python3
"""Publisher to subscriber over TCP loopback, beside vLLM's, in turn.

    run_stream.py [--program FILE] [--rounds N] [--release VERSION]

Ours: libkvevents' publisher and subscriber, two processes. The peer: vLLM's
own ZmqEventPublisher, out of its wheel, and a pyzmq SUB that takes the frames
and decodes nothing. Both move one-event batches of 16 tokens, free to use all
cores. One JSON line a figure, medians over the rounds.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
BATCHES = 1_000_000
PEER_BATCHES = 200_000
TARGET = 8


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True,
                          timeout=300)
    return json.loads(done.stdout)


def line(figure, unit, ours, peer, ratio, target=None, **more):
    print(json.dumps({
        "figure": figure, "unit": unit, "ours": round(ours, 1),
        "peer": None if peer is None else round(peer, 1),
        "ratio": None if ratio is None else round(ratio, 2),
        "target": target,
        "met": None if target is None or ratio is None else ratio >= target,
        **more}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(
        ROOT / "build" / "release" / "bench" / "bench_stream"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--release", default="0.32.0",
                        help="of vLLM; default 0.32.0")
    options = parser.parse_args()

    sides = {"ours": [options.program, str(BATCHES), "16"],
             "peer": [sys.executable, str(BENCH / "bench_stream.py"),
                      options.release, str(PEER_BATCHES), "16"]}
    results = {side: [] for side in sides}
    for number in range(options.rounds):
        for side, command in sides.items():
            results[side].append(run(command))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)

    def median(side, key):
        values = [r[key] for r in results[side] if r.get(key) is not None]
        return statistics.median(values) if values else None

    ours, peer = (median(s, "batches_per_s") for s in ("ours", "peer"))
    line("publisher to subscriber 1x16", "batches/s", ours, peer,
         ours / peer, TARGET, payload_bytes=median("ours", "payload_bytes"),
         peer_payload_bytes=median("peer", "payload_bytes"),
         lost=median("ours", "lost"), peer_lost=median("peer", "lost"),
         peer_release=options.release)
    for end in ("publisher", "subscriber"):
        key = f"cpu_ns_{end}"
        ours, peer = median("ours", key), median("peer", key)
        line(f"publisher to subscriber 1x16, CPU of the {end}",
             "ns CPU/batch", ours, peer, peer / ours)


main()
