#!/usr/bin/env python3
"""Are the tests of src/stream able to fail?

Each mutant of stream.toml is a bug that somebody could make: one piece of
text in one file of src/stream, replaced. The file is compiled with it, linked
with the tests of tests/unit/stream, and at least one of them must fail. A
text that is not found exactly once is an error: a mutant that no longer
applies shows nothing.

The tests run shortened. Nothing but the mutated file is compiled more than
once, and nothing is written outside a temporary folder.

With arguments: only the mutants of these names, and what the tests said.
"""

# ctest-timeout: 900
# ctest-serial: yes

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = pathlib.Path(os.environ.get("KVEVENTS_SOURCE_DIR", HERE.parents[1]))
STREAM = ROOT / "src" / "stream"
TESTS = ROOT / "tests" / "unit" / "stream"

# Test, and what makes it short. The searches first: they know nothing of how
# the machine is made.
RUNS = [
    ("test_exhaustive", {"KVE_EXHAUSTIVE_LENGTH": "4"}),
    ("test_schedules", {"KVE_SCHEDULES": "20000"}),
    ("test_machine", {}),
    ("test_random", {"KVE_RANDOM_STEPS": "200000"}),
]
PATIENCE = 120  # seconds; a test that takes longer hangs, which is a failure


def compiler():
    """The compiler of the build this test belongs to, else the usual one."""
    cache = pathlib.Path(os.environ.get("KVEVENTS_BUILD_DIR", "/nonexistent"))
    cache /= "CMakeCache.txt"
    if cache.is_file():
        found = re.search(r"^CMAKE_C_COMPILER:\w+=(.+)$", cache.read_text(),
                          re.M)
        if found:
            return found.group(1)
    return os.environ.get("CC", "cc")


def pkg_config(what):
    return subprocess.run(
        ["pkg-config", what, "cmocka", "libxxhash"], check=True, text=True,
        capture_output=True).stdout.split()


CC = compiler()
FLAGS = ["-std=c11", "-O1", "-D_GNU_SOURCE", "-DKVE_TESTING=1",
         "-DKVE_BUILDING=1", f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}",
         f"-I{ROOT / 'tests'}", f"-I{TESTS}", *pkg_config("--cflags")]
LIBS = [*pkg_config("--libs"), "-pthread", "-lm"]


def compile_file(source, target):
    subprocess.run([CC, *FLAGS, "-c", source, "-o", target], check=True)
    return target


def sources():
    """What every test is linked with, apart from src/stream itself."""
    return [*sorted((ROOT / "src" / "base").glob("*.c")),
            ROOT / "src" / "subscribe" / "names.c",
            *(p for p in sorted(TESTS.glob("*.c"))
              if not p.name.startswith("test_"))]


class Bench:
    """Objects of everything, and a folder to put mutants together in."""

    def __init__(self, folder):
        self.folder = folder
        jobs = {}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for source in [*sources(), *sorted(STREAM.glob("*.c")),
                           *(TESTS / f"{name}.c" for name, _ in RUNS)]:
                key = f"{source.parent.name}-{source.stem}"
                jobs[key] = pool.submit(
                    compile_file, source, folder / f"{key}.o")
        objects = {key: job.result() for key, job in jobs.items()}
        self.mains = {name: objects.pop(f"stream-{name}") for name, _ in RUNS}
        self.stream = {f"{p.stem}.c": objects.pop(f"stream-{p.stem}")
                       for p in STREAM.glob("*.c")}
        self.rest = list(objects.values())

    def first_failure(self, changed=None, verbose=False):
        """The name of the first test that fails and how, or None."""
        stream = {**self.stream, **(changed or {})}
        for name, env in RUNS:
            program = self.folder / name
            subprocess.run(
                [CC, self.mains[name], *stream.values(), *self.rest,
                 "-o", program, *LIBS], check=True)
            try:
                done = subprocess.run(
                    [program], env={**os.environ, **env}, timeout=PATIENCE,
                    capture_output=True, text=True, errors="replace",
                    check=False)
            except subprocess.TimeoutExpired:
                return name, "it hangs"
            if done.returncode != 0:
                said = done.stdout + done.stderr
                if verbose:
                    print(said)
                return name, said
        return None


def load():
    with open(HERE / "stream.toml", "rb") as f:
        mutants = tomllib.load(f)["mutant"]
    names = [m["name"] for m in mutants]
    if len(set(names)) != len(names):
        sys.exit("stream.toml: two mutants have the same name")
    wanted = sys.argv[1:]
    unknown = set(wanted) - set(names)
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [m for m in mutants if not wanted or m["name"] in wanted]


def mutate(mutant, folder):
    """The mutated source; None when its text is not found exactly once."""
    text = (STREAM / mutant["file"]).read_text(encoding="utf-8")
    if text.count(mutant["old"]) != 1 or mutant["old"] == mutant["new"]:
        return None
    path = folder / mutant["file"]
    path.write_text(text.replace(mutant["old"], mutant["new"]),
                    encoding="utf-8")
    return path


def main():
    mutants = load()
    problems = []
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kve-mutants-"))
    try:
        bench = Bench(folder)
        failure = bench.first_failure(verbose=True)
        if failure:
            sys.exit(f"without a mutant {failure[0]} fails: see above")
        for mutant in mutants:
            source = mutate(mutant, folder)
            if source is None:
                problems.append(
                    f"{mutant['name']}: its old text does not stand in "
                    f"{mutant['file']} exactly once; write it anew")
                continue
            changed = {mutant["file"]: compile_file(
                source, folder / "mutant.o")}
            failure = bench.first_failure(changed, verbose=len(sys.argv) > 1)
            print(f"{mutant['name']}: "
                  f"{failure[0] if failure else 'NOT CAUGHT'}", flush=True)
            if not failure:
                problems.append(f"{mutant['name']}: no test fails with it")
    finally:
        shutil.rmtree(folder)

    for problem in problems:
        print(problem)
    print(f"{len(mutants)} mutants, {len(problems)} problems")
    sys.exit(1 if problems or not mutants else 0)


if __name__ == "__main__":
    main()
