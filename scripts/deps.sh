#!/usr/bin/env bash
#
# Install the Debian packages that are missing: deps.sh demo|check|bench
#
# A machine that has them all is left alone and needs no network. Elsewhere
# than on Debian and its children nothing is done: the build says what it
# misses.

set -euo pipefail

build=(gcc libc6-dev cmake ninja-build make pkg-config libzmq3-dev
    libjansson-dev libxxhash-dev libssl-dev libmicrohttpd-dev
    libgnutls28-dev libinih-dev libcurl4-openssl-dev libsystemd-dev)
tests=(g++ libcmocka-dev libmsgpack-dev clang libclang-rt-14-dev
    clang-format python3 python3-venv binutils openssl)

case "${1:-}" in
demo)
    packages=("${build[@]}")
    ;;
check)
    packages=("${build[@]}" "${tests[@]}")
    ;;
bench)
    packages=("${build[@]}" libmsgpack-dev python3 python3-venv util-linux
        wrk)
    ;;
*)
    echo "deps.sh: '${1:-}' is not a set of packages; accepted are demo," \
        "check and bench" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "deps.sh: not a Debian machine; install by hand what the build" \
        "misses: ${packages[*]}" >&2
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) ||
        state=absent
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps.sh: missing ${missing[*]}; become root, or install sudo," \
            "or run: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

echo "== installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
