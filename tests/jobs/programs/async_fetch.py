"""DDP training on batches that an asyncio pipeline fetches."""

# expect: ranks 1; causes event_loop_idle queue_wait future_wait dataloader_wait; line
import asyncio

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


async def fetch(rank, i):
    await asyncio.sleep(0.01)
    if rank == 1 and i == 150:
        raise ConnectionResetError(f"object {i}")
    return torch.randn(16, generator=torch.Generator().manual_seed(i))


async def producer(rank, queue, n):
    for i in range(n):
        await queue.put(await fetch(rank, i))


async def train(model, opt, rank, steps, batch=8):
    queue = asyncio.Queue(maxsize=32)
    task = asyncio.create_task(producer(rank, queue, steps * batch))
    for step in range(steps):
        x = torch.stack([await queue.get() for _ in range(batch)])  # HERE
        loss = (model(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    await task


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    asyncio.run(train(model, opt, rank, steps=200))  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
