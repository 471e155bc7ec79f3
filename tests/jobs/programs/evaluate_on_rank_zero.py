"""Evaluate on rank 0 alone, with a metric that is reduced over all ranks."""

# expect: ranks 0; causes size_mismatch type_mismatch extra_collective skipped_collective rank_not_arrived; line
import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel


def mean_over_ranks(value):
    total = torch.tensor([value])
    dist.all_reduce(total)  # HERE
    return total.item() / dist.get_world_size()


def evaluate(model):
    with torch.no_grad():
        loss = model.module(torch.randn(64, 32)).pow(2).mean()
    return mean_over_ranks(loss.item())


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).pow(2).mean().backward()
        optimizer.step()
        if step == 6 and dist.get_rank() == 0:
            print("eval", evaluate(model), flush=True)
    dist.barrier()


main()
