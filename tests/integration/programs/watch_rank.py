"""
One rank of a job that watches itself, and comes to a stop or does not.

Usage: watch_rank.py CAUSE FOLDER

CAUSE is ``io``, ``order``, ``lock``, ``gil``, ``recv``, or ``none``; everything
is put into FOLDER.  In the environment are RANK and WORLD_SIZE.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time

from pathlib import Path

import torch
import torch.distributed as dist

import distdebug


def step(group=None):
    """
    What a step of training does together with others.
    """
    dist.all_reduce(torch.ones(8), group=group)


def read_shard(path):
    """
    Read training data from a server that is gone.
    """
    return Path(path).read_bytes()


def log_metrics(lock):
    """
    Report, if only the lock were free.
    """
    with lock:
        return 1


def flush_metrics(lock, held):
    """
    Hold the lock, and wait for what never comes.
    """
    with lock:
        held.set()
        threading.Event().wait()


def tokenize():
    """
    Be in native code that keeps the GIL.
    """
    ctypes.PyDLL(None).sleep(10_000)


def hang(cause, folder):
    """
    Stop in a certain way.
    """
    rank = dist.get_rank()
    if (cause, rank) in {("io", 2), ("recv", 3)}:
        read_shard(folder / "shard")
    if cause == "recv":
        # Each from the next one, which Gloo does not record.
        dist.recv(torch.ones(1), src=rank + 1)
    if cause == "gil" and rank == 1:
        tokenize()
    if cause == "lock" and rank == 3:
        lock, held = threading.Lock(), threading.Event()
        other = threading.Thread(target=flush_metrics, args=(lock, held))
        other.daemon = True
        other.start()
        held.wait()
        log_metrics(lock)


def main(cause, folder):
    """
    Train for a while, and then stop.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    every = list(range(dist.get_world_size()))
    groups = [dist.new_group(every, group_desc=name) for name in ("tp", "dp")]
    for _ in range(20):
        step()
        time.sleep(0.05)
    print("ready", flush=True)
    if cause == "order":
        # Two groups, and not everybody enters them in the same order.
        for group in groups if dist.get_rank() else reversed(groups):
            step(group)
    hang(cause, folder)
    step()
    if cause == "none":
        train_on()


def train_on():
    """
    Take steps of very different length until somebody ends the job.
    """
    os.nice(19)  # others have something to do, too
    durations = (1, 1, 12, 1, 2, 1, 3, 20, 1, 1, 7, 18, 1, 15, 2, 20, 1, 9)
    matrix = torch.ones(256, 256)
    for duration in durations * 10:
        end = time.monotonic() + duration
        while time.monotonic() < end:
            matrix = (matrix @ matrix).clamp(0, 1)
        step()


if __name__ == "__main__":
    CAUSE, FOLDER = sys.argv[1], Path(sys.argv[2])
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    distdebug.enable_flight_recorder(dump_dir=FOLDER / "dumps")
    TOLD = FOLDER / f"told-{os.environ['RANK']}"
    with distdebug.watch(
        output_dir=FOLDER / "hangs",
        floor_s=4,
        on_hang=lambda hang: TOLD.write_text(hang.summary),
    ):
        main(CAUSE, FOLDER)
