#!/usr/bin/env python3
# ctest-timeout: 1800
# ctest-label: long
# ctest-serial: yes
"""Two real vLLM engines behind the service, which is restarted meanwhile.

Each engine serves a model of its own, on ports and with a seed of its own. The
service follows both, keeps its state in a folder, and is ended while they work:
in turn with SIGTERM and with SIGKILL. At each checkpoint, which is when an
engine is idle, the service has to say that the engine is live, and its dump of
that engine's worker has to equal the engine's own block pool, groups and copies
included.

    KVEVENTS_ENGINE_DIR, KVEVENTS_ENGINE_TRAFFIC   as for run_engine.py

    run_service.py [--rounds N] [--seed S] [--bytes]
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] /
                       "interop"))

import _fold
import _harness
import run_engine
from _harness import Checks

MODELS = ("models/llama", "models/gemma3")


class Service(_harness.Process):
    """kvevents serve, on a port of its own, with sources by options."""

    def __init__(self, port, state, engines):
        self.port = port
        command = [_harness.command(), "serve", "--listen",
                   f"127.0.0.1:{port}", "--state", state,
                   "--state-interval", "0.3"]
        for model, engine in engines.items():
            command += ["--source", f"{model}=tcp://127.0.0.1:{engine.port},"
                        f"replay_endpoint=tcp://127.0.0.1:{engine.replay_port},"
                        f"topic={run_engine.TOPIC},model={model}"]
        super().__init__(command)

    def get(self, path):
        """(status, text), or None when nobody answers."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                    timeout=10)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        return None

    def state_of(self, model):
        found = self.get("/v1/sources")
        if found is None or found[0] != 200:
            return "?"
        return next((source["state"] for source in
                     json.loads(found[1])["sources"]
                     if source["worker"] == model), "absent")

    def cached(self, model):
        """{(group, hash): copies} of a worker, or None: no whole dump."""
        found = self.get("/v1/dump?model=" + model.replace("/", "%2F"))
        if found is None or found[0] != 200:
            return None
        lines = [json.loads(line) for line in found[1].splitlines()]
        if not lines or lines[-1]["type"] != "end":
            return None
        held = {}
        for line in lines:
            if line["type"] != "held":
                continue
            for text, copies in zip(line["hashes"], line["copies"],
                                    strict=True):
                if text is None:
                    continue
                value = int(text) if len(text) < 32 else text
                key = (line["group"] or 0, value)
                held[key] = held.get(key, 0) + copies
        return held


class Restarter(threading.Thread):
    """Ends the service and starts it again while the engines work."""

    def __init__(self, make, draw):
        super().__init__(daemon=True)
        self.make, self.draw = make, draw
        self.lock = threading.Lock()    # held: it stays up
        self.ended = threading.Event()
        self.ends = {"SIGTERM": 0, "SIGKILL": 0}
        self.bad = []
        self.service = make()
        self.start()

    def run(self):
        name = "SIGTERM"
        while not self.ended.wait(self.draw.uniform(0.5, 3.0)):
            with self.lock:
                self.service.child.send_signal(getattr(signal, name))
                status = self.service.child.wait(_harness.PATIENCE)
                if name == "SIGTERM" and status not in (0, 143):
                    self.bad.append(status)
                self.ends[name] += 1
                self.service = self.make()
            name = "SIGKILL" if name == "SIGTERM" else "SIGTERM"

    def close(self):
        self.ended.set()
        self.join()
        self.service.kill()


def judge(checks, name, restarter, model, truth):
    """One checkpoint: live, and equal to the engine's own."""
    begin = time.monotonic()
    with restarter.lock:
        service = restarter.service
        right = _harness.eventually(
            lambda: service.state_of(model) == "live" and
            service.cached(model) == truth)
        cached = service.cached(model)
        checks(name, right, f"{service.state_of(model)}; " + (
            f"{len(truth)} hashes, {sum(truth.values())} copies, equal "
            f"{time.monotonic() - begin:.2f} s after the checkpoint" if right
            else _fold.differences(cached or {}, truth)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", action="store_true",
                        help="hashes of 32 bytes in place of integers")
    arguments = parser.parse_args()

    folder = os.environ.get("KVEVENTS_ENGINE_DIR")
    if not folder:
        _harness.skip("KVEVENTS_ENGINE_DIR names no folder with a vLLM engine")
    traffic = pathlib.Path(os.environ.get("KVEVENTS_ENGINE_TRAFFIC") or
                           pathlib.Path(folder) / "traffic.py").resolve()
    for needed in (pathlib.Path(folder) / "env.sh", traffic):
        if not needed.exists():
            _harness.skip(f"no {needed}")

    checks = Checks()
    plan = run_engine.Plan(not arguments.bytes, 0)
    engines = {model: run_engine.Engine(folder, traffic, model, plan,
                                        arguments.rounds, arguments.seed + i)
               for i, model in enumerate(MODELS)}
    state = tempfile.mkdtemp()
    port = run_engine.free_port()
    restarter = Restarter(lambda: Service(port, state, engines),
                          random.Random(arguments.seed))

    def follow(model, engine):
        count = 0
        while (truth := engine.checkpoint()) is not None:
            judge(checks, f"{model} checkpoint {count}", restarter, model,
                  truth)
            count += 1
            engine.go_on()
        checks.equal(f"{model}: checkpoints", count, arguments.rounds)

    try:
        threads = [threading.Thread(target=follow, args=item)
                   for item in engines.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = restarter.ends
        checks("the service was ended", min(ends.values()) > 0, str(ends))
        checks.equal("ended by SIGTERM it ends well", restarter.bad, [])
    finally:
        restarter.close()
        for engine in engines.values():
            engine.kill()
        shutil.rmtree(state)
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
