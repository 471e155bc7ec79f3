"""Rank 1 waits for a shard on the host; rank 0 in a collective."""

# expect: ranks 1; causes io_wait dataloader_wait; line
# live: native, ras
import os

import job
import torch
import torch.distributed as dist


def load(rank, step):
    path = f"shard-{rank}-{step}"
    if rank == 1 and step == 5:
        os.mkfifo(path)
    else:
        open(path, "wb").close()
    with open(path, "rb") as file:  # HERE
        return file.read()


def main():
    rank, device = job.start()
    for step in range(100):
        load(rank, step)
        grads = torch.ones(1 << 16, device=device)
        dist.all_reduce(grads)
        print("loss", float(grads[0]), flush=True)


main()
