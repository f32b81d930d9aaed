#!/usr/bin/env python3
"""Add up the results of several test runs: totals.py DIR

DIR holds what ctest --output-junit wrote, one SUITE.xml a run, and a file
named steps with lines "NAME pass" or "NAME fail" for what is not a ctest test.
Names each skipped and each failed test, and ends with one line of totals.
"""

import pathlib
import sys
import xml.etree.ElementTree as ET


def reason(case):
    """Why a test was skipped: the last line it printed."""
    lines = (case.findtext("system-out") or "").strip().splitlines()
    return lines[-1].strip() if lines else "it did not say why"


def read_suite(path):
    """Yield (name, verdict, why) for each test of one run."""
    cases = list(ET.parse(path).getroot().iter("testcase"))
    if not cases:
        yield path.stem, "failed", "no test was found"
    for case in cases:
        name = f"{path.stem}: {case.get('name')}"
        status = case.get("status")
        skipped = case.find("skipped")
        if status == "run":
            yield name, "passed", ""
        elif skipped is not None and "SKIP_RETURN_CODE" in (
                skipped.get("message") or ""):
            yield name, "skipped", reason(case)
        else:
            # Not started (no executable, say) is a failure as well.
            yield name, "failed", status or "no status"


def read_steps(path):
    """Yield (name, verdict, why) for each line of the steps file."""
    if path.exists():
        for line in path.read_text().splitlines():
            name, verdict = line.rsplit(" ", 1)
            yield name, "passed" if verdict == "pass" else "failed", "step"


def main():
    folder = pathlib.Path(sys.argv[1])
    results = list(read_steps(folder / "steps"))
    for path in sorted(folder.glob("*.xml")):
        results += read_suite(path)

    print()
    for verdict in ("skipped", "failed"):
        for name, got, why in results:
            if got == verdict:
                print(f"{verdict}: {name}: {why}")

    count = {v: sum(got == v for _, got, _ in results)
             for v in ("passed", "failed", "skipped")}
    print("{passed} passed, {failed} failed, {skipped} skipped"
          .format(**count))
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
