"""Rank 1 gathers where rank 0 reduces."""

# expect: ranks 1 | 0 1; causes type_mismatch; noline
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start()
    grads = torch.ones(1 << 16, device=device)
    for step in range(100):
        if rank == 1 and step == 5:
            out = torch.empty(1 << 17, device=device)
            dist.all_gather_into_tensor(out, grads)
        else:
            dist.all_reduce(grads)
        dist.all_reduce(torch.ones(3, device=device))
        job.synchronize(device)


main()
