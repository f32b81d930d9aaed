#!/usr/bin/env bash
#
# Make build/venv, the Python that judges our bytes: pyzmq and msgspec in the
# versions pinned here. Does nothing when it is there already. Fails, with one
# line, when it cannot be made; the tests that need it then skip.

set -euo pipefail
cd "$(dirname "$0")/.."

pins=(pyzmq==27.3.0 msgspec==0.23.0)
venv=build/venv
stamp=$venv/pins

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "${pins[*]}" ] &&
    "$venv/bin/python3" -c 'import zmq, msgspec' 2>/dev/null; then
    exit 0
fi

# Debian's own first: another python3 on the PATH may lack venv.
for python in /usr/bin/python3 python3; do
    rm -rf "$venv"
    mkdir -p build
    if "$python" -m venv "$venv" >build/venv.log 2>&1 &&
        "$venv/bin/python3" -m pip install --quiet \
            --disable-pip-version-check "${pins[@]}" >>build/venv.log 2>&1; then
        echo "${pins[*]}" >"$stamp"
        exit 0
    fi
done

rm -rf "$venv"
echo "venv.sh: cannot install ${pins[*]}:" \
    "$(tail -n 1 build/venv.log) (all in build/venv.log)" >&2
exit 1
