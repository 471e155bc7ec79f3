"""
One rank of a small job, with something of ours in it or nothing.

Usage: step_rank.py ARM FOLDER

In the environment are RANK and WORLD_SIZE.  It takes as many steps as each line
of its standard input says, and prints the seconds and the processor seconds of
one of them.
"""

from __future__ import annotations

import os
import sys
import time

from pathlib import Path

import torch
import torch.distributed as dist

import distdebug

from distdebug.errors import NotRecordingError
from distdebug.flight_recorder.recording.dump import read_trace


# Ten times as often as it is by default.
POLL_S = 1.0
# Between two of its blocks a job stands still, which is no hang.
FLOOR_S = 600.0
# What records, and whether it also listens to requests.
RECORDERS = {"recording": False, "recording, requests": True, "all": True}
# Newer versions of torch record where nobody says anything.
DEFAULT = "torch's default"
OFF = {"TORCH_FR_BUFFER_SIZE": "0"}


def main(arm, folder):
    """
    Take steps until nobody wants more.
    """
    torch.set_num_threads(1)
    watch = prepare(arm, folder)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    matrix = torch.full((64, 64), 1 / 64)
    print("ready", flush=True)
    for line in sys.stdin:
        print(*block(matrix, int(line), watch), flush=True)
    check(arm)


def prepare(arm, folder):
    """
    Switch on what is measured.
    """
    if arm in RECORDERS:
        distdebug.enable_flight_recorder(
            dump_dir=folder / "dumps", extras=RECORDERS[arm]
        )
    elif arm != DEFAULT:
        os.environ.update(OFF)
    if arm in {"armed debugger", "all"}:
        distdebug.arm(dir=folder / "s")
    if arm in {"watch()", "all"}:
        return distdebug.watch(
            output_dir=folder / "hangs", poll_s=POLL_S, floor_s=FLOOR_S
        )
    return None


def block(matrix, count, watch):
    """
    Seconds, and processor seconds, of a step, in so many.
    """
    dist.barrier()
    used, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        gradient = matrix @ matrix
        dist.all_reduce(gradient)
        if watch is not None:
            watch.step()
    taken = time.perf_counter() - began
    return taken / count, (time.process_time() - used) / count


def check(arm):
    """
    Only who should have recorded has.
    """
    if arm == DEFAULT:
        return

    try:
        has_calls = b"record_id" in read_trace(stacks=False)
    except NotRecordingError:
        has_calls = False
    if has_calls != (arm in RECORDERS):
        sys.exit(f"{arm}: has it recorded? {has_calls}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
