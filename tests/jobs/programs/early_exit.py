"""DDP training with patience-based early stopping."""

# expect: ranks 1; causes rank_crashed dead skipped_collective rank_not_arrived network_failure; noline
import sys

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


class Patience:
    def __init__(self, limit):
        self.limit, self.best, self.bad = limit, float("inf"), 0

    def update(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.limit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    patience = Patience([400, 20, 400][rank])
    g = torch.Generator().manual_seed(rank)
    for step in range(20000):
        x = torch.randn(8, 16, generator=g)
        loss = (model(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if patience.update(loss.item()):
            print(f"rank {rank}: no progress, stop at step {step}", flush=True)
            sys.exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
