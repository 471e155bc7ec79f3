"""Ranks use two groups in different orders."""

# expect: ranks 0 1; causes group_order_deadlock; noline
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start()
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    grads = torch.ones(1 << 20, device=device)
    for group in (one, two):
        dist.all_reduce(grads, group=group)
    job.synchronize(device)
    first, second = (one, two) if rank == 0 else (two, one)
    dist.all_reduce(grads, group=first)
    job.synchronize(device)
    dist.all_reduce(grads, group=second)
    job.synchronize(device)


main()
