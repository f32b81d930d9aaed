#!/usr/bin/env python3
"""src/README.md describes the source that is there: every folder has a section,
in the order of the path, and every file that it names is in that folder.
"""

import re

from _sources import ORDER, ROOT, finish, read


def main():
    problems = []
    named = 0
    parts = re.split(r"^## (\w+)/$", read("src/README.md"), flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2]))

    if list(sections) != ORDER:
        problems.append(f"sections are {' '.join(sections)}; the order is "
                        + " ".join(ORDER))
    for folder, text in sections.items():
        names = set(re.findall(r"`(\w+\.[ch])`", text))
        named += len(names)
        for name in sorted(names):
            if not (ROOT / "src" / folder / name).is_file():
                problems.append(f"{folder}/ has no {name}")
        for path in sorted((ROOT / "src" / folder).glob("*.h")):
            if path.name not in names and not path.stem.endswith("_impl"):
                problems.append(f"{folder}/{path.name} is not named")
    finish(problems, named)


if __name__ == "__main__":
    main()
