#!/usr/bin/env python3
"""Every public header compiles alone and without a warning, as C and as C++,
and every KVE_..._INIT makes its structure in both languages.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from _sources import ROOT, finish, public_headers, read

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMPILERS = {
    "c": [("gcc", "c11"), ("clang", "c11")],
    "c++": [("g++", "c++11"), ("g++", "c++20"),
            ("clang++", "c++11"), ("clang++", "c++20")],
}

# #define KVE_THING_INIT \ { sizeof(struct kve_thing), ...
INITIALIZER = re.compile(
    r"#define\s+(KVE_\w+_INIT)[\s\\]+\{[\s\\]*"
    r"(?:\.struct_size\s*=\s*)?sizeof\((struct \w+)\)")


def sources():
    """Yield (name, text) of what is compiled."""
    headers = [p.relative_to("include") for p in public_headers()]
    for header in headers:
        yield header, f"#include <{header}>\nextern int not_empty;\n"

    found = [m for p in public_headers()
             for m in INITIALIZER.findall(read(p))]
    if not found:
        sys.exit("found no initializer in the public headers")
    body = "".join(
        f"    {{ {struct} v = {macro};\n"
        "      if (v.struct_size != sizeof(v)) return 1; }\n"
        for macro, struct in found)
    yield "all initializers", (
        "".join(f"#include <{header}>\n" for header in headers) +
        f"int main(void);\nint main(void) {{\n{body}    return 0;\n}}\n")


def main():
    for compiler in {c for pairs in COMPILERS.values() for c, _ in pairs}:
        if shutil.which(compiler) is None:
            print(f"skipped: no {compiler}")
            sys.exit(77)

    problems = []
    n = 0
    with tempfile.TemporaryDirectory() as work:
        for name, text in sources():
            source = pathlib.Path(work) / "source"
            source.write_text(text)
            for language, pairs in COMPILERS.items():
                for compiler, standard in pairs:
                    n += 1
                    got = subprocess.run(
                        [compiler, "-x", language, f"-std={standard}",
                         *WARNINGS, "-fsyntax-only", f"-I{ROOT}/include",
                         source], capture_output=True, text=True, check=False)
                    if got.returncode != 0:
                        problems.append(f"{name} with {compiler} "
                                        f"-std={standard}:\n{got.stderr}")
    finish(problems, n)


if __name__ == "__main__":
    main()
