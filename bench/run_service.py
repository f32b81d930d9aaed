#!/usr/bin/env python3
"""The service beside Dynamo's, in turn, on the same work.

    run_service.py [--rounds N] [--seconds S] [--sequences N]

Engines and questions are bench_service's (the workload of the index
benchmarks); questions are asked by wrk. The peer is the service of the
environment variable KVEVENTS_PEERS_DIR (a folder with dynamo/, whose program
svc is built with cargo); without it only our own figures are printed.

One JSON line a figure: the median over the rounds of the service's CPU time a
unit, the peer's, and how many times less ours is. CPU time is that of all
threads, as the scheduler counts it.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
BUILD = BENCH.parent / "build" / "release"
PROGRAM = BUILD / "bench" / "bench_service"
CONNECTIONS = 16
WORKERS = 8
BLOCK_SIZE = 16
PROMPT = 2048


def say(text):
    print(text, file=sys.stderr, flush=True)


def report(figure, unit, ours, target=None, peer=None, *, larger=False,
           ratio_target=None):
    ratio = None
    if peer:
        ratio = round(ours / peer if larger else peer / ours, 2)
    met = None
    if ratio_target is not None:
        target = ratio_target
        met = None if ratio is None else ratio >= ratio_target
    elif target is not None:
        met = ours <= target
    print(json.dumps({
        "figure": figure, "unit": unit, "ours": round(ours, 2),
        "peer": None if peer is None else round(peer, 2), "ratio": ratio,
        "target": target, "met": met}), flush=True)


def cpu_seconds(pid):
    """CPU time of all threads there are, in seconds."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# ---- services ----------------------------------------------------------

class Service:
    """One running service, asked in Dynamo's dialect."""

    def __init__(self, name, command, port, environment=None):
        self.name = name
        self.port = port
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                if self.call("GET", "/health")[0] == 200:
                    return
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit(f"run_service.py: {name} does not start")
            time.sleep(0.05)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                timeout=30)
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def register(self, endpoints):
        for worker, endpoint in enumerate(endpoints):
            body = json.dumps({
                "instance_id": worker, "endpoint": endpoint,
                "model_name": "m", "block_size": BLOCK_SIZE})
            status, text = self.call("POST", "/register", body)
            if status != 201:
                sys.exit(f"run_service.py: {self.name}: {text}")

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_ours():
    port = free_port()
    return Service("kvevents", [
        BUILD / "kvevents", "serve", "--listen", f"127.0.0.1:{port}"], port)


def start_dynamo():
    port = free_port()
    program = pathlib.Path(os.environ["KVEVENTS_PEERS_DIR"]) / "dynamo" / \
        "target" / "release" / "svc"
    return Service("dynamo", [program, port, 4], port,
                   {**os.environ, "RUST_LOG": "error"})


def find_services():
    services = {"kvevents": start_ours}
    where = os.environ.get("KVEVENTS_PEERS_DIR")
    program = pathlib.Path(where or "/nowhere") / "dynamo" / "target" / \
        "release" / "svc"
    if program.exists():
        services["dynamo"] = start_dynamo
    else:
        say("run_service.py: no peer: KVEVENTS_PEERS_DIR names a folder with "
            "dynamo/, built by cargo build --release; only our own figures")
    return services


# ---- engines and questions ---------------------------------------------

class Engines:
    """Eight publishers of the workload in one process."""

    def __init__(self, sequences, per_message, rate):
        self.process = subprocess.Popen(
            [PROGRAM, "publish", str(sequences), str(per_message), str(rate)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoints = json.loads(
            self.process.stdout.readline())["endpoints"]

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def sent(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def bodies(kind, n, sequences):
    done = subprocess.run(
        [PROGRAM, "bodies", kind, str(n), str(sequences)],
        stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().splitlines()


def await_all(service, sequences):
    """Every worker holds its last sequence."""
    waiting = dict(enumerate(bodies("ends", WORKERS, sequences)))
    deadline = time.monotonic() + 120
    while waiting:
        if time.monotonic() > deadline:
            sys.exit(f"run_service.py: {service.name} lacks what workers "
                     f"{sorted(waiting)} published")
        for worker, body in list(waiting.items()):
            scores = json.loads(
                service.call("POST", "/query", body)[1])["scores"]
            if scores.get(str(worker), {}).get("0") == PROMPT:
                del waiting[worker]
        if waiting:
            time.sleep(0.1)


def ingest(service, sequences, per_message, rate):
    """CPU microseconds an event, and events a second."""
    engines = Engines(sequences, per_message, rate)
    service.register(engines.endpoints)
    time.sleep(1.5)
    before, begin = service.cpu(), time.monotonic()
    engines.go()
    events = engines.sent()["events"]
    await_all(service, sequences)
    taken = service.cpu() - before
    seconds = time.monotonic() - begin
    for worker in range(WORKERS):
        service.call("POST", "/unregister", json.dumps(
            {"instance_id": worker, "model_name": "m"}))
    engines.end()
    return taken / events * 1e6, events / seconds


def load(service, path, file, media, seconds):
    """wrk: CPU microseconds a request, requests a second."""
    before = service.cpu()
    done = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s",
         BENCH / "service_load.lua", f"http://127.0.0.1:{service.port}{path}",
         "--", file, media], stdout=subprocess.PIPE, text=True, check=True)
    taken = service.cpu() - before
    requests = int(re.search(r"(\d+) requests in", done.stdout).group(1))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout).group(1))
    if "Non-2xx" in done.stdout:
        sys.exit(f"run_service.py: {service.name} {path}: {done.stdout}")
    return taken / requests * 1e6, rate


def latency(service, lines, seconds):
    done = subprocess.run(
        [PROGRAM, "ask", str(service.port), "/query", "500", str(seconds)],
        input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True,
        check=True)
    return json.loads(done.stdout)["p99_us"]


def one_round(start, options, files, ours):
    """Every figure of one service, started anew."""
    found = {}
    for name, per_message, rate in (
            ("event of 16 blocks, one a message", 1, 0),
            ("event of 16 blocks, eight a message", 8, 0),
            ("event of 16 blocks, one a message, 10 k/s", 1, 10000)):
        service = start()
        sequences = options.sequences if rate == 0 else \
            max(options.sequences // 4, 1)
        found[name], found[name + ", events/s"] = ingest(
            service, sequences, per_message, rate)
        service.end()

    service = start()
    engines = Engines(options.sequences, 8, 0)
    service.register(engines.endpoints)
    time.sleep(1.5)
    engines.go()
    engines.sent()
    await_all(service, options.sequences)
    questions = [("/query", "tokens", "json"),
                 ("/query_by_hash", "hashes", "json")]
    if ours:
        questions.append(("/v1/query", "msgpack", "msgpack"))
    for path, kind, media in questions:
        found[path], found[path + ", requests/s"] = load(
            service, path, files[kind], media, options.seconds)
    engines.end()

    lines = pathlib.Path(files["tokens"]).read_text().splitlines()
    found["p99 idle"] = latency(service, lines, options.seconds)
    for worker in range(WORKERS):
        service.call("POST", "/unregister", json.dumps(
            {"instance_id": worker, "model_name": "m"}))
    engines = Engines(options.sequences, 8, 50000)
    service.register(engines.endpoints)
    time.sleep(1.5)
    engines.go()
    found["p99 at 50 k events/s"] = latency(
        service, lines, max(options.sequences * 64 / 50000 - 0.2, 0.5))
    engines.sent()
    engines.end()
    service.end()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=1000)
    options = parser.parse_args()

    if shutil.which("wrk") is None:
        sys.exit("run_service.py: no wrk (Debian: apt-get install wrk)")
    services = find_services()
    results = {name: [] for name in services}
    with tempfile.TemporaryDirectory() as work:
        files = {}
        for kind in ("tokens", "hashes", "msgpack"):
            files[kind] = f"{work}/{kind}"
            pathlib.Path(files[kind]).write_text(
                "\n".join(bodies(kind, 200, options.sequences)) + "\n")
        for number in range(options.rounds):
            for name, start in services.items():
                results[name].append(
                    one_round(start, options, files, name == "kvevents"))
            say(f"round {number + 1} of {options.rounds}")

    def middle(name, figure):
        values = [r[figure] for r in results.get(name, []) if figure in r]
        return statistics.median(values) if values else None

    for figure, target in (
            ("event of 16 blocks, one a message", 4),
            ("event of 16 blocks, eight a message", 2.5),
            ("event of 16 blocks, one a message, 10 k/s", None),
            ("/query", 28), ("/query_by_hash", 16), ("/v1/query", 18)):
        report(figure, "us CPU", middle("kvevents", figure), target,
               middle("dynamo", figure))
    for path in ("/query", "/query_by_hash"):
        figure = path + ", requests/s"
        report(figure, "requests/s", middle("kvevents", figure),
               peer=middle("dynamo", figure), larger=True, ratio_target=6)
    report("/v1/query, requests/s", "requests/s",
           middle("kvevents", "/v1/query, requests/s"))
    for figure in ("event of 16 blocks, one a message, events/s",
                   "event of 16 blocks, eight a message, events/s"):
        report(figure, "events/s", middle("kvevents", figure),
               peer=middle("dynamo", figure), larger=True)
    report("p99 of /query, idle", "us", middle("kvevents", "p99 idle"),
           peer=middle("dynamo", "p99 idle"))
    report("p99 of /query, at 50 k events/s", "us",
           middle("kvevents", "p99 at 50 k events/s"), 2000,
           middle("dynamo", "p99 at 50 k events/s"))


if __name__ == "__main__":
    main()
