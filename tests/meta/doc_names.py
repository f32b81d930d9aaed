#!/usr/bin/env python3
"""What the public headers name is explained where users look for it.

* each field of a public structure, and each value of a public enum, is in the
  man page of its header, docs/man/kve_NAME.3;
* the tables of docs/WIRE.md list every fault, every note, every frames fault
  and every field;
* man pages refer to pages that exist, and are sound for mandoc, where there is
  one; documents link to files and headings that exist.
"""

import re
import shutil
import subprocess

from _sources import (ROOT, files, finish, public_headers, read,
                      without_comments)

# Tables that docs/WIRE.md has to repeat, by the macro that lists them.
ON_THE_WIRE = ["KVE_FAULT_MAP", "KVE_NOTE_MAP", "KVE_FRAMES_MAP",
               "KVE_FIELD_MAP", "KVE_TIER_MAP"]

# Words that are fields of no interest: of small structures explained in a
# sentence, and of what callers only zero.
PLAIN = {"data", "len"}


def joined(text):
    return without_comments(text).replace("\\\n", " ")


def rows(text):
    """Yield (macro, name, texts) for each row of an X-macro table."""
    for m in re.finditer(r"^#define (KVE_\w+_MAP)\(X\)(.*)$", text, re.M):
        for row in re.finditer(
                r'X\((\w+), \d+((?:,\s*(?:"[^"]*"\s*)+)+)\)', m.group(2)):
            yield m.group(1), row.group(1), re.findall(r'"([^"]*)"',
                                                       row.group(2))


def enum_names(text):
    """Names an enum gives, by hand or from the table it names."""
    for m in re.finditer(r"^(?:typedef )?enum \w+ \{(.*?)^\}", text,
                         re.M | re.S):
        body = m.group(1)
        yield from re.findall(r"^\s+(KVE_[A-Z]\w+)\s*[=,]", body, re.M)
        prefix = re.search(r"#define X\(.*?\)\s*(KVE_\w*?)##name", body)
        for macro in re.findall(r"(KVE_\w+_MAP)\(X\)", body):
            yield from (prefix.group(1) + name
                        for of, name, _ in rows(text) if of == macro)


def fields(text):
    for m in re.finditer(r"^struct (\w+) \{(.*?)^\};", text, re.M | re.S):
        for line in m.group(2).split(";"):
            found = re.search(r"\(\*(\w+)\)\(|(\w+)(?:\[\d+\])?\s*$",
                              line.strip())
            if found and "}" not in line:
                yield m.group(1), found.group(1) or found.group(2)


def check_header(path, problems):
    page = ROOT / "docs" / "man" / f"kve_{path.stem}.3"
    looked_at = 0
    if not page.is_file():
        return 0
    words = set(re.findall(r"\w+", read(page.relative_to(ROOT))))
    text = joined(read(path))
    for name in enum_names(text):
        looked_at += 1
        if name not in words:
            problems.append(f"{page.name}: {name} is not in it")
    for struct, field in fields(text):
        looked_at += 1
        if field not in words | PLAIN:
            problems.append(f"{page.name}: {field} of struct {struct} is not "
                            "in it")
    return looked_at


def check_wire(problems):
    page = read("docs/WIRE.md")
    looked_at = 0
    for path in public_headers():
        for macro, _, texts in rows(joined(read(path))):
            if macro not in ON_THE_WIRE:
                continue
            looked_at += 1
            if f"`{texts[0]}`" not in page:
                problems.append(f"docs/WIRE.md: `{texts[0]}` of {macro} is "
                                "not in it")
    return looked_at


def check_pages(problems):
    pages = sorted((ROOT / "docs" / "man").glob("*.[0-9]"))
    names = {page.name for page in pages} | {"kvevents.1"}  # by the build
    for page in pages:
        for name, section in re.findall(r"^\.Xr (kv\w+) (\d)",
                                        page.read_text(), re.M):
            if f"{name}.{section}" not in names:
                problems.append(f"{page.name}: there is no {name}({section})")
        # References to pages of other packages, which may not be installed,
        # are below the level of a warning.
        if shutil.which("mandoc"):
            lint = subprocess.run(
                ["mandoc", "-Tlint", "-Wwarning", page], capture_output=True,
                text=True, check=False)
            problems += lint.stdout.splitlines()


def headings(text):
    """Names by which headings are linked to."""
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def check_links(problems):
    for path in files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", read(path)):
            name, _, heading = target.partition("#")
            to = (ROOT / path).parent / name if name else ROOT / path
            if "://" in target:
                continue
            if not to.exists():
                problems.append(f"{path}: links to {name}, which is not there")
            elif heading and heading not in headings(to.read_text()):
                problems.append(f"{path}: {name} has no heading {heading}")


def main():
    problems = []
    looked_at = sum(check_header(path, problems) for path in public_headers())
    looked_at += check_wire(problems)
    check_pages(problems)
    check_links(problems)
    finish(problems, looked_at)


if __name__ == "__main__":
    main()
