#!/usr/bin/env python3
"""What the libraries show and what they use.

* the shared library exports exactly the functions marked KVE_API, but for
  those of the service, which its own library has;
* every symbol other files can see starts with kve_;
* memory comes from base/alloc alone;
* no function is used that the library must not use: it writes to no standard
  stream, ends no process, handles no signal, and calls nothing unbounded.
"""

import re
import subprocess

from _sources import BUILD, declarations, finish

ALLOCATE = {"malloc", "calloc", "realloc", "free", "strdup", "strndup",
            "reallocarray", "asprintf", "vasprintf", "aligned_alloc",
            "posix_memalign"}
NEVER = {"printf", "fprintf", "vprintf", "vfprintf", "puts", "putchar",
         "fputs", "fputc", "fwrite", "perror", "stdout", "stderr",
         "signal", "sigaction", "exit", "_exit", "quick_exit",
         "gets", "strcpy", "stpcpy", "strcat", "strncpy", "strncat",
         "sprintf", "vsprintf", "strtok", "rand", "srand", "random",
         "atoi", "atol", "atof", "sscanf", "alloca", "system", "popen"}


def nm(*args):
    return subprocess.run(["nm", *args], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def plain(name):
    """printf for __printf_chk, sscanf for __isoc99_sscanf."""
    name = name.split("@")[0]
    name = re.sub(r"^__isoc\d+_", "", name)
    return re.sub(r"^__(\w+)_chk$", r"\1", name)


SERVICE = {"service.h", "discover.h"}


def look_inside(archive, problems):
    """Judge every symbol of a static library; what it defines, and how many
    there were."""
    defined, seen, unit = set(), 0, ""
    for line in nm("-g", archive):
        if line.endswith(".o:"):
            unit = line[:-1]
            continue
        if not line.strip():
            continue
        kind, name = line.split()[-2:]
        seen += 1
        if kind not in "Uwv":
            defined.add(name)
            if not name.startswith("kve_"):
                problems.append(f"{unit}: {name} does not start with kve_")
        elif plain(name) in NEVER:
            problems.append(f"{unit}: uses {plain(name)}")
        elif plain(name) in ALLOCATE and unit != "alloc.c.o":
            problems.append(f"{unit}: uses {plain(name)}; base/alloc.h has "
                            "the calls that can be counted and made to fail")
    return defined, seen


def main():
    problems = []
    declared, service = set(), set()
    for header, _, name in declarations():
        (service if header.name in SERVICE else declared).add(name)

    exported = {line.split()[-1].split("@")[0] for line in
                nm("-D", "--defined-only", BUILD / "libkvevents.so")}
    exported -= {"_init", "_fini"}
    for name in sorted(exported - declared):
        problems.append(f"libkvevents.so exports {name}, which no public "
                        "header declares")
    for name in sorted(declared - exported):
        problems.append(f"{name} is declared KVE_API and not exported")

    _, seen = look_inside(BUILD / "libkvevents.a", problems)
    defined, also = look_inside(BUILD / "libkvevents-service.a", problems)
    for name in sorted(service - defined):
        problems.append(f"{name} is declared KVE_API and the service's "
                        "library does not have it")
    finish(problems, min(seen, also, len(declared), len(service)))


if __name__ == "__main__":
    main()
