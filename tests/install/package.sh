#!/usr/bin/env bash
#
# The installed package, as its users meet it: pkg-config and CMake, shared and
# static, C and C++; and that headers, man pages and command are there.
#
# ctest-timeout: 300

set -euo pipefail

source_dir=$KVEVENTS_SOURCE_DIR/tests/install
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

for tool in c++ pkg-config readelf; do
    command -v "$tool" >/dev/null || {
        echo "skipped: no $tool"
        exit 77
    }
done

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# try KIND PROGRAM: it runs, and took the library it was meant to take.
try() {
    local needed
    needed=$(readelf -d "$2" | grep -c 'NEEDED.*\[libkvevents\.so\.0\]' || true)

    case $1 in
    shared) [ "$needed" = 1 ] || fail "$2 does not need libkvevents.so.0" ;;
    static) [ "$needed" = 0 ] || fail "$2 needs libkvevents.so.0" ;;
    esac
    LD_LIBRARY_PATH=$libdir "$2" >/dev/null || fail "$2 does not run"
    echo "ok: ${2##*/}"
}

cmake --install "$KVEVENTS_BUILD_DIR" --prefix "$prefix" >/dev/null

libdir=$(dirname "$(find "$prefix" -name libkvevents.a)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
pkg() {
    pkg-config --define-variable=prefix="$prefix" "$@" libkvevents
}

# pkg-config. Of two libraries of one name the linker takes the shared one, so
# the static one is asked for by its file name.
for language in c cc; do
    compiler=cc
    [ "$language" = c ] || compiler=c++
    flags=(-Wall -Wextra -Wpedantic -Werror)
    # shellcheck disable=SC2046
    "$compiler" "${flags[@]}" "$source_dir/consumer.$language" \
        -o "$work/pkgconfig_shared_$language" $(pkg --cflags --libs)
    try shared "$work/pkgconfig_shared_$language"

    libs=$(pkg --static --libs)
    # shellcheck disable=SC2046,SC2086
    "$compiler" "${flags[@]}" "$source_dir/consumer.$language" \
        -o "$work/pkgconfig_static_$language" \
        $(pkg --cflags) ${libs/-lkvevents/-l:libkvevents.a}
    try static "$work/pkgconfig_static_$language"
done

# shellcheck disable=SC2046
cc "${flags[@]}" "$source_dir/service.c" -o "$work/pkgconfig_service_c" \
    $(pkg-config --define-variable=prefix="$prefix" --cflags --libs \
        libkvevents-service)
try static "$work/pkgconfig_service_c"

# CMake.
cmake -S "$source_dir" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "cmake does not find the package"
}
cmake --build "$work/cmake" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "the CMake project does not build"
}
for program in shared_c shared_cc static_c static_cc; do
    try "${program%%_*}" "$work/cmake/$program"
done
try static "$work/cmake/service_c"

# The rest of the package.
for header in "$KVEVENTS_SOURCE_DIR"/include/kvevents/*.h; do
    cmp "$header" "$prefix/include/kvevents/${header##*/}" || fail "header"
done
for page in "$KVEVENTS_SOURCE_DIR"/docs/man/*.[13]; do
    [ -e "$page" ] || continue
    cmp "$page" "$prefix/share/man/man${page##*.}/${page##*/}" || fail "page"
done
for file in share/kvevents/openapi.json share/kvevents/grafana/kvevents.json \
    share/kvevents/prometheus/kvevents.yml \
    lib/systemd/system/kvevents.service; do
    [ -s "$prefix/$file" ] || fail "$file"
done
if [ -n "${KVEVENTS_BIN:-}" ]; then
    "$prefix/bin/kvevents" --version >/dev/null || fail "kvevents --version"
fi
[ -z "$(find "$prefix" -path '*src*' -o -name '*test*')" ] ||
    fail "something was installed that is not for users"
echo "ok: package"
