#!/usr/bin/env bash
#
# Build and run benchmarks beside their peers: bench.sh PART
#
# PART is all, codec, stream, index or service. One JSON line a figure on
# standard output; all else on standard error.

set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:-all}
case "$part" in
all | codec | stream | index | service) ;;
*)
    echo "bench.sh: '$part' is not a part; accepted are all, codec," \
        "stream, index and service" >&2
    exit 2
    ;;
esac

scripts/build.sh release >&2
scripts/venv.sh >&2
exec build/venv/bin/python3 bench/run.py "$part"
