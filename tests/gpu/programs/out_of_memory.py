"""Rank 1 wants more memory than the GPU has."""

# expect: ranks 1; causes gpu_out_of_memory; line
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start()
    grads = torch.ones(1 << 16, device=device)
    for step in range(100):
        if rank == 1 and step == 5:
            torch.empty(1 << 50, device=device)  # HERE
        dist.all_reduce(grads)
        job.synchronize(device)


main()
