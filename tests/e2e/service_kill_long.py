#!/usr/bin/env python3
"""The service is killed 200 times under load (_kill.py), from a seed that is
another one each day; KVEVENTS_KILL_SEED does the kills of a day again.

ctest-timeout: 3600
ctest-label: long
ctest-serial: yes
"""

import os
import time

import _kill

_kill.run(int(os.environ.get("KVEVENTS_KILLS", "200")),
          int(os.environ.get("KVEVENTS_KILL_SEED", time.strftime("%j"))))
