"""
A program that spawns ranks which know their rank only as an argument.

The first of them waits for one that never comes, if so asked.
"""

import sys
import time

import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, store, size):
    """
    Meet the others, and wait.
    """
    sys.stdout.write("ready\n")  # one write: lines do not mix
    sys.stdout.flush()
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=size
    )
    time.sleep(600)


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1], int(sys.argv[2])), nprocs=2)
