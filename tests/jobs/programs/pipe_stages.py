"""Three-stage pipeline-parallel MLP over hand-written point-to-point transfers."""

# expect: ranks 2|1|1 2|0 1; causes p2p_deadlock rank_not_arrived; line
import math

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


MICRO = 8
HID = 96


def microbatches(rank, world, n_samples):
    if rank == world - 1:
        return math.ceil(n_samples / MICRO)
    return n_samples // MICRO


def forward_stage(stage, rank, world, n, data, labels):
    losses = []
    for m in range(n):
        if rank == 0:
            x = data[m * MICRO : (m + 1) * MICRO]
        else:
            x = torch.empty(MICRO, HID)
            dist.recv(x, src=rank - 1)  # HERE
        out = stage(x)
        if rank < world - 1:
            dist.send(out.detach(), dst=rank + 1)
        else:
            losses.append(nn.functional.mse_loss(out, labels[: out.size(0)]))
    return losses


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(HID, HID), nn.Tanh())
    opt = torch.optim.SGD(stage.parameters(), lr=0.1)
    sizes = [128] * 12 + [124] + [128] * 500
    for it, size in enumerate(sizes):
        n = microbatches(rank, world, size)
        data, labels = torch.randn(size, HID), torch.zeros(MICRO, HID)
        losses = forward_stage(stage, rank, world, n, data, labels)  # HERE
        total = torch.zeros(1)
        if losses:
            opt.zero_grad()
            sum(losses).backward()
            opt.step()
            total += sum(loss.item() for loss in losses)
        dist.all_reduce(total)
        if rank == 0:
            print(f"iter {it} loss {total.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
