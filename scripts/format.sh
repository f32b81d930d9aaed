#!/usr/bin/env bash
#
# C layout by .clang-format: format.sh --write | --check
#
# clang-format 14 (Debian 12) is the one that decides: other versions lay out
# a few things differently.

set -euo pipefail
cd "$(dirname "$0")/.."

tool=${CLANG_FORMAT:-}
if [ -z "$tool" ]; then
    tool=$(command -v clang-format-14 || command -v clang-format) || {
        echo "format.sh: no clang-format; apt-get install clang-format" >&2
        exit 77
    }
fi

mapfile -d '' files < <(find include src tools tests fuzz bench examples \
    \( -name '*.c' -o -name '*.h' -o -name '*.cc' \) -print0 2>/dev/null |
    sort -z)

case "${1:-}" in
--write)
    "$tool" -i "${files[@]}"
    ;;
--check)
    changed=0
    for file in "${files[@]}"; do
        if ! "$tool" "$file" | cmp -s - "$file"; then
            echo "make format would change $file"
            changed=1
        fi
    done
    exit "$changed"
    ;;
*)
    echo "format.sh: '${1:-}' is not an option; accepted are --write and" \
        "--check" >&2
    exit 2
    ;;
esac
