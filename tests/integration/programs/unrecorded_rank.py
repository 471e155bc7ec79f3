"""
One rank of a Gloo job that hangs because of what no dump shows.

Usage: unrecorded_rank.py CALL DUMP_DIR STORE_FILE
"""

import fcntl
import os
import queue
import sys
import threading
import time

from pathlib import Path

import torch
import torch.distributed as dist

from distdebug.flight_recorder import enable_flight_recorder


def fetch():
    """
    Wait for a batch that nobody brings.
    """
    return queue.Queue().get()


def count():
    """
    Wait for a lock that this rank holds itself.
    """
    lock = threading.Lock()
    with lock, lock:
        pass


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


def refresh(rank, file):
    """
    Wait for all others while a lock is held that they want, too.
    """
    taken = Path(f"{file}.taken")
    while rank != 3 and not taken.exists():
        time.sleep(0.1)
    with Path(f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken.touch()
        dist.barrier()


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
    if CALL == "flock":
        refresh(RANK, STORE)
    if CALL == "lock":
        count()
    if RANK == 3:
        fetch()
    meet(CALL, RANK)
