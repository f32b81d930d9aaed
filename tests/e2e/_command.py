"""What the tests of the command share. Standard library only."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(os.environ["KVEVENTS_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["KVEVENTS_BUILD_DIR"])
BIN = os.environ["KVEVENTS_BIN"]
FIXTURES = ROOT / "tests" / "wire" / "fixtures"
LIMIT = 60  # seconds after which anything is stuck


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def run(*args, stdin="", limit=LIMIT):
    """Run the command to its end."""
    return subprocess.run([BIN, *args], input=stdin, capture_output=True,
                          text=True, timeout=limit)


class Running:
    """The command in the background; its output is collected as it comes."""

    def __init__(self, *args, program=BIN, stdin=subprocess.DEVNULL):
        self.process = subprocess.Popen(
            [program, *args], stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace")
        self.out, self.err = [], []
        self.threads = [
            threading.Thread(target=self._collect, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out),
                         (self.process.stderr, self.err))]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _collect(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def wait_for(self, pattern, lines=None, limit=LIMIT):
        """The match of pattern in a line of output, once it is there."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            for line in list(self.err if lines is None else lines):
                m = re.search(pattern, line)
                if m:
                    return m
            if ended and not any(t.is_alive() for t in self.threads):
                break
            time.sleep(0.01)
        raise AssertionError(
            f"no {pattern!r} in\n"
            + "\n".join(self.out[-50:] + self.err[-50:]))

    def signal(self, number=signal.SIGINT):
        self.process.send_signal(number)

    def end(self, limit=LIMIT):
        """Wait for the end; the exit status."""
        status = self.process.wait(limit)
        for thread in self.threads:
            thread.join(limit)
        return status


def ports_to_keep(n):
    """The first of n ports that follow one another and no outgoing connection
    can take: so a program that ended can come back to them."""
    for first in range(10000 + os.getpid() * 97 % 20000, 30000):
        held = []
        try:
            for port in range(first, first + n):
                held.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for s in held:
                s.close()
    raise AssertionError(f"no {n} free ports")


class Publisher(Running):
    """kvevents publish, on free ports unless it is told otherwise; knows its
    endpoints."""

    def __init__(self, *args, replay=True, endpoint="tcp://127.0.0.1:0",
                 **kwargs):
        if replay is True:
            replay = "tcp://127.0.0.1:0"
        super().__init__("publish", *args, "--endpoint", endpoint,
                         "--replay-endpoint", replay or "none", **kwargs)
        m = self.wait_for(
            r"^Publishing on (\S+) \((?:bound|connecting)\), "
            r"(?:no replay|replay on (\S+)), (?:snapshots on (\S+), )?"
            r"topic '(.*)'(?:, id ([0-9a-f]{32}))?$")
        self.live, self.replay, self.snapshot, self.topic, self.id = m.groups()

    def say(self, *lines):
        """Publish lines; standard input is a pipe then."""
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()


def watch(publisher, *args, limit=LIMIT):
    """Run watch on a publisher to its end."""
    replay = ["--replay", publisher.replay] if publisher.replay else []
    return run("watch", publisher.live, *replay, *args, limit=limit)


def main(module):
    """Run every test_ function of a module; say which failed."""
    failed = 0
    tests = [(name, function) for name, function in vars(module).items()
             if name.startswith("test_")]
    for name, function in tests:
        start = time.monotonic()
        try:
            function()
        except Exception as error:  # every kind of failure is one
            failed += 1
            print(f"FAIL {name}: {error}")
            if not isinstance(error, AssertionError):
                raise
        else:
            print(f"ok   {name} ({time.monotonic() - start:.2f} s)")
    print(f"{len(tests)} tests, {failed} failed")
    sys.exit(1 if failed else 0)
