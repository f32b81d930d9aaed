#!/usr/bin/env bash
#
# Every C file is laid out as .clang-format says; "make format" does it.

set -euo pipefail

command -v clang-format-14 >/dev/null || {
    echo "skipped: no clang-format-14, the one that decides"
    exit 77
}
CLANG_FORMAT=clang-format-14 "$KVEVENTS_SOURCE_DIR/scripts/format.sh" --check
