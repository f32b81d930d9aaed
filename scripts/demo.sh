#!/usr/bin/env bash
#
# The main jobs in twenty seconds: demo.sh [BUILD-DIRECTORY]
#
# 1. A stream that was recorded from a real vLLM engine is published; some of
# its batches are withheld from the live stream. kvevents watch notices, asks
# for them at the replay endpoint and prints them in their place. A second
# watch, for programs, is compared to what was published: the exit status is 0
# only when every batch arrived, once, in order, and those withheld by replay.
#
# 2. Three engines that were recorded are played to a service, which is asked
# who holds two of their prompts. The exit status is 0 only when its answers are
# what the recordings say.

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
service=
engines=()
finish() {
    for pid in $judge $publisher $service "${engines[@]}"; do
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

# Wait until a file has a line that begins so, from a process that runs.
wait_for() {
    for _ in $(seq 400); do
        grep -q "$2" "$1" && return
        kill -0 "$3" 2>/dev/null || break
        sleep 0.05
    done
    cat "$1"
    echo "demo.sh: it did not start" >&2
    exit 1
}

# Where a publisher is; ports are free ones, and it says which.
live_of() { sed -n 's/^Publishing on \([^ ]*\).*/\1/p' "$1"; }
replay_of() { sed -n 's/.* replay on \([^,]*\),.*/\1/p' "$1"; }

wait_for "$work/publisher" '^Publishing on' "$publisher"
live=$(live_of "$work/publisher")
replay=$(replay_of "$work/publisher")
cat "$work/publisher"

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

[ -n "$("$kvevents" help | grep '^  serve ')" ] || {
    echo "== the service was not built: its libraries were not found"
    exit 0
}

# ------------------------------------------------------------------

fixtures=tests/wire/fixtures
recordings=(sha256-int-defaults dup-sha256_cbor-bytes-seed0
    bs16-sha256_cbor-bytes-seed0)
echo
echo "== three engines, recorded: other hashes each, blocks of 32, 32 and 16" \
    "tokens"
echo
sources=()
for i in 0 1 2; do
    "$kvevents" publish "$fixtures/${recordings[i]}.jsonl" \
        --endpoint tcp://127.0.0.1:0 --replay-endpoint tcp://127.0.0.1:0 \
        2>"$work/engine$i" &
    engines+=($!)
done
for i in 0 1 2; do
    wait_for "$work/engine$i" '^Publishing on' "${engines[i]}"
    sources+=(--source "engine$i=$(live_of "$work/engine$i"),replay_endpoint=$(
        replay_of "$work/engine$i")")
done

echo "\$ kvevents serve --port 0 ${sources[*]}"
"$kvevents" serve --port 0 "${sources[@]}" 2>"$work/service" &
service=$!
wait_for "$work/service" 'event=listening' "$service"
port=$(sed -n 's/.*event=listening.* port=\([0-9]*\).*/\1/p' "$work/service")
export KVEVENTS_URL=http://127.0.0.1:$port

# GET a path, without a client that may not be there; the answer with its head.
get() {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET %s HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n' \
        "$1" >&3
    cat <&3
    exec 3>&-
}
for _ in $(seq 600); do
    get /ready | grep -q '"ready":true' && break
    sleep 0.05
done
"$kvevents" sources

# The tokens of the last blocks that a recording stores from a root on.
prompt_of() {
    grep -o '"parent_block_hash": null, "token_ids": \[[^]]*\]' \
        "$fixtures/$1.jsonl" | tail -1 | sed 's/.*\[//; s/\]//'
}

# Ask for a prompt; the numbers behind it are what each engine must hold of it,
# as the events of the recordings say: stored after the last clear, and not
# removed.
ask() {
    local prompt=$1 held got
    echo
    echo "\$ kvevents query --tokens ${prompt:0:20}..."
    "$kvevents" query --tokens "$prompt" --explain | tee "$work/answer"
    shift
    for i in 0 1 2; do
        held=$1
        shift
        got=$(sed -n "s/^engine$i  *0 GPU  *\([0-9]*\) .*/\1/p" \
            "$work/answer")
        [ "$got" = "$held" ] || {
            echo "== FAILED: engine$i holds $held tokens, the answer says" \
                "'$got'"
            exit 1
        }
    done
}
ask "$(prompt_of "${recordings[0]}")" 96 32 48
ask "$(prompt_of "${recordings[1]}")" 0 672 0

echo
echo "\$ curl $KVEVENTS_URL/metrics"
get /metrics >"$work/metrics"
grep -E '^kvevents_(ready|workers|sources|batches_ingested)' \
    "$work/metrics" | head -12
kill "$service"
wait "$service" || {
    echo "== FAILED: the service ended with status $?"
    exit 1
}
service=
echo
echo "== the service answered what the recordings say"
