"""
Train on four ranks, one of which is slow, and write dumps after sixty steps.
"""

from __future__ import annotations

import random
import sys
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel

import distdebug


MODE, FOLDER = sys.argv[1:]
STEPS = 60
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


def main():
    """
    Train.
    """
    distdebug.enable_flight_recorder(dump_dir=FOLDER)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    loader = iter(torch.utils.data.DataLoader(Shards(), batch_size=1))
    for step in range(STEPS):
        PLACE["step"] = step
        Within.apply(model(next(loader))).pow(2).mean().backward()
        time.sleep(0.03)
    distdebug.dump_flight_recorder()
    dist.barrier()
    dist.destroy_process_group()


main()
