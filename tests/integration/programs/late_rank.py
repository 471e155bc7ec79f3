"""
A rank of a job over Gloo that fails in one of several ways.

The rank that is to blame reads its standard input before it goes on, so that
it is as late as the test likes.
"""

import datetime as dt
import os
import sys

from pathlib import Path

import torch
import torch.distributed as dist

from meeting import gather


def main(kind, meeting, culprit):
    """
    Make one call that works, and one that does not.
    """
    rank = int(os.environ["RANK"])
    gather(Path(meeting).parent, rank, int(os.environ["WORLD_SIZE"]))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=dt.timedelta(seconds=4),
    )
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    is_culprit = rank == int(culprit)
    print("ready", flush=True)
    if kind in {"late", "barrier"} and is_culprit:
        sys.stdin.read()
    if kind == "barrier":
        dist.monitored_barrier(timeout=dt.timedelta(seconds=4))
    elif kind == "operation" and is_culprit:
        dist.broadcast(tensor, 0)
    elif kind == "size" and is_culprit:
        dist.all_reduce(torch.ones(5))
    elif kind == "empty" and is_culprit:
        dist.barrier()
    else:
        dist.all_reduce(tensor)


if __name__ == "__main__":
    main(*sys.argv[1:])
