#!/usr/bin/env python3
"""Run the benchmarks of one part, or all: run.py PART

PART is codec, stream, index, service or all. One JSON line a figure on
standard output.
"""

import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent
PROGRAMS = BENCH.parent / "build" / "release" / "bench"
PARTS = {
    "codec": [[sys.executable, BENCH / "run_codec.py"],
              [PROGRAMS / "bench_tokens"]],
    "stream": [[sys.executable, BENCH / "run_stream.py"],
               [PROGRAMS / "bench_publish"],
               [sys.executable, BENCH / "run_sources.py"],
               [PROGRAMS / "bench_snapshot"]],
    "index": [[sys.executable, BENCH / "run_index.py"]],
    "service": [[sys.executable, BENCH / "run_service.py"]],
}


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    failed = False
    for name, commands in PARTS.items():
        if part in ("all", name):
            for command in commands:
                print("+", *command, file=sys.stderr, flush=True)
                failed |= subprocess.run(command).returncode != 0
    sys.exit(failed)


main()
