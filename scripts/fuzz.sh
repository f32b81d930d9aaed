#!/usr/bin/env bash
#
# Fuzz every target with libFuzzer, ASan and UBSan: fuzz.sh [SECONDS in all]
#
# What it learns stays in build/fuzz-corpus/NAME for the next run; an input
# that breaks something is left in build/fuzz-crashes/ and the status is 1.

set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
scripts/build.sh fuzz

targets=(build/fuzz/fuzz/fuzz_*)
if [ ! -x "${targets[0]}" ]; then
    echo "fuzz.sh: no fuzz target in build/fuzz/fuzz" >&2
    exit 1
fi
each=$((seconds / ${#targets[@]}))
[ "$each" -gt 0 ] || each=1
mkdir -p build/fuzz-crashes
scripts/seeds.py build/seeds

failed=0
for target in "${targets[@]}"; do
    name=${target##*/fuzz_}
    corpus=build/fuzz-corpus/$name
    log=build/fuzz-$name.log
    mkdir -p "$corpus"
    case "$name" in
    *frames* | *replay*) seeds=build/seeds/frames ;;
    input) seeds=build/seeds/questions ;;
    *) seeds=build/seeds/payloads ;;
    esac
    dictionary=()
    [ ! -f "fuzz/$name.dict" ] || dictionary=(-dict="fuzz/$name.dict")

    echo "== fuzzing $name for $each s"
    if "$target" -max_total_time="$each" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="build/fuzz-crashes/$name-" \
        "${dictionary[@]}" "$corpus" "$seeds" >"$log" 2>&1; then
        awk -v name="$name" '
            /stat::number_of_executed_units/ { n = $2 }
            / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") c = $(i+1) }
            END { printf "   %s: %d runs, %d edges, no crash\n", name, n, c }
        ' "$log"
    else
        failed=1
        tail -n 60 "$log"
        echo "   $name: failed; all in $log, input in build/fuzz-crashes/"
    fi
done
exit "$failed"
