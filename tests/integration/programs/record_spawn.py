"""
A job whose ranks are children that learn their rank as an argument.

Usage: record_spawn.py DUMP_DIR STORE_FILE

Rank 1 fails in the middle of a call that rank 0 never enters.
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from distdebug.flight_recorder import enable_flight_recorder


def work(rank, dump_dir, store):
    """
    Do what one rank does.
    """
    enable_flight_recorder(dump_dir=dump_dir)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        dist.all_reduce(torch.ones(1), async_op=True)
        msg = "out of luck"
        raise ValueError(msg)
    while not pathlib.Path(dump_dir, "latest_rank_1").exists():
        time.sleep(0.02)
    os._exit(0)


if __name__ == "__main__":
    mp.spawn(work, args=sys.argv[1:], nprocs=2)
