"""
The only rank of a job, which takes very many steps.

Usage: growth_rank.py STEPS FOLDER

It is recorded, watches itself, and is armed; a step is an ``all_reduce`` of
Gloo and a heartbeat.  It prints what it has at ten points.
"""

from __future__ import annotations

import json
import sys
import time

from pathlib import Path

import torch
import torch.distributed as dist

from own import resources

import distdebug


POINTS = 10


def main(steps, folder):
    """
    Print a line after each part of the steps.
    """
    distdebug.enable_flight_recorder(dump_dir=folder / "dumps")
    distdebug.arm(dir=folder / "s")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    with distdebug.watch(output_dir=folder / "hangs", poll_s=1.0) as watch:
        for number in range(POINTS):
            step_s = part(watch, steps // POINTS)
            files = sum(not path.is_dir() for path in folder.rglob("*"))
            point = {**resources(), "files": files, "step_s": step_s}
            done = (number + 1) * (steps // POINTS)
            print(json.dumps({"steps": done, **point}), flush=True)


def part(watch, count):
    """
    Take so many steps; the seconds of one.
    """
    tensor, began = torch.ones(8), time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
        watch.step()
    return (time.perf_counter() - began) / count


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
