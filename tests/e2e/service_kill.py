#!/usr/bin/env python3
"""The service is killed fifteen times under load (_kill.py).

ctest-timeout: 300
"""

import os

import _kill

_kill.run(15, int(os.environ.get("KVEVENTS_KILL_SEED", "1")))
