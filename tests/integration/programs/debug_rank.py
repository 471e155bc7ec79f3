"""
A rank that is debugged: it stops, waits for others, or fails.
"""

import sys
import time

from pathlib import Path

import torch
import torch.distributed as dist

from distdebug.debugger import arm, post_mortem, scope, set_trace


def step(rank):
    """
    Compute something, and stop; one rank is odd.
    """
    loss = float("nan") if rank == 2 else 1.5
    breakpoint()  # noqa: T100 it is what is tested
    again = loss
    return again  # noqa: RET504 a line to stop at


def wait_for(path):
    """
    Run Python until somebody writes a file.
    """
    turns = 0
    while not path.exists():
        turns += 1
        time.sleep(0.01)


@post_mortem()
def fail(rank):
    """
    Fail on one rank, with something to look at.
    """
    secret = rank * 21
    if rank == 2:
        msg = "rank 2 exploded"
        raise ValueError(msg)

    return secret


def main(scenario, folder):
    """
    Play one scenario.
    """
    arm(mesh={"dp": 2, "tp": 2})
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = torch.full((2,), float(rank))
    if scenario == "steps":
        with scope("step"):
            step(rank)
        if rank == 3:
            wait_for(folder / "go")
    elif scenario == "limit":
        set_trace(ranks="ranks(dp=0)", limit=1.0)
    else:
        fail(rank)
    dist.all_reduce(tensor)
    print(f"rank {rank} is done: {tensor[0]:g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
