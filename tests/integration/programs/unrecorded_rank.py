"""
One rank of a Gloo job that hangs in calls which Gloo does not record.

Usage: unrecorded_rank.py CALL DUMP_DIR STORE_FILE
"""

import os
import queue
import sys

import torch
import torch.distributed as dist

from distdebug.flight_recorder.enable import enable_flight_recorder


def fetch():
    """
    Wait for a batch that nobody brings.
    """
    return queue.Queue().get()


def meet(call, rank):
    """
    Wait for the last rank, directly or not.
    """
    if call == "monitored_barrier":
        dist.monitored_barrier()
    elif call == "recv":
        dist.recv(torch.ones(1), src=rank + 1)
    else:
        dist.irecv(torch.ones(1), src=rank + 1).wait()


if __name__ == "__main__":
    CALL, DUMP_DIR, STORE = sys.argv[1:]
    RANK = int(os.environ["RANK"])
    enable_flight_recorder(dump_dir=DUMP_DIR)
    dist.init_process_group(
        "gloo", init_method=f"file://{STORE}", rank=RANK, world_size=4
    )
    for _ in range(10):
        dist.all_reduce(torch.ones(1))
    print("ready", flush=True)
    if RANK == 3:
        fetch()
    meet(CALL, RANK)
