"""
The ranks of a job over Gloo that fails in one of several ways.

Usage: ``late_rank.py KIND FOLDER CULPRIT``, with WORLD_SIZE in the environment.
Each rank has a log in the folder.  The one that is to blame may be late: it
goes on when all others have ended.
"""

import datetime as dt
import os
import sys

from pathlib import Path

import torch
import torch.distributed as dist


def fork(folder, culprit):
    """
    Become one rank after another, so that torch is imported once; as the
    launcher of them, wait until they have ended, the one to blame last.

    Returns:
        The rank, and the descriptor that is at its end when the one to blame
        may go on; none for the launcher.
    """
    gate, opener = os.pipe()
    pids = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        if not (pid := os.fork()):
            os.close(opener)
            log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            return rank, gate
        pids.append(pid)
    late = pids.pop(culprit)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(opener)
    os.waitpid(late, 0)
    return None


def main(kind, meeting, culprit, rank, gate):
    """
    Make one call that works, and one that does not.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=dt.timedelta(seconds=4),
    )
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    is_culprit = rank == culprit
    print("ready", flush=True)
    if kind in {"late", "barrier"} and is_culprit:
        os.read(gate, 1)
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
    KIND, FOLDER, CULPRIT = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if RANK := fork(FOLDER, CULPRIT):
        os.environ["RANK"] = str(RANK[0])
        main(KIND, FOLDER / "meeting", CULPRIT, *RANK)
