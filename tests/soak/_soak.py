"""What the soaks share: where the command is, endpoints that stay free while
nobody listens there, and memory that stays flat."""

import atexit
import contextlib
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(os.environ.get(
    "KVEVENTS_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BIN = os.environ.get("KVEVENTS_BIN",
                     str(ROOT / "build" / "release" / "kvevents"))


def endpoints(n):
    """Endpoints to bind, again and again: on ports that are free, and that
    the system gives to nobody else."""
    found = []
    while len(found) < n:
        port = random.randrange(2000, 10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            at = f"tcp://127.0.0.1:{port}"
            found += [at] if at not in found else []
    return found


def spawn(*arguments, **options):
    """A process of the command that ends with the test, however that ends."""
    process = subprocess.Popen([BIN, *arguments], text=True, **options)
    atexit.register(process.kill)
    return process


def spawn_publisher(said, patience, *arguments):
    """A publisher that has said this, or the end of the test."""
    log = tempfile.TemporaryFile(mode="w+")
    process = spawn("publish", *arguments, stderr=log)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        log.seek(0)
        if said in log.read():
            return process
        if process.poll() is not None:
            break
        time.sleep(0.02)
    log.seek(0)
    sys.exit(f"the publisher does not start: {log.read()}")


def rss(pid):
    """Resident bytes of a process, or None when it is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/statm").read_text()
    except OSError:
        return None
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flat(name, samples):
    """Whether memory stayed flat, with a line that says so."""
    n = len(samples)
    early = statistics.median(samples[n // 4:n // 2])
    late = statistics.median(samples[3 * n // 4:])
    good = late <= max(early * 1.05, early + 4 * 2 ** 20)
    print(f"{'ok' if good else 'FAILED'}: memory of the {name} that stays: "
          f"{early / 2**20:.1f} MiB in the second quarter, "
          f"{late / 2**20:.1f} MiB in the last, peak "
          f"{max(samples) / 2**20:.1f} MiB", flush=True)
    return good
