"""
One healthy rank of a job that is recorded, watched, and debugged for long.

Usage: torchrun … soak_rank.py FOLDER STEPS

After each epoch of so many STEPS, when the workers of its data loader are gone, it
writes a line about itself into ``FOLDER/rank-N.jsonl``.  It ends when
``FOLDER/stop`` is there.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import threading
import time

from pathlib import Path

import torch
import torch.distributed as dist

from own import resources
from torch.utils.data import DataLoader

import distdebug


WORKERS = 2
PAUSE_S = 0.02
SETTLE_S = 0.2
FLOOR_S = 20.0


class Finder:
    """
    Counts what threads of ours import: a child that is forked meanwhile would
    inherit the locks of modules.
    """

    loaded = 0

    @classmethod
    def find_spec(cls, _name, _path=None, _target=None):
        """
        Count it, and leave it to others to find it.
        """
        name = threading.current_thread().name
        cls.loaded += name.startswith("distdebug")


def main(folder, steps):
    """
    Train until somebody says stop.
    """
    torch.set_num_threads(1)
    distdebug.enable_flight_recorder(dump_dir=folder / "dumps")
    distdebug.arm(dir=folder / "s", labels={"group": "soak"})
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(
        [torch.full((64, 64), 1 / 64)] * steps, num_workers=WORKERS
    )
    sys.meta_path.insert(0, Finder)
    lines = (folder / f"rank-{rank}.jsonl").open("a")
    with distdebug.watch(
        output_dir=folder / "hangs", floor_s=FLOOR_S
    ) as watch:
        while goes_on(folder):
            print(json.dumps(epoch(loader, watch)), file=lines, flush=True)
    dist.destroy_process_group()


def goes_on(folder):
    """
    Whether nobody has said stop; all ranks agree.
    """
    stop = torch.tensor(float((folder / "stop").exists()))
    dist.all_reduce(stop)
    return not stop.item()


def epoch(loader, watch):
    """
    Take some steps, and tell what the process has then.
    """
    seconds, before = [], time.process_time()
    for batch in loader:
        began = time.perf_counter()
        step(batch)
        watch.step()
        seconds.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    used = (time.process_time() - before) / len(loader)
    # The threads that fed the workers end a moment later.
    gc.collect()
    time.sleep(SETTLE_S)
    return {
        "at": time.time(),
        # One of ten is quicker: what others do on the machine counts less.
        "step_s": statistics.quantiles(seconds, n=10)[0],
        "used_s": used,
        **resources(),
        "loaded": Finder.loaded,
    }


def step(batch):
    """
    Compute something, and agree on it.
    """
    gradient = batch[0]
    for _ in range(20):
        gradient = gradient @ gradient
    dist.all_reduce(gradient)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
