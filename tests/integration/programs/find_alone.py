"""
A process that says who it is only after it started.
"""

import os
import sys
import time


if sys.argv[1] == "environ":
    os.environ.update(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1")
else:
    from setproctitle import setproctitle

    setproctitle(sys.argv[1])

print("ready", flush=True)
time.sleep(600)
