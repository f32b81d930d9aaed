#!/usr/bin/env python3
"""The codec beside msgspec, in turn on one pinned core.

    run_codec.py [--program FILE] [--rounds N]

Both read the same payloads, made by msgspec with vLLM's classes. One JSON line
a figure: medians of CPU time a batch over the rounds, and msgspec's divided by
ours. The targets are for token ids spread evenly over 0..131071.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
TARGETS = {("decode", "1x16"): 10, ("decode", "64x64"): 8,
           ("encode", "1x16"): 3, ("encode", "64x64"): 3}


def python():
    """The Python that has msgspec."""
    for path in (os.environ.get("KVEVENTS_PYTHON"),
                 ROOT / "build" / "venv" / "bin" / "python3"):
        if path and pathlib.Path(path).exists():
            return str(path)
    return sys.executable


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def make_files(folder):
    """Payload files by (shape, distribution), written by the other Python."""
    code = ("import sys, codec_types as t\n"
            "for s in t.SHAPES:\n"
            "    for d in t.DISTRIBUTIONS:\n"
            "        t.write_payloads(f'{sys.argv[1]}/{s}-{d}',"
            " t.make_batches(s, d))\n")
    subprocess.run([python(), "-c", code, str(folder)], cwd=BENCH, check=True)
    return {tuple(path.name.split("-")): path
            for path in sorted(pathlib.Path(folder).iterdir())}


def measure(files, program, rounds):
    """Results by (side, shape, distribution), a list of rounds each."""
    sides = {"ours": [program],
             "peer": [python(), str(BENCH / "bench_codec.py")]}
    results = {}
    for number in range(rounds):
        for key, path in files.items():
            for side, command in sides.items():
                results.setdefault((side, *key), []).append(
                    run([*command, str(path)]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return results


def report(results, work, shape, distribution):
    ours, peer = (
        statistics.median(r[work] for r in results[side, shape, distribution])
        for side in ("ours", "peer"))
    row = results["ours", shape, distribution][0]
    target = TARGETS[work, shape] if distribution == "uniform" else None
    print(json.dumps({
        "figure": f"{work} {shape} {distribution}",
        "unit": "ns CPU/batch",
        "ours": round(ours, 1),
        "peer": round(peer, 1),
        "ratio": round(peer / ours, 2),
        "target": target,
        "met": None if target is None else peer / ours >= target,
        "payload_bytes": round(row["bytes"] / row["batches"], 1),
    }), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(
        ROOT / "build" / "release" / "bench" / "bench_codec"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    if subprocess.run([python(), "-c", "import msgspec"],
                      stderr=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"run_codec.py: no msgspec in {python()}; scripts/venv.sh "
                 "makes a Python that has it")
    # The last core: what else runs tends to be on the first.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        results = measure(make_files(folder), options.program, options.rounds)
    for work in ("decode", "encode"):
        for _, shape, distribution in sorted(
                key for key in results if key[0] == "ours"):
            report(results, work, shape, distribution)


main()
