"""
One rank of a small Gloo job in which rank 2 reads a pipe that nobody writes.

Usage: snapshot_rank.py DUMP_DIR STORE_FILE PIPE
"""

import os
import sys

import torch
import torch.distributed as dist

from distdebug.flight_recorder import enable_flight_recorder


def read_shard(path):
    """
    Read training data from a server that is gone.
    """
    with open(path, "rb") as file:  # noqa: PTH123 as users do
        return file.read()


if __name__ == "__main__":
    DUMP_DIR, STORE, PIPE = sys.argv[1:]
    RANK = int(os.environ["RANK"])
    enable_flight_recorder(dump_dir=DUMP_DIR)
    dist.init_process_group(
        "gloo", init_method=f"file://{STORE}", rank=RANK, world_size=4
    )
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    print("ready", flush=True)
    if RANK == 2:
        read_shard(PIPE)
    dist.all_reduce(torch.ones(1))
