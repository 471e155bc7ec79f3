"""
A rank of a job over Gloo, of which one dies in a given way at its third step.

::

    torchrun … dying_rank.py HOW FOLDER
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist

import distdebug


def load(step):
    """
    Read what a step needs; for one rank it fails.
    """
    if step != 3 or dist.get_rank() != 1:
        return torch.ones(4)
    if how == "raise":
        msg = f"shard {step} is empty"
        raise RuntimeError(msg)
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


how, folder = sys.argv[1:]
distdebug.enable_flight_recorder(dump_dir=folder)
dist.init_process_group("gloo")
for number in range(1, 6):
    batch = load(number)
    dist.all_reduce(batch)
    print(f"step {number}", flush=True)
dist.destroy_process_group()
