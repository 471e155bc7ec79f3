"""Preference model training with an async, micro-batched evaluation harness on every rank."""

# expect: ranks 1; causes event_loop_idle future_wait; line
import asyncio
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)
DIM = 12


class Scorer:
    """Collects single requests into batches for the model."""

    def __init__(self, model, size=8):
        self.model, self.size = model, size
        self.queue = asyncio.Queue()

    async def ask(self, features):
        fut = asyncio.get_running_loop().create_future()
        await self.queue.put((features, fut))
        return await fut  # HERE

    async def serve(self):
        while True:
            batch = []
            while len(batch) < self.size:
                batch.append(await self.queue.get())  # HERE
            x = torch.stack([f for f, _ in batch])
            with torch.no_grad():
                out = self.model(x).squeeze(1).tolist()
            for (_, fut), score in zip(batch, out):
                fut.set_result(score)
            await asyncio.sleep(0.02)


async def evaluate(model, prompts):
    scorer = Scorer(model)
    server = asyncio.create_task(scorer.serve())

    async def case(p):
        await asyncio.sleep(0.01)
        chosen = await scorer.ask(p)
        rejected = await scorer.ask(-p)
        return float(chosen > rejected)

    wins = await asyncio.gather(*[case(p) for p in prompts])  # HERE
    server.cancel()
    return sum(wins) / len(wins)


SPLITS = {
    "chat": [32, 32, 32],
    "code": [24, 24, 24],
    "safety": [40, 29, 40],
    "math": [16, 16, 16],
}


def load_prompts(rank, rnd):
    name = list(SPLITS)[rnd % len(SPLITS)]
    g = torch.Generator().manual_seed(100 * rank + rnd)
    return list(torch.randn(SPLITS[name][rank], DIM, generator=g))


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(DIM, 24), nn.Tanh(), nn.Linear(24, 1)))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    g = torch.Generator().manual_seed(rank)
    w = torch.ones(DIM)
    for step in range(3000):
        a, b = (
            torch.randn(16, DIM, generator=g),
            torch.randn(16, DIM, generator=g),
        )
        sign = ((a - b) @ w).sign().unsqueeze(1)
        both = model(torch.cat([a, b]))
        loss = -nn.functional.logsigmoid(sign * (both[:16] - both[16:])).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 25 == 24:
            rnd = step // 25
            acc = asyncio.run(
                evaluate(model.module, load_prompts(rank, rnd))
            )  # HERE
            total = torch.tensor([acc])
            dist.all_reduce(total)
            if rank == 0:
                print(
                    f"step {step} loss {loss.item():.3f} win rate {total.item() / dist.get_world_size():.3f}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
