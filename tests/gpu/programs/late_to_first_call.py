"""Rank 1 prepares data before its first collective; NCCL is not set up yet."""

# expect: ranks 1; causes sleeping; line
import time

import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start(first_call=False)
    if rank == 1:
        time.sleep(1000)  # HERE
    dist.all_reduce(torch.ones(1 << 16, device=device))
    job.synchronize(device)


main()
