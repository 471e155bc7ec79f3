"""
How jobs of frameworks watch themselves, and learn that a hang was reported.
"""

import os
import threading


#: Set once this rank has reported a hang.
TOLD = threading.Event()

# Rank 1 is to report its own hang where it raises an exception afterwards.
_is_patient = os.environ["FAULT"] == "raises" and os.environ["RANK"] != "1"

OPTIONS = {
    "dump_dir": os.environ["DUMPS"],
    "floor_s": 120.0 if _is_patient else 4.0,
    "start_s": 60.0,
    "poll_s": 0.5,
    "on_hang": lambda _: TOLD.set(),
}
