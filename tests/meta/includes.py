#!/usr/bin/env python3
"""Who may include whom.

src/ is a row of folders along the data's path; each includes itself, base/ and
the folders before it, and names a header by its folder. ZeroMQ is seen by
base/ and transport/ alone, the HTTP server by http/, JSON by the two folders of
the service. The command and the examples see the public headers.
"""

import re

from _sources import ORDER, ROOT, files, finish, read, without_comments

ZEROMQ = {"base", "transport"}
SERVICE = {"discover", "http"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def judge(path, quote, name):
    """What is wrong with one include, or None."""
    top = path.parts[0]
    if quote == "<":
        if name.startswith("kvevents/"):
            return None if (ROOT / "include" / name).is_file() else \
                "there is no such public header"
        if top == "include" and name.startswith("zmq"):
            return "public headers do not need ZeroMQ"
        if top == "src" and name.startswith("zmq") and \
                path.parts[1] not in ZEROMQ:
            return "only base/ and transport/ know ZeroMQ"
        if top == "src" and name.startswith("jansson") and \
                path.parts[1] not in SERVICE:
            return "only the service reads JSON"
        if top == "src" and name.startswith(("microhttpd", "gnutls")) and \
                path.parts[1] != "http":
            return "only http/ knows the HTTP server"
        if top == "src" and name.startswith(("msgpack", "cmocka")):
            return "the library does not need it"
        return None

    if top == "include":
        return "public headers include <kvevents/...>"
    if top in ("tools", "examples"):
        return None if (ROOT / path.parent / name).is_file() else \
            "only headers of its own folder and public ones"
    if top != "src":
        return None
    folder, theirs = path.parts[1], name.split("/")[0]
    if "/" not in name or theirs not in ORDER:
        return 'write "FOLDER/header.h"'
    if not (ROOT / "src" / name).is_file():
        return "there is no such header"
    if ORDER.index(theirs) > ORDER.index(folder):
        return f"{theirs}/ comes after {folder}/: " + " ".join(ORDER)
    return None


def main():
    problems = []
    looked_at = 0
    for path in files():
        if path.suffix not in (".c", ".h"):
            continue
        if path.parts[0] == "src" and (
                len(path.parts) < 3 or path.parts[1] not in ORDER):
            problems.append(f"{path}: not in a folder of " + " ".join(ORDER))
            continue
        for quote, name in INCLUDE.findall(without_comments(read(path))):
            looked_at += 1
            wrong = judge(path, quote, name)
            if wrong:
                problems.append(f"{path}: {name}: {wrong}")
    finish(problems, looked_at)


if __name__ == "__main__":
    main()
