#!/usr/bin/env bash
# ctest-timeout: 3600
# ctest-label: long
# ctest-serial: yes
#
# 10,000 seeded runs under faults against our own publisher, from a seed that
# is another one each day: KVEVENTS_FAULT_FROM does the runs of a day again.

set -euo pipefail

runs=${KVEVENTS_FAULT_RUNS:-10000}
from=${KVEVENTS_FAULT_FROM:-$((10#$(date +%j) * 100000))}

echo "from seed $from"
exec "$KVEVENTS_BUILD_DIR/tests/fault" --runs "$runs" --from "$from" \
    --jobs $((6 * $(nproc)))
