#!/usr/bin/env python3
"""A thousand publishers followed by one process, beside an empty loop.

    run_sources.py [--program FILE] [--rounds N] [--sources N] [--seconds N]

Ours: a subscriber that decodes and judges each batch, with everything in
kve_sub_poll() and with two library threads. The peer: one SUB socket a source
and epoll, receive and drop. In turn, medians over the rounds. One JSON line a
figure; the ratio is peer / ours, the target 1 / 1.3.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = round(1 / 1.3, 3)


def line(figure, unit, ours, peer, target=None, **more):
    ratio = None if peer is None else peer / ours
    print(json.dumps({
        "figure": figure, "unit": unit, "ours": round(ours, 1),
        "peer": None if peer is None else round(peer, 1),
        "ratio": None if ratio is None else round(ratio, 3),
        "target": target,
        "met": None if target is None else ratio >= target,
        **more}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(
        ROOT / "build" / "release" / "bench" / "bench_sources"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()

    numbers = [str(options.sources), str(options.rate), str(options.seconds)]
    sides = {"peer": ["peer", *numbers],
             "threads 0": ["ours", *numbers, "0"],
             "threads 2": ["ours", *numbers, "2"]}
    results = {side: [] for side in sides}
    for number in range(options.rounds):
        for side, arguments in sides.items():
            done = subprocess.run([options.program, *arguments], check=True,
                                  stdout=subprocess.PIPE, timeout=300)
            results[side].append(json.loads(done.stdout))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)

    def median(side, key):
        return statistics.median(r[key] for r in results[side])

    what = f"{options.sources} sources at {options.rate}/s"
    for side in ("threads 0", "threads 2"):
        line(f"{what}, {side}", "ns CPU/batch", median(side, "cpu_ns"),
             median("peer", "cpu_ns"), TARGET,
             cpu_share=round(median(side, "cpu_share"), 3),
             missing=sum(r["missing"] for r in results[side]),
             lost_counted=sum(r["lost_counted"] for r in results[side]))
        line(f"{what}, {side}, resident memory", "bytes/source",
             median(side, "bytes_a_source"), median("peer", "bytes_a_source"),
             connected=median(side, "bytes_a_source_connected"),
             resident=median(side, "resident"))


main()
