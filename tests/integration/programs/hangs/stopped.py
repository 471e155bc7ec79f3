"""
A process is stopped.
"""

from __future__ import annotations

import os
import signal


print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
