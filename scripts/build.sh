#!/usr/bin/env bash
#
# Configure and build one preset: build.sh PRESET [cmake -D...] [-- TARGET...]
#
# The output of a step is shown when it fails, or with VERBOSE=1.

set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
defines=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    defines+=("$1")
    shift
done
[ $# -gt 0 ] && shift
targets=()
[ $# -gt 0 ] && targets=(--target "$@")

quietly() {
    local log="build/$preset.log"

    if [ "${VERBOSE:-0}" = 1 ]; then
        "$@"
    elif ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
}

mkdir -p build
echo "== building $preset in build/$preset"
quietly cmake --preset "$preset" "${defines[@]}"
quietly cmake --build --preset "$preset" -j "${JOBS:-$(nproc)}" "${targets[@]}"
