#!/usr/bin/env python3
"""Files are what people wrote, and written the way this project writes.

* no blanks at line ends, no tabs but in makefiles, a newline at the end;
* lines of at most 80 columns in code and scripts;
* no note that something is still to be done;
* no path of somebody's own machine;
* nothing that a build, an editor or a merge left behind; nothing large.
"""

import re

from _sources import ROOT, files, finish

CODE = {".c", ".h", ".cc", ".sh", ".py", ".cmake"}
MAKEFILES = {"Makefile"}
LARGEST = 8 << 20
LEFT_BEHIND = re.compile(
    r"\.(o|a|so|pyc|orig|rej|swp|log|profraw|gcda|gcno)$|~$|"
    r"(^|/)(CMakeCache\.txt|CMakeFiles|__pycache__|core|a\.out)(/|$)")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")

# First parts of absolute paths that every machine has, or every service (v1,
# test), or none (item, nowhere).
COMMON = {"bin", "dev", "etc", "item", "lib", "nowhere", "proc", "run", "sys",
          "test", "tmp", "usr", "v1", "var"}
ABSOLUTE = re.compile(
    r"""(?:^|[\s'`=(]|(?<![\w}])")/([A-Za-z][\w.-]*)/[\w.]+""")


def judge_line(path, line, data):
    if data:
        return
    if line != line.rstrip():
        yield "blanks at the end"
    if "\t" in line and path.name not in MAKEFILES:
        yield "a tab"
    code = path.suffix in CODE or path.name in MAKEFILES | {"CMakeLists.txt"}
    # The backslash of a long macro stands where clang-format puts it.
    columns = len(line.rstrip("\\").rstrip())
    if code and columns > 80:
        yield f"{columns} columns"
    if UNFINISHED.search(line):
        yield "a note of something unfinished"
    for m in ABSOLUTE.finditer(line):
        if m.group(1) not in COMMON:
            yield f"a path of one machine: {m.group().strip()}"


def judge(path):
    raw = (ROOT / path).read_bytes()
    if LEFT_BEHIND.search(str(path)):
        yield f"{path}: left behind by a program"
    if raw.startswith(b"\x7fELF"):
        yield f"{path}: a program"
    if len(raw) > LARGEST:
        yield f"{path}: {len(raw)} bytes"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return
    # Recorded input is kept as it was.
    data = path.suffix in (".jsonl", ".json", ".bin") or "corpus" in path.parts
    if not data and text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"
    for number, line in enumerate(text.split("\n"), 1):
        for wrong in judge_line(path, line, data):
            yield f"{path}:{number}: {wrong}"


def main():
    all_files = files()
    finish([p for path in all_files for p in judge(path)], len(all_files))


if __name__ == "__main__":
    main()
