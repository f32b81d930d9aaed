#!/usr/bin/env bash
#
# scripts/totals.py counts right: passed, failed, skipped, not started, and a
# step beside ctest; and it fails when anything failed or a run was empty.

set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
totals() {
    python3 "$KVEVENTS_SOURCE_DIR/scripts/totals.py" "$work"
}

# expect STATUS LINE: the last line and the exit status of totals.py.
expect() {
    local status=0
    totals >"$work/out" || status=$?
    if [ "$status" != "$1" ] || [ "$(tail -n 1 "$work/out")" != "$2" ]; then
        cat "$work/out"
        echo "FAIL: status $status; wanted status $1 and '$2'"
        exit 1
    fi
}

expect 1 "0 passed, 0 failed, 0 skipped"

cat >"$work/one.xml" <<'XML'
<testsuite>
<testcase name="a" status="run"><system-out>x</system-out></testcase>
<testcase name="b" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>line
skipped: no engine
</system-out></testcase>
</testsuite>
XML
echo "build pass" >"$work/steps"
expect 0 "2 passed, 0 failed, 1 skipped"
grep -qx "skipped: one: b: skipped: no engine" "$work/out"

cat >"$work/two.xml" <<'XML'
<testsuite>
<testcase name="c" status="fail"><failure message="no"/></testcase>
<testcase name="d" status="notrun">
<skipped message="Unable to find executable"/></testcase>
</testsuite>
XML
echo "other fail" >>"$work/steps"
expect 1 "2 passed, 3 failed, 1 skipped"

echo "<testsuite></testsuite>" >"$work/two.xml"
echo "build pass" >"$work/steps"
expect 1 "2 passed, 1 failed, 1 skipped"
echo ok
