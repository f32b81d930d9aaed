#!/usr/bin/env python3
"""The index beside two others, in turn on one pinned core.

    run_index.py [--programs FOLDER] [--rounds N] [--full]

All run one workload (bench/index_work.h). The others are Rust programs: the
environment variable KVEVENTS_PEERS_DIR names a folder with smg/ and dynamo/,
built or to be built with cargo; without it only our own figures are printed.

One JSON line a figure: medians over the rounds, the better peer's median, and
how many times its figure ours is smaller. A target is what ours may be at
most; "at least" where a line says so. The comparison is between sets, as the
peers keep them; where copies are counted is printed beside it. --full runs the
long form of what takes long.
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

# Figure: unit, target, and what each peer calls it. A peer's times of single
# questions have its clock in them, which is subtracted.
SPEED = {
    "store": ("ns CPU/block", 25, {
        "smg": "store_cpu_ns_per_block",
        "dynamo": "store_cpu_ns_per_block"}),
    "remove tails": ("ns CPU/block", 25, {
        "smg": "remove_tail_cpu_ns_per_block",
        "dynamo": "remove_unique_cpu_ns_per_block"}),
    "remove prefixes": ("ns CPU/block", 20, {
        "smg": "remove_prefix_cpu_ns_per_block",
        "dynamo": "remove_prefix_cpu_ns_per_block"}),
    "query miss p50": ("ns", 120, {
        "smg": "find_miss_p50_ns", "dynamo": "find_miss_p50ns"}),
    "query miss p99": ("ns", None, {
        "smg": "find_miss_p99_ns", "dynamo": "find_miss_p99ns"}),
    "query hit p50": ("ns", 300, {
        "smg": "find_hit_p50_ns", "dynamo": "find_hit_p50ns"}),
    "query hit p99": ("ns", None, {
        "smg": "find_hit_p99_ns", "dynamo": "find_hit_p99ns"}),
}
TOKENS = "query hit from 2048 tokens"
# What one peer takes for it, measured by its authors' own service on this
# workload; its benchmark program has no figure for it.
TOKENS_PEER_US = 2.0
MEMORY = {
    "after load": {"smg": "rss_bytes_per_entry",
                   "dynamo": "mem_loaded_rss_B_per_entry"},
    "after removing all": {"smg": "rss_bytes_per_entry_after_removing_all",
                           "dynamo": "mem_after_remove_all_rss_B_per_entry"},
}
MODES = ("set", "count")
SIZES = [1_000_000 + i * 1_000_000 // 9 for i in range(10)]


def say(text):
    print(text, file=sys.stderr, flush=True)


def report(figure, unit, ours, target=None, *, peer=None, peer_name=None,
           at_least=False):
    met = None
    if target is not None:
        met = ours >= target if at_least else ours <= target
    line = {
        "figure": figure,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": None if peer is None else round(peer, 2),
        "ratio": None if peer is None or ours <= 0
        else round(peer / ours, 2),
        "target": target,
        "met": met,
    }
    if at_least:
        line["at_least"] = True
    if peer_name is not None:
        line["peer_name"] = peer_name
    print(json.dumps(line), flush=True)


# ---- peers -------------------------------------------------------------

def build_peer(folder):
    """Its programs, made when they are not there."""
    release = folder / "target" / "release"
    wanted = {"smg": "peer-smg", "dynamo": "index"}[folder.name]
    if not (release / wanted).exists():
        say(f"+ cargo build --release in {folder} (minutes)")
        subprocess.run(["cargo", "build", "--release", "-j2"], cwd=folder,
                       stdout=sys.stderr, check=True)
    return release / wanted


def find_peers():
    """Commands by peer; empty when there is no peer."""
    where = os.environ.get("KVEVENTS_PEERS_DIR")
    if not where:
        say("run_index.py: KVEVENTS_PEERS_DIR is not set: no peers, only our "
            "own figures (it names a folder with smg/ and dynamo/)")
        return {}
    folder = pathlib.Path(where).resolve()
    try:
        smg = build_peer(folder / "smg")
        dynamo = build_peer(folder / "dynamo")
    except (OSError, subprocess.CalledProcessError) as error:
        say(f"run_index.py: no peers in {folder}, only our own figures: "
            f"{error}")
        return {}
    return {"smg": [[smg]],
            # Its worker loop without the queue, what the queue's other end
            # finds, and its memory.
            "dynamo": [[dynamo, "crtc", "1"], [dynamo, "mem", "CRTC"],
                       [dynamo, "crtc-direct", "1"]]}


# ---- running -----------------------------------------------------------

class Pinned:
    """Programs on one core: the last, as others tend to be on the first."""

    def __init__(self):
        self.cores = os.sched_getaffinity(0)
        self.core = max(self.cores)
        self.units = {}

    def lines(self, command, pinned=True):
        cores = {self.core} if pinned else self.cores
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.PIPE,
            check=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def ours(self, command, pinned=True):
        lines = self.lines(command, pinned)
        self.units.update((line["figure"], line["unit"]) for line in lines)
        return {line["figure"]: line["value"] for line in lines}

    def peer(self, commands):
        values = {}
        for command in commands:
            for line in self.lines(command):
                if "warn" in line:
                    say(f"run_index.py: a peer says: {line['warn']}")
                else:
                    values[line["metric"]] = line["value"]
        return values


def middle(rounds, name):
    """Median over rounds (dictionaries) of a figure."""
    return statistics.median(values[name] for values in rounds)


def best_peer(results, names, less=0.0):
    """(value, peer) of the better peer for a figure, or (None, None)."""
    found = [(max(middle(results[peer], name) - less, 0), peer)
             for peer, name in names.items() if peer in results]
    return min(found) if found else (None, None)


# ---- parts -------------------------------------------------------------

def measure_speed(run, program, peers, rounds):
    results = {}
    for number in range(rounds):
        for mode in MODES:
            results.setdefault(mode, []).append(
                run.ours([program, "speed", mode]))
            results.setdefault(f"tokens {mode}", []).append(
                run.ours([program, "tokens", mode]))
        for peer, commands in peers.items():
            results.setdefault(peer, []).append(run.peer(commands))
        say(f"round {number + 1} of {rounds}")
    return results


def report_speed(results):
    clock = middle(results["set"], "clock")
    for mode in MODES:
        for name, (unit, target, names) in SPEED.items():
            less = clock if unit == "ns" else 0.0
            peer, peer_name = best_peer(results, names, less)
            report(f"{name}, {mode}", unit, middle(results[mode], name),
                   target, peer=peer, peer_name=peer_name)
        tokens = results[f"tokens {mode}"]
        report(f"{TOKENS}, {mode}", "us CPU", middle(tokens, TOKENS), 1.0,
               peer=TOKENS_PEER_US, peer_name="dynamo, not of this run")
        report(f"store from tokens, {mode}", "ns CPU/block",
               middle(tokens, "store from tokens"))


def report_memory(run, program, results):
    for mode in MODES:
        for hashes, target in (("integer", 30), ("bytes", 62)):
            loads = [run.ours([program, "load", mode, hashes, size])
                     for size in SIZES]
            for name, names in MEMORY.items():
                peer, peer_name = (best_peer(results, names)
                                   if hashes == "integer" else (None, None))
                limit = target if name == "after load" else 2
                report(f"resident {name}, {hashes} hashes, worst of "
                       f"{len(SIZES)} sizes, {mode}", "bytes/residency",
                       max(load[name] for load in loads), limit, peer=peer,
                       peer_name=peer_name)
            report(f"allocated after load, {hashes} hashes, worst of "
                   f"{len(SIZES)} sizes, {mode}", "bytes/residency",
                   max(load["allocated"] for load in loads))


def report_parts(run, program):
    for mode in MODES:
        for kind in ("blocks", "sequences"):
            left = run.ours([program, "part", mode, kind, "all"])
            rest = run.ours([program, "part", mode, kind, "rest"])
            if left["residencies"] != rest["residencies"]:
                sys.exit("run_index.py: what is left and what was loaded "
                         "afresh differ")
            report(f"resident after 90 % of {kind} went, of a fresh load of "
                   f"the rest, {mode}", "times",
                   left["resident"] / rest["resident"], 2)
            report(f"the same, {kind}, {mode}", "bytes/residency",
                   left["resident"] / left["residencies"])
        alone = run.ours([program, "part", mode, "blocks", "alone"])
        report(f"the same blocks loaded as orphans, {mode}",
               "bytes/residency", alone["resident"] / alone["residencies"])


def report_churn(run, program, full):
    chains = 10_000_000 if full else 1_000_000
    for mode in MODES:
        values = run.ours([program, "churn", mode, chains])
        report(f"most memory while {chains:,} chains came and went, of that "
               f"after a tenth, {mode}", "times",
               values["at most"] / max(values["after a tenth"], 1), 1.05)
        report(f"resident with 1,000 chains at the end, {mode}", "KiB",
               values["at the end"] / 1024)


def report_threads(run, program, rounds):
    if len(run.cores) < 2:
        say("run_index.py: one core only: nothing about two threads")
    else:
        scale = [run.ours([program, "scale"], pinned=False)
                 for _ in range(max(1, rounds // 2))]
        name = "two readers of what two bare loops scale"
        report("two readers on one hot prefix, against one", "times",
               middle(scale, "two readers"))
        report(name, "part", middle(scale, name), 0.95, at_least=True)
        beside = [run.ours([program, "beside"], pinned=False)
                  for _ in range(rounds)]
        for figure in beside[0]:
            target = 2 if figure == "reader beside a writer, p99 of idle" \
                else None
            report(figure, run.units[figure], middle(beside, figure), target)
    longest = run.ours([program, "longest", 10_000_000])
    report("longest apply while growing to 10^7", "us",
           longest["longest apply"], 1000)
    report("apply while growing to 10^7, p999", "us", longest["apply p999"])
    report("apply while growing to 10^7, p50", "us", longest["apply p50"])


def report_shapes(run, program):
    """Other numbers of workers, other hashes, other sizes."""
    shapes = [("32-byte hashes", ["bytes", 8, 2000]),
              ("64 workers", ["integer", 64, 250]),
              ("1024 workers", ["integer", 1024, 16])]
    for mode in MODES:
        for name, arguments in shapes:
            values = run.ours([program, "speed", mode, *arguments])
            for figure, (unit, _, _) in SPEED.items():
                report(f"{figure}, {name}, {mode}", unit, values[figure])
    for size in (100_000, 1_000_000, 10_000_000):
        values = run.ours([program, "grow", "set", size])
        for figure in ("store", "remove tails", "remove prefixes",
                       "query miss p50", "query hit p50"):
            report(f"{figure}, {size:,} residencies", SPEED[figure][0],
                   values[figure])
        report(f"allocated, {size:,} residencies", "bytes/residency",
               values["allocated"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path,
                        default=ROOT / "build" / "release" / "bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()

    run = Pinned()
    peers = find_peers()
    speed = options.programs / "bench_index"
    memory = options.programs / "bench_index_memory"
    threads = options.programs / "bench_index_threads"
    results = measure_speed(run, speed, peers, options.rounds)
    report_speed(results)
    report_memory(run, memory, results)
    report_parts(run, memory)
    report_churn(run, memory, options.full)
    report_threads(run, threads, options.rounds)
    report_shapes(run, speed)


main()
