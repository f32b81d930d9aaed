#!/usr/bin/env python3
"""Every public function is documented, and nothing else is.

* above each KVE_API declaration stands a comment; declarations that follow one
  another without a blank line share it;
* each function has a line in a man page, docs/man/*.3, in its SYNOPSIS, and a
  paragraph of its own: it is named behind the SYNOPSIS too;
* every kve_function() that a man page speaks of exists.
"""

import re

from _sources import (ROOT, declarations, finish, public_headers, read,
                      without_comments)

# A function as mdoc names it: .Fn name, or name( in an example.
NAMED = re.compile(r'^\.F[no] "?(kve_\w+)|\b(kve_\w+)"?\s*\(', re.M)


def has_comment(lines, at):
    """Whether the declaration in line at (from 0) has a comment above it."""
    while at > 0:
        at -= 1
        line = lines[at].rstrip()
        if line.endswith("*/"):
            return True
        if not line or line.startswith("#") or line.endswith("{"):
            return False
    return False


def callback_types():
    """Names of function types, which read like calls."""
    for path in public_headers():
        yield from re.findall(r"^typedef [^;(]*\b(kve_\w+)\(",
                              without_comments(read(path)), re.M)


def named(text):
    return {a or b for a, b in NAMED.findall(text)}


def main():
    problems = []
    described, explained, spoken = set(), set(), {}
    for path in sorted((ROOT / "docs" / "man").glob("*.3")):
        page = read(path.relative_to(ROOT))
        m = re.search(r"^\.Sh SYNOPSIS$(.*?)(?=^\.Sh )(.*)", page, re.M | re.S)
        if not m:
            problems.append(f"{path.name}: has no SYNOPSIS")
            continue
        described |= named(m.group(1))
        explained |= set(re.findall(r"^\.Fn (kve_\w+)", m.group(2), re.M))
        spoken[path.name] = named(page)

    names = set()
    for path, line, name in declarations():
        names.add(name)
        if not has_comment(read(path).split("\n"), line - 1):
            problems.append(f"{path}:{line}: {name} has no comment above it")
        if name not in described:
            problems.append(f"{path}:{line}: {name} is in no SYNOPSIS of "
                            "docs/man/*.3")
        elif name not in explained:
            problems.append(f"{path}:{line}: {name} is only in a SYNOPSIS")
    known = names | set(callback_types())
    for page, functions in spoken.items():
        for name in sorted(functions - known):
            problems.append(f"{page}: speaks of {name}(), which is not "
                            "public")
    finish(problems, len(names))


if __name__ == "__main__":
    main()
