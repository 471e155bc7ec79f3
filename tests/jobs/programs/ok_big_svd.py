"""DDP training that whitens its features by a big decomposition now and then."""

# expect: none
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


def whiten(n, seed):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=g)
    u, _, v = torch.linalg.svd(a)
    return u[:64, :64] @ v[:64, :64]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(64, 64))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    start, step, go = time.time(), 0, torch.ones(1)
    while go.item():
        target = whiten(2600, step)
        for _ in range(20):
            x = torch.randn(32, 64)
            loss = (model(x) - x @ target).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        step += 1
        go.fill_(float(time.time() - start < 150))
        dist.broadcast(go, src=0)
        if rank == 0:
            print(
                f"{time.time() - start:.0f}s round {step} loss {loss.item():.4f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
