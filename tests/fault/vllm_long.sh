#!/usr/bin/env bash
# ctest-timeout: 1800
# ctest-label: long
# ctest-serial: yes
#
# 250 seeded runs under faults against the real publisher class of each of two
# releases of vLLM.

set -euo pipefail

tests=$KVEVENTS_SOURCE_DIR/tests
fault=$KVEVENTS_BUILD_DIR/tests/fault
runs=${KVEVENTS_FAULT_RUNS:-250}
from=${KVEVENTS_FAULT_FROM:-1}

if [ ! -x "$KVEVENTS_PYTHON" ]; then
    echo "skipped: no $KVEVENTS_PYTHON; scripts/venv.sh makes it"
    exit 77
fi
for release in 0.25.0 0.32.0; do
    if ! why=$("$KVEVENTS_PYTHON" "$tests/interop/_vllm_class.py" \
        "$release" 2>&1); then
        echo "skipped: vLLM $release: $(tail -n 1 <<<"$why")"
        exit 77
    fi
done
for release in 0.25.0 0.32.0; do
    echo "vLLM $release"
    "$fault" --runs "$runs" --from "$from" --jobs $((2 * $(nproc))) \
        --starter "'$KVEVENTS_PYTHON' '$tests/fault/_vllm_starter.py' $release"
done
