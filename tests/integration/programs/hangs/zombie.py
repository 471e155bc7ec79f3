"""
A process has ended, and its parent does not ask for its exit status.
"""

from __future__ import annotations

import os
import time


child = os.fork()
if child:
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print(f"ready {child}", flush=True)
    time.sleep(3600)
