#!/usr/bin/env python3
# ctest-timeout: 240
"""Half a minute of what tests/soak/service.py does for an hour: workers come
and go, and the service's memory stays flat. Under sanitizers, which keep what
was freed, only the answers are judged.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "soak"))

import service

SANITIZED = bool(os.environ.get("KVEVENTS_SANITIZE"))

if __name__ == "__main__":
    sys.exit(0 if service.run(10 if SANITIZED else 30, 1, not SANITIZED)
             else 1)
