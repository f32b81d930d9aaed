"""What the checks of this folder share: the files of the project, and a report.

Files are those that git knows or would add. A copy without git is walked.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get(
    "KVEVENTS_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get(
    "KVEVENTS_BUILD_DIR", ROOT / "build" / "release"))

# Folders of src/ along the path of a message; none includes a later one.
ORDER = ["base", "wire", "transport", "stream", "publish", "subscribe", "hash",
         "index", "ingest", "discover", "http"]


def files():
    """Every file of the project, relative to ROOT, sorted."""
    git = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
         "--exclude-standard"], capture_output=True, check=False)
    if git.returncode == 0:
        names = git.stdout.decode().split("\0")
    else:
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
        names = [n for n in names if not n.startswith(("build/", ".git/"))]
    found = sorted({pathlib.Path(n) for n in names if n})
    return [p for p in found if (ROOT / p).is_file()]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def without_comments(text):
    """C text with comments blanked, lines kept."""
    return re.sub(r"/\*.*?\*/",
                  lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def public_headers():
    return sorted(p.relative_to(ROOT)
                  for p in (ROOT / "include" / "kvevents").glob("*.h"))


def declarations():
    """Yield (header, line, name) for each function marked KVE_API."""
    for path in public_headers():
        text = without_comments(read(path))
        for m in re.finditer(r"^KVE_API\b[^;{]*?\b(\w+)\s*\(", text, re.M):
            yield path, text.count("\n", 0, m.start()) + 1, m.group(1)


def finish(problems, looked_at):
    """Print the problems and end. To have looked at nothing is one, too."""
    for problem in problems:
        print(problem)
    if not looked_at:
        print("found nothing to check")
    print(f"{looked_at} checked, {len(problems)} problems")
    sys.exit(1 if problems or not looked_at else 0)
