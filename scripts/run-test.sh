#!/usr/bin/env bash
#
# Run one test script for ctest: run-test.sh SCRIPT
#
# Rules about the sources (tests/meta) and mutants of them (tests/mutants) need
# nothing but Python; every other Python test needs the venv of
# scripts/venv.sh. 77 means skipped.

set -euo pipefail

script=$1
case "$script" in
*.sh)
    exec bash "$script"
    ;;
*/tests/meta/*.py | */tests/mutants/*.py)
    exec python3 "$script"
    ;;
esac

if [ ! -x "$KVEVENTS_PYTHON" ]; then
    echo "skipped: no $KVEVENTS_PYTHON; scripts/venv.sh makes it"
    exit 77
fi
exec "$KVEVENTS_PYTHON" "$script"
