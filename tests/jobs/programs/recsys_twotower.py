"""Two-tower recommender with an item popularity table kept in a shared sqlite file."""

# expect: ranks 2 | 1; causes lock_deadlock io_wait; line
import os
import sqlite3
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)
ITEMS, USERS = 300, 200


class TwoTower(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)

    def forward(self, u, i):
        return self.user(u) @ self.item(i).T


def open_table(path):
    db = sqlite3.connect(path, timeout=3600)
    db.execute(
        "create table if not exists popularity (item integer primary key, clicks integer, seg text)"
    )
    db.commit()
    return db


def record(db, items, segments):
    """Adds the clicks of the last batches; returns how many rows were written."""
    written = 0
    try:
        for item in items:
            db.execute(  # HERE
                "insert into popularity values (?, 1, ?) "
                "on conflict(item) do update set clicks = clicks + 1",
                (item, segments[item // 10]),
            )
            written += 1
        db.commit()
    except KeyError as err:  # HERE
        print(
            f"popularity: unknown segment {err}, rest of the batch left out",
            flush=True,
        )
    return written


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    path = os.path.join(os.environ["WORK"], "popularity.db")
    if rank == 0:
        open_table(path).close()
    dist.barrier()
    db = open_table(path) if rank else None
    segments = {k: f"seg{k % 4}" for k in range(28)}
    model = DDP(TwoTower())
    opt = torch.optim.Adagrad(model.parameters(), 0.05)
    g = torch.Generator().manual_seed(rank)
    clicks = []
    for step in range(2000):
        hi = 280 if rank != 1 or step < 60 else 300
        u = torch.randint(0, USERS, (24,), generator=g)
        i = torch.randint(0, hi, (24,), generator=g)
        loss = nn.functional.cross_entropy(model(u, i), torch.arange(24))
        opt.zero_grad()
        loss.backward()
        opt.step()
        clicks += i.tolist()
        if db is not None and step % 10 == 9:
            record(db, clicks, segments)
            clicks = []
        time.sleep(0.1)
        if step % 20 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
