"""
A rank of a job on several nodes: it stops at a breakpoint, or hangs.
"""

import os
import time

from distdebug.debugger import arm


def hang():
    """
    Wait for a peer that never comes.
    """
    waits_for = "peer"
    time.sleep(600)
    return waits_for


def step(rank):
    """
    Compute something, and stop; the last rank hangs.
    """
    loss = rank % 2
    if rank == 3:
        hang()
    breakpoint()  # noqa: T100 it is what is tested
    loss = loss + 10
    return loss  # noqa: RET504 another one


def main():
    """
    Play the scenario.
    """
    arm()
    rank = int(os.environ.get("SLURM_PROCID") or os.environ["RANK"])
    step(rank)
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main()
