"""
One rank of a job that knows nothing of distdebug; rank 2 reads a pipe.

Usage: plain_rank.py CAUSE FOLDER
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def read_shard(path):
    """
    Read training data from a server that is gone.
    """
    with open(path, "rb") as file:  # noqa: PTH123 as users do
        return file.read()


if __name__ == "__main__":
    FOLDER = sys.argv[2]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{FOLDER}/store",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
    print("ready", flush=True)
    if dist.get_rank() == 2:
        read_shard(f"{FOLDER}/shard")
    dist.all_reduce(torch.ones(1))
