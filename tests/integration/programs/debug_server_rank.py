"""
One rank of a small Gloo job that torch's own debug server watches.

Rank 2 reads a pipe that nobody writes, and never comes to the last collective;
or, if there is no pipe, it holds the interpreter lock.

Usage: debug_server_rank.py PORT FETCH_TIMEOUT_S PIPE
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist

from torch.distributed.debug import start_debug_server


def read_shard(path):
    """
    Read training data from a server that is gone.
    """
    with open(path, "rb") as file:  # noqa: PTH123 as users do
        return file.read()


def hold_lock():
    """
    Sleep in machine code that forgot to let other threads run.
    """
    ctypes.PyDLL(None).sleep(600)


if __name__ == "__main__":
    PORT, FETCH_TIMEOUT, PIPE = sys.argv[1:]
    RANK = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    start_debug_server(
        port=int(PORT),
        start_method="spawn",
        fetch_timeout=float(FETCH_TIMEOUT),
    )
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    print("ready", flush=True)
    if RANK == 2:
        if os.path.exists(PIPE):  # noqa: PTH110 as users do
            read_shard(PIPE)
        hold_lock()
    dist.all_reduce(torch.ones(1))
