"""Patch transformer on synthetic images with a full validation pass on the main rank."""

# expect: none
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)


class PatchNet(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed = nn.Linear(16, d)
        self.enc = nn.TransformerEncoderLayer(
            d, 2, 32, batch_first=True, dropout=0.0
        )
        self.head = nn.Linear(d, 6)

    def forward(self, x):
        return self.head(self.enc(self.embed(x)).mean(1))


def batch(g, n=8):
    y = torch.randint(0, 6, (n,), generator=g)
    x = torch.randn(n, 16, 16, generator=g)
    x[torch.arange(n), y] += 1.5
    return x, y


def read_images(count):
    """Validation images come one by one from the archive volume."""
    g = torch.Generator().manual_seed(77)
    for _ in range(count):
        time.sleep(0.06)
        yield batch(g, 4)


def validate(model):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for x, y in read_images(380):
            hits += (model(x).argmax(1) == y).sum().item()
            total += len(y)
    model.train()
    return hits / total


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(PatchNet())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    for epoch in range(7):
        for step in range(60):
            x, y = batch(g)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.1)
            if step % 20 == 0 and rank == 0:
                print(
                    f"epoch {epoch} step {step} loss {loss.item():.3f}",
                    flush=True,
                )
        if rank == 0:
            t = time.time()
            acc = validate(model.module)
            print(
                f"epoch {epoch} accuracy {acc:.3f} ({time.time() - t:.0f}s)",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
