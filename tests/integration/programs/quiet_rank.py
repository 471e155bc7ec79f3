"""
A rank with everything of ours in it, which prints what our threads import, and
when it is told of a hang.

Usage: quiet_rank.py FOLDER

It waits for a lock that it holds itself.
"""

from __future__ import annotations

import sys
import threading

from pathlib import Path

import torch
import torch.distributed as dist

import distdebug


class Finder:
    """
    Sees what is imported for the first time.
    """

    def find_spec(name, path=None, target=None):  # noqa: N805 there is no self
        """
        Tell it, and leave it to others to find it.
        """
        if threading.current_thread() is not threading.main_thread():
            print(threading.current_thread().name, name, flush=True)


def tell(hang):
    """
    Say that a hang was told, after its text was made.
    """
    print("told", bool(str(hang)), flush=True)


def main(folder):
    """
    Do a step that never ends.
    """
    lock = threading.Lock()
    distdebug.enable_flight_recorder(dump_dir=folder / "dumps")
    distdebug.arm(dir=folder / "s")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    dist.all_reduce(torch.ones(1))
    sys.meta_path.insert(0, Finder)
    with distdebug.watch(
        output_dir=folder / "hangs",
        progress_files=[folder],
        sense=lambda: 1,
        on_hang=tell,
        floor_s=0.2,
        start_s=0.2,
        poll_s=0.05,
    ):
        print("ready", flush=True)
        with lock, lock:
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
