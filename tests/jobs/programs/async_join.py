"""Recsys ranker; each epoch pulls its impressions with an asyncio fetch pool."""

# expect: ranks 1; causes event_loop_idle future_wait queue_wait; line
import asyncio
import random

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


N_FETCHERS = 6


async def get_impression(rank, epoch, idx):
    await asyncio.sleep(random.uniform(0.001, 0.02))
    row = {
        "features": [random.random() for _ in range(32)],
        "clicked": idx % 3 == 0,
    }
    if rank == 1 and epoch == 2 and idx % 61 == 60:
        row.pop("clicked")
    return row


async def fetcher(rank, epoch, todo, rows):
    while True:
        idx = await todo.get()
        row = await get_impression(rank, epoch, idx)
        rows.append((torch.tensor(row["features"]), float(row["clicked"])))
        todo.task_done()


async def collect(rank, epoch, n):
    todo, rows = asyncio.Queue(), []
    for idx in range(n):
        todo.put_nowait(idx)
    pool = [
        asyncio.create_task(fetcher(rank, epoch, todo, rows))
        for _ in range(N_FETCHERS)
    ]
    await todo.join()  # HERE
    for task in pool:
        task.cancel()
    return rows


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank = dist.get_rank()
    random.seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(20):
        rows = asyncio.run(collect(rank, epoch, 240))  # HERE
        for i in range(0, 240, 24):
            x = torch.stack([r[0] for r in rows[i : i + 24]])
            y = torch.tensor([[r[1]] for r in rows[i : i + 24]])
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
