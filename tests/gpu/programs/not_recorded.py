"""Rank 1 waits for its own GPU, rank 0 for a collective, and nothing was recorded."""

# expect: ranks 1; causes rank_not_arrived
# env: RECORDER=0
# only: nccl
# after: nothing
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start(seconds=600)
    for step in range(100):
        grads = torch.ones(1 << 16, device=device)
        if rank == 1 and step == 5:
            job.spin(device, 40)
            job.synchronize(device)
        dist.all_reduce(grads)
        job.synchronize(device)
        print("step", step, flush=True)


main()
