#!/usr/bin/env python3
"""How the command ends: Ctrl-C, SIGTERM, --count, --timeout, a reader of its
output that leaves or does not read."""

import os
import signal
import subprocess
import sys
import tempfile
import time

from _command import BIN, FIXTURES, Publisher, Running, main, run, watch

FILE = str(FIXTURES / "sha256-int-defaults.jsonl")
TOTAL = 10


def test_interrupt_of_an_idle_watch():
    """At once, with the summary, 130; SIGTERM: 143."""
    for number, status in (signal.SIGINT, 130), (signal.SIGTERM, 143):
        with Running("watch", "ipc:///tmp/kvevents-nobody.sock") as watcher:
            watcher.wait_for("^Listening for", watcher.out)
            start = time.monotonic()
            watcher.signal(number)
            assert watcher.end() == status
            assert time.monotonic() - start < 2
        assert watcher.out[-1] == "Interrupted", watcher.out
        assert watcher.err[-1].startswith("0 batches, 0 events; gaps: 0"), \
            watcher.err


def test_interrupt_of_a_busy_watch():
    with Publisher(FILE, "--loop", "--rate", "2000") as publisher:
        with Running("watch", publisher.live, "--replay", publisher.replay,
                     "--no-tokens") as watcher:
            watcher.wait_for("^Received event batch", watcher.out)
            start = time.monotonic()
            watcher.signal()
            assert watcher.end() == 130
            assert time.monotonic() - start < 2
        assert watcher.out[-1] == "Interrupted", watcher.out[-3:]
        start = time.monotonic()
        publisher.signal()
        assert publisher.end() == 130
        assert time.monotonic() - start < 5


def test_interrupt_while_nobody_reads_the_output():
    with Publisher(FILE, "--loop", "--rate", "2000") as publisher:
        watcher = subprocess.Popen(
            [BIN, "watch", publisher.live, "--replay", publisher.replay],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1)  # the pipe is full by now
        start = time.monotonic()
        watcher.send_signal(signal.SIGINT)
        _, err = "", watcher.stderr.read()
        assert watcher.wait(10) == 130, err
        assert time.monotonic() - start < 2
        watcher.stdout.close()
        assert "batches, " in err.splitlines()[-1], err


def test_count():
    with Publisher(FILE) as publisher:
        for count in 1, 4, TOTAL:
            done = watch(publisher, "-n", str(count))
            assert done.returncode == 0
            assert done.stdout.count("Received event batch") == count
        done = watch(publisher, "-n", str(TOTAL + 1), "--timeout", "1.5")
        assert done.returncode == 1, done
        assert done.stdout.count("Received event batch") == TOTAL
        done = watch(publisher, "--timeout", "1")
        assert done.returncode == 0, done


def test_reader_of_the_output_leaves():
    with Publisher(FILE, "--loop", "--rate", "2000") as publisher:
        done = subprocess.run(
            f"{BIN} watch {publisher.live} -r {publisher.replay} "
            f"--quiet | head -n 5; "
            'echo "${PIPESTATUS[@]}"', shell=True, executable="/bin/bash",
            capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 0", done
    assert done.stderr == "", done.stderr


def test_output_that_cannot_be_written():
    if not os.path.exists("/dev/full"):
        return
    with Publisher(FILE) as publisher:
        done = subprocess.run(
            f"{BIN} watch {publisher.live} -r {publisher.replay} >/dev/full",
            shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done
    assert "cannot write: No space left" in done.stderr, done.stderr


def test_output_that_is_closed():
    """A closed stream is no place for one of our sockets."""
    for command, said in (
            ("watch --timeout 0.3", "watch: cannot write: Bad file"),
            ("watch --help", "kvevents: cannot write: Bad file")):
        done = subprocess.run(f"{BIN} {command} >&-", shell=True,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and said in done.stderr, done
    done = subprocess.run(
        f"{BIN} publish - -x -e tcp://127.0.0.1:0 -r none <&-", shell=True,
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done
    assert "cannot read 'standard input': Bad file" in done.stderr, done


# getaddrinfo() of a name server that does not answer.
SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
typedef int look_up(const char *, const char *, const struct addrinfo *,
    struct addrinfo **);
int getaddrinfo(const char *host, const char *port,
    const struct addrinfo *hints, struct addrinfo **ret)
{
    if (host == NULL || strcmp(host, "slow.invalid") != 0)
        return ((look_up *)dlsym(RTLD_NEXT, "getaddrinfo"))(
            host, port, hints, ret);
    for (int i = 0; i < 60; i++)
        sleep(1);
    return EAI_AGAIN;
}
"""


def test_interrupt_while_a_name_is_looked_up():
    name = "tcp://slow.invalid:5557"
    near = "tcp://127.0.0.1:0"
    commands = [
        ["watch", name],
        ["watch", "ipc:///tmp/kvevents-nobody.sock", "--replay", name],
        ["watch", name, "--bind", "yes"],
        ["publish", FILE, "-e", name, "-r", "none", "--bind", "no"],
        ["publish", FILE, "-e", name, "-r", "none", "--public"],
        ["publish", FILE, "-e", near, "-r", name, "--public"],
    ]
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/slow.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o",
                        library, "-ldl"], input=SLOW, text=True, check=True)
        env = dict(os.environ, LD_PRELOAD=library,
                   ASAN_OPTIONS="verify_asan_link_order=0")
        for command in commands:
            process = subprocess.Popen(
                [BIN, *command], env=env, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True)
            time.sleep(0.5)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=70)
            took = time.monotonic() - start
            assert process.returncode == 130, (command, err)
            assert took < 2, (command, took)


def test_publish_ends_by_itself():
    done = run("publish", FILE, "--exit", "-e", "tcp://127.0.0.1:0", "-r",
               "tcp://127.0.0.1:0")
    assert done.returncode == 0, done
    assert "Published 10 batches\n" in done.stderr, done.stderr
    done = run("publish", FILE, "-q", "-e", "tcp://127.0.0.1:0", "-r", "none")
    assert done.returncode == 0 and done.stderr == "", done


def test_publish_serves_until_interrupted():
    with Publisher(FILE) as publisher:
        publisher.wait_for("Published 10 batches; serving replay until "
                           "interrupted")
        start = time.monotonic()
        publisher.signal()
        assert publisher.end() == 0, publisher.err
        assert time.monotonic() - start < 2


def test_rate():
    start = time.monotonic()
    done = run("publish", FILE, "-x", "--rate", "20", "-e",
               "tcp://127.0.0.1:0", "-r", "none")
    took = time.monotonic() - start
    assert done.returncode == 0 and 0.4 < took < 3, took


if __name__ == "__main__":
    main(sys.modules[__name__])
