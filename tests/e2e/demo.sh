#!/usr/bin/env bash
#
# What "make demo" shows is true.

set -euo pipefail

"$KVEVENTS_SOURCE_DIR/scripts/demo.sh" "$KVEVENTS_BUILD_DIR"
