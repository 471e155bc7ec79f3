"""Two groups with common members are used in two orders."""

# expect: ranks 0 1 | 0 1 2; causes group_order_deadlock collective_wait rank_not_arrived; line
import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    for _ in range(5):
        dist.all_reduce(torch.ones(2), group=second)
    rank = dist.get_rank()
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=first)  # HERE
        dist.all_reduce(torch.ones(2), group=second)
    elif rank == 1:
        dist.all_reduce(torch.ones(2), group=second)  # HERE
        dist.all_reduce(torch.ones(2), group=first)
    else:
        dist.all_reduce(torch.ones(2), group=second)


main()
