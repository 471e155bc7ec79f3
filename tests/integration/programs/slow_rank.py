"""
Train on four ranks, one of which is slow, and write dumps after sixty steps.

Usage: ``slow_rank.py MODE FOLDER``, where FOLDER is not there yet.
"""

from __future__ import annotations

import os
import random
import sys
import time

import torch
import torch._dynamo  # which DDP imports, in each rank if it is not here yet
import torch.distributed as dist
import torch.multiprocessing as mp

from torch.nn.parallel import DistributedDataParallel

import distdebug


MODE, FOLDER = sys.argv[1:]
RANKS, STEPS = 4, 60
# Another one every three steps.
TURNS = [random.Random(1).randrange(4) for _ in range(STEPS)]
PLACE = {"step": 0}


class Shards(torch.utils.data.IterableDataset):
    """
    Batches, which one rank reads slowly.
    """

    def __iter__(self):
        while True:
            if MODE == "loader" and dist.get_rank() == 2:
                time.sleep(0.15)
            yield torch.randn(32)


class Within(torch.autograd.Function):
    """
    Does nothing, and takes time in the backward pass.
    """

    @staticmethod
    def forward(ctx, x):
        """
        Pass on.
        """
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        """
        Pass on, late.
        """
        rank, step = dist.get_rank(), PLACE["step"]
        if MODE == "backward" and rank == 1:
            time.sleep(0.2)
        if MODE == "turns" and rank == (TURNS[step // 3] + step // 3) % 4:
            time.sleep(0.15)
        if MODE == "two":
            time.sleep({1: 0.1, 3: 0.3 * (step % 5 == 4)}.get(rank, 0))
        return gradient


def main(rank):
    """
    Train.
    """
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    torch.set_num_threads(1)
    distdebug.enable_flight_recorder(dump_dir=FOLDER)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{FOLDER}.store",
        rank=rank,
        world_size=RANKS,
    )
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    loader = iter(torch.utils.data.DataLoader(Shards(), batch_size=1))
    for step in range(STEPS):
        PLACE["step"] = step
        Within.apply(model(next(loader))).pow(2).mean().backward()
        time.sleep(0.03)
    distdebug.dump_flight_recorder()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forked, so that torch is imported once.
    context = mp.get_context("fork")
    ranks = [context.Process(target=main, args=(r,)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))
