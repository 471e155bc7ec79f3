"""Somebody forgot to take out an input() for debugging."""

# expect: ranks 0; causes io_wait; line
import os
import sys

import torch
import torch.distributed as dist


def inspect(batch):
    print(batch.shape, flush=True)
    read, _ = os.pipe()
    sys.stdin = os.fdopen(read)
    input("continue? ")  # HERE


def main():
    dist.init_process_group("gloo")
    for step in range(10):
        batch = torch.rand(4, 4)
        if step == 4 and dist.get_rank() == 0:
            inspect(batch)
        dist.all_reduce(batch)


main()
