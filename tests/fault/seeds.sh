#!/usr/bin/env bash
# ctest-timeout: 240
# ctest-label: e2e
# ctest-label: race
#
# Some hundred seeded runs under faults against our own publisher, as many as
# fit into the time. KVEVENTS_FAULT_RUNS, KVEVENTS_FAULT_SECONDS and
# KVEVENTS_FAULT_FROM change that.

set -euo pipefail

runs=${KVEVENTS_FAULT_RUNS:-400}
seconds=${KVEVENTS_FAULT_SECONDS:-45}
from=${KVEVENTS_FAULT_FROM:-1}

exec "$KVEVENTS_BUILD_DIR/tests/fault" --runs "$runs" --from "$from" \
    --seconds "$seconds" --jobs $((4 * $(nproc)))
