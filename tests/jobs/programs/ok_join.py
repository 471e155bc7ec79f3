"""DDP training on uneven inputs with the join context."""

# expect: none
import time

import torch
import torch.distributed as dist

from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def batches(rank, epoch):
    n = 60 + 25 * ((rank + epoch) % 3)
    g = torch.Generator().manual_seed(rank * 100 + epoch)
    for _ in range(n):
        time.sleep(0.15)
        x = torch.randn(8, 20, generator=g)
        yield x, x.sum(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
    )
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(8):
        seen = 0
        with Join([model]):
            for x, y in batches(rank, epoch):
                loss = (model(x) - y).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += 1
        print(f"rank {rank} epoch {epoch} batches {seen}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
