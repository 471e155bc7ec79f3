"""
One rank of a small Gloo job in which rank 1 never gets its third batch.

Usage: torch_hang.py DUMP_DIR STORE_FILE

Both ranks do two steps and say "ready".  Then rank 1 waits for a queue, and
rank 0 waits for rank 1.  Of its five calls it remembers four.
"""

import os
import queue
import sys

import torch
import torch.distributed as dist

import distdebug


def load_batch(step):
    """
    Wait for a batch that does not come.
    """
    if step == 3:
        print("ready", flush=True)
        if dist.get_rank() == 1:
            return queue.Queue().get()
    return torch.ones(8)


if __name__ == "__main__":
    DUMP_DIR, STORE = sys.argv[1:]
    distdebug.enable_flight_recorder(dump_dir=DUMP_DIR, buffer_size=4)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{STORE}",
        rank=int(os.environ["RANK"]),
        world_size=2,
    )
    norm = torch.ones(1)
    for step in (1, 2, 3):
        batch = load_batch(step)
        dist.all_reduce(norm)
        dist.broadcast(batch, src=0)
