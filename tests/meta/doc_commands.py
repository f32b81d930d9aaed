#!/usr/bin/env python3
"""What README.md, docs/*.md and docs/guide/*.md tell people to type works.

Blocks are run in the order of their document, in a temporary directory that
has the sources' examples/, with the command, the library and pkg-config of the
build (installed to a prefix there):

  sh        every command has to succeed, but those of EXEMPT
  console   lines behind "$ " and "> " are typed; what is recorded below them
            has to come again, time stamps apart
  c NAME    is written to NAME; a program in a man page is compiled

The fixed ports of the documents become free ones. Each block is a shell of its
own, and what it left running is ended with it.

ctest-timeout: 300
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from _sources import BUILD, ROOT, read

# Blocks that install packages, build everything or write to the system.
EXEMPT = ["make demo", "make install", "cmake --preset"]
BLOCK_S = 60
TRIES = 3  # of a recorded session: its gaps depend on being there in time
PORTS = [5557, 5558, 5559, 5567, 5568, 5569, 8090]  # of the documents


def free_ports():
    """Free ones for PORTS, as far from each other, that no outgoing connection
    can take meanwhile: a session may come back to them."""
    for move in range(10000 + os.getpid() * 89 % 19000 - PORTS[0], 24000):
        ports = {port: port + move for port in PORTS}
        held = []
        try:
            for port in ports.values():
                held.append(socket.create_server(("127.0.0.1", port)))
            return ports
        except OSError:
            continue
        finally:
            for s in held:
                s.close()
    raise AssertionError("no free ports")


def blocks(text):
    """Yield (info, body) for each fenced block."""
    info, body = None, []
    for line in text.splitlines(keepends=True):
        if not line.startswith("```"):
            body.append(line)
        elif info is None:
            info, body = line[3:].strip(), []
        else:
            yield info, "".join(body)
            info = None


def typed(body):
    """A recorded session as (script, lines that were printed)."""
    script, printed = [], []
    for line in body.splitlines():
        if line.startswith(("$ ", "> ")):
            script.append(line[2:])
        else:
            printed.append(line)
    return "\n".join(script) + "\n", printed


def plain(line):
    """A line of output without what differs from run to run."""
    line = re.sub(r"\d{9,}\.\d+", "TIME", line)
    # Heartbeats take numbers, and how many were sent is a matter of time.
    line = re.sub(r"(  # snapshot after number) \d+$", r"\1", line)
    return re.sub(r"  # replayed, number \d+$", "", line)


class Place:
    """A directory with a prefix in it, where blocks are run."""

    def __init__(self, path):
        self.path = path
        self.ports = {}
        prefix = path / "prefix"
        (path / "examples").symlink_to(ROOT / "examples")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix],
                       check=True, stdout=subprocess.DEVNULL)
        lib = next(prefix.rglob("libkvevents.a")).parent
        wrapper = prefix / "bin" / "pkg-config"
        wrapper.write_text(
            "#!/bin/sh\n"
            f"exec {shutil.which('pkg-config')} "
            f"--define-variable=prefix={prefix} \"$@\"\n")
        wrapper.chmod(0o755)
        self.env = dict(os.environ, PATH=f"{prefix}/bin:{os.environ['PATH']}",
                        PKG_CONFIG_PATH=f"{lib}/pkgconfig",
                        LD_LIBRARY_PATH=str(lib))

    def text(self, body):
        """body with ports of its own instead of those everybody takes."""
        for port, other in self.ports.items():
            body = body.replace(f":{port}", f":{other}")
        return body

    def run(self, script):
        """Run a script; (succeeded, output). Ends what it left running."""
        self.ports = free_ports()
        with tempfile.TemporaryFile("w+") as out:
            shell = subprocess.Popen(
                ["bash", "-c", "set -euo pipefail; set -m\n" +
                 self.text(script) + "\nkill $(jobs -p) 2>&- || true\n"],
                cwd=self.path, env=self.env, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = shell.wait(BLOCK_S)
            except subprocess.TimeoutExpired:
                status = "no end"
            self.end(shell.pid)
            out.seek(0)
            text = out.read()
        for port, other in self.ports.items():
            text = text.replace(f":{other}", f":{port}")
        return status == 0, text

    @staticmethod
    def end(session):
        """End every process of a session; it is ours."""
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2]
                if int(fields.split()[3]) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, IndexError):
                continue


def run_session(place, body):
    script, printed = typed(body)
    for _ in range(TRIES):
        right, output = place.run(script)
        came = {plain(line) for line in output.splitlines()}
        missing = [line for line in printed if plain(line) not in came]
        if right and not missing:
            return True, output
    return False, output + "".join(f"\nnot printed: {m}" for m in missing)


def check_document(path, place):
    """Yield (what, right, output) for each block."""
    programs = {}
    for info, body in blocks(read(path)):
        what = f"{path}: {body.strip().splitlines()[0][:60]}"
        if info.startswith("c "):
            programs[info[2:]] = body
            continue
        if info == "console":
            yield (what, *run_session(place, body))
        elif info == "sh" and not body.startswith(tuple(EXEMPT)):
            # Ports are new with each block, and stand in programs too.
            script = "".join(f"cat >{name} <<'END OF PROGRAM'\n{text}"
                             "END OF PROGRAM\n"
                             for name, text in programs.items()) + body
            yield (what, *place.run(script))


def check_programs(place):
    """Compile the whole programs of man pages."""
    for page in sorted((ROOT / "docs" / "man").glob("*.3")):
        for text in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", read(
                page.relative_to(ROOT)), re.M | re.S):
            if "\nmain(" not in text:
                continue
            text = text.replace("\\e", "\\")
            yield (f"{page.name}: a program", *place.run(
                f"cat >page.c <<'END OF PROGRAM'\n{text}END OF PROGRAM\n"
                "cc -Wall -Wextra -Werror page.c -o page "
                "$(pkg-config --cflags --libs libkvevents)\n"
                "cc -Wall -Wextra -Werror page.c -o page_static "
                "$(pkg-config --cflags libkvevents) "
                f"-L$(dirname {place.env['PKG_CONFIG_PATH']}) "
                "-l:libkvevents.a -lzmq -lcrypto -pthread\n"))


def main():
    for tool in ("bash", "cc", "cmake", "pkg-config"):
        if shutil.which(tool) is None:
            print(f"skipped: no {tool}")
            sys.exit(77)
    if not (BUILD / "kvevents").exists():
        print("skipped: the command was not built")
        sys.exit(77)
    if os.environ.get("KVEVENTS_SANITIZE"):
        print("skipped: programs would have to be built with the sanitizer")
        sys.exit(77)

    failed = ran = 0
    documents = [pathlib.Path("README.md"),
                 *(p.relative_to(ROOT)
                   for folder in ("docs", "docs/guide")
                   for p in sorted((ROOT / folder).glob("*.md")))]
    with tempfile.TemporaryDirectory(prefix="kvevents-doc-") as folder:
        place = Place(pathlib.Path(folder))
        results = [result for document in documents
                   for result in check_document(document, place)]
        results += check_programs(place)
        for what, right, output in results:
            ran += 1
            failed += not right
            print("ok   " if right else "FAIL ", what)
            if not right:
                print(output)
    print(f"{ran} blocks ran, {failed} failed")
    sys.exit(1 if failed or not ran else 0)


if __name__ == "__main__":
    main()
