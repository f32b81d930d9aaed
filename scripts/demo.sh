#!/usr/bin/env bash
#
# The main job in ten seconds: demo.sh [BUILD-DIRECTORY]
#
# A stream that was recorded from a real vLLM engine is published; some of its
# batches are withheld from the live stream. kvevents watch notices, asks for
# them at the replay endpoint and prints them in their place. A second watch,
# for programs, is compared to what was published: the exit status is 0 only
# when every batch arrived, once, in order, and those withheld by replay.

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kvevents=${1:-build/release}/kvevents
recording=tests/wire/fixtures/sha256-int-defaults.jsonl
withheld=3,4,9

[ -x "$kvevents" ] || {
    echo "demo.sh: no $kvevents; 'make demo' builds it" >&2
    exit 1
}

work=$(mktemp -d)
publisher=
judge=
finish() {
    for pid in $judge $publisher; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

total=$(grep -c . "$recording")
echo "== $total batches recorded from vLLM; $withheld are withheld from the" \
    "live stream"
echo
echo "\$ kvevents publish $(basename "$recording") --rate 4 --drop $withheld"
"$kvevents" publish "$recording" --rate 4 --delay 1 --drop "$withheld" \
    --endpoint tcp://127.0.0.1:0 --replay-endpoint tcp://127.0.0.1:0 \
    2>"$work/publisher" &
publisher=$!

# Ports are free ones; the publisher says which.
for _ in $(seq 100); do
    grep -q '^Publishing on' "$work/publisher" && break
    kill -0 "$publisher" 2>/dev/null || break
    sleep 0.05
done
live=$(sed -n 's/^Publishing on \([^ ]*\).*/\1/p' "$work/publisher")
replay=$(sed -n 's/.* replay on \([^,]*\),.*/\1/p' "$work/publisher")
cat "$work/publisher"
if [ -z "$live" ] || [ -z "$replay" ]; then
    echo "demo.sh: the publisher did not start" >&2
    exit 1
fi

watch=(watch "$live" --replay "$replay" --topic kv-events --probe-ms 1000
    --count "$total")
"$kvevents" "${watch[@]}" --timeout 20 --format json --quiet \
    >"$work/batches" &
judge=$!

echo "\$ kvevents ${watch[*]} --short"
"$kvevents" "${watch[@]}" --timeout 20 --short
wait "$judge"
judge=

# Numbers of the batches that came by replay (true), or of all ([a-z]*).
field() {
    grep '^{"kind":"batch"' "$work/batches" |
        sed -n "s/.*\"seq\":\([0-9]*\),.*\"replayed\":$1,.*/\1/p"
}
arrived=$(field '[a-z]*' | paste -sd, -)
expected=$(seq 0 $((total - 1)) | paste -sd, -)
by_replay=$(field true)

echo
if [ "$arrived" != "$expected" ]; then
    echo "== FAILED: batches $arrived arrived, $expected were published"
    exit 1
fi
for number in ${withheld//,/ }; do
    grep -qx "$number" <<<"$by_replay" || {
        echo "== FAILED: batch $number did not come by replay"
        exit 1
    }
done
echo "== all $total batches arrived in order; the live stream lost" \
    "$withheld, replay brought them back"
