#!/usr/bin/env bash
#
# Build and run all tests: check.sh [--long]
#
#   release  every test (with --long also those labelled long)
#   asan     unit, end-to-end and fuzz tests under ASan and UBSan
#   tsan     unit and race tests under ThreadSanitizer, but for those labelled
#            single: long ones of one thread
#   clang    everything compiles with clang without a warning
#   fuzz     with --long: libFuzzer, ten minutes in all
#
# Ends with a list of what was skipped and why, and one line of totals. The
# exit status is not 0 when anything failed.

set -euo pipefail
cd "$(dirname "$0")/.."

long=0
case "${1:-}" in
"") ;;
--long) long=1 ;;
*)
    echo "check.sh: '$1' is not an option; accepted is --long" >&2
    exit 2
    ;;
esac

export JOBS=${JOBS:-$(nproc)}
results=build/results
rm -rf "$results"
mkdir -p "$results"

# A result that is not a ctest test: record NAME pass|fail.
record() {
    echo "$1 $2" >>"$results/steps"
}

# The sanitizers of Debian 12 do not start everywhere unless addresses are laid
# out the same way in each run.
fixed_layout=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed_layout=(setarch "$(uname -m)" -R)
fi

# Run tests of a built preset: run_tests PRESET [ctest options].
run_tests() {
    local preset=$1 status=0 wrapper=()
    shift

    case $preset in
    asan | tsan) wrapper=("${fixed_layout[@]}") ;;
    esac
    echo "== testing $preset"
    "${wrapper[@]}" ctest --test-dir "build/$preset" -j "$JOBS" \
        --output-on-failure --no-tests=error \
        --output-junit "$PWD/$results/$preset.xml" "$@" || status=$?
    # 8: a test failed, which the file says. Anything else is ctest's own.
    case $status in
    0 | 8) ;;
    *) record "$preset/ctest" fail ;;
    esac
}

# Build a preset: build PRESET [cmake options]. A failure is one failed result.
build() {
    if scripts/build.sh "$@"; then
        record "$1/build" pass
    else
        record "$1/build" fail
        return 1
    fi
}

if [ "$long" = 1 ]; then
    export KVEVENTS_LONG=1
    not_now=()
    no_threads='^single$'
else
    not_now=(-LE '^long$')
    no_threads='^(long|single)$'
fi

scripts/venv.sh || true

if build release -DKVEVENTS_BUILD_TESTS=ON; then
    run_tests release "${not_now[@]}"
fi
if build asan -DKVEVENTS_BUILD_TESTS=ON; then
    run_tests asan -L '^(unit|e2e|fuzz)$' "${not_now[@]}"
fi
if build tsan -DKVEVENTS_BUILD_TESTS=ON; then
    run_tests tsan -L '^(unit|race)$' -LE "$no_threads"
fi
build clang -DKVEVENTS_BUILD_TESTS=ON || true
if [ "$long" = 1 ]; then
    if scripts/fuzz.sh 600; then
        record fuzz/libfuzzer pass
    else
        record fuzz/libfuzzer fail
    fi
fi

exec python3 scripts/totals.py "$results"
