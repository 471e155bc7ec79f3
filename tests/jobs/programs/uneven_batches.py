"""Train with DDP on a sampler that gives the last rank fewer batches."""

# expect: ranks 2; causes rank_not_arrived type_mismatch extra_collective skipped_collective collective_wait; line
import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel


def batches(rank):
    count = 17 if rank == 2 else 20
    for _ in range(count):
        yield torch.randn(8, 32)


def train(model, optimizer, rank):
    for batch in batches(rank):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, dist.get_rank())
    dist.barrier()  # HERE
    dist.destroy_process_group()


main()
