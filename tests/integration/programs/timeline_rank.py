"""
A rank of a job over Gloo in which rank 1 is slow, and then does not come.
"""

import json
import os
import sys
import time

from pathlib import Path

import torch
import torch.distributed as dist

from torch._C._distributed_c10d import _dump_fr_trace_json

import distdebug


CALLS = 12
SLOW = 1


def step(tensor):
    """
    Make one call, for which everybody waits for the slow one.
    """
    if dist.get_rank() == SLOW:
        time.sleep(0.1)
    dist.all_reduce(tensor)


def wait_for_gloo(pending):
    """
    Wait until no more calls than these are on record as not done: Gloo's thread
    says so a moment after whoever waits for a call goes on.
    """
    while True:
        told = json.loads(_dump_fr_trace_json(True, False))
        if sum(not x["retired"] for x in told["entries"]) <= pending:
            return
        time.sleep(0.01)


def main(folder):
    """
    Train for some steps; then one rank stays away.
    """
    distdebug.enable_flight_recorder(dump_dir=Path(folder) / "dumps")
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    tensor = torch.ones(3, 4)
    for _ in range(CALLS):
        step(tensor)
    if rank != SLOW:
        pending = dist.all_reduce(tensor, async_op=True)
    wait_for_gloo(int(rank != SLOW))
    distdebug.dump_flight_recorder()
    print("ready", flush=True)
    sys.stdin.read()
    # Nobody waits for what never ends.
    if rank != SLOW:
        del pending
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
