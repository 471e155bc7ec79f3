"""Population based search of learning rates; new settings are handed out through the store."""

# expect: ranks 1 | 0; causes collective_wait rendezvous_wait; line
import json
import random
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


torch.set_num_threads(1)


def make_data(seed=0, n=256):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, (x[:, :1] * 2 - x[:, 1:2] * x[:, 2:3])


class Member:
    def __init__(self, rank, lr):
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        self.apply({"lr": lr})
        self.best, self.stall = float("inf"), 0

    def apply(self, cfg):
        self.cfg = cfg
        self.opt = torch.optim.SGD(self.net.parameters(), cfg["lr"])

    def fit(self, x, y, steps):
        for _ in range(steps):
            loss = nn.functional.mse_loss(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            time.sleep(0.04)
        if loss.item() < self.best - 5e-3:
            self.best, self.stall = loss.item(), 0
        else:
            self.stall += 1
        return loss.item()


class Coordinator:
    """Rank 0 proposes, members fetch; every proposal is kept for the report."""

    def __init__(self, store, rank, world):
        self.store, self.rank, self.world = store, rank, world
        self.rng = random.Random(4)

    def publish(self, gen, losses, settings):
        order = sorted(range(self.world), key=losses.__getitem__)
        base = settings[order[0]]["lr"]
        for r in range(self.world):
            cfg = {"lr": base * self.rng.choice([0.5, 1.0, 1.5])}
            self.store.set(f"gen{gen}/member{r}", json.dumps(cfg))

    def fetch(self, gen):
        return json.loads(
            self.store.get(f"gen{gen}/member{self.rank}")
        )  # HERE


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("pbt", dist.distributed_c10d._get_default_store())
    store.set_timeout(timedelta(minutes=30))
    coord = Coordinator(store, rank, world)
    member = Member(rank, [0.02, 1e-6, 0.005][rank % 3])
    x, y = make_data()
    for gen in range(200):
        loss = member.fit(x, y, 30)
        scores = [None] * world
        dist.all_gather_object(scores, (loss, member.cfg))
        if rank == 0 and gen % 4 == 0 and gen:
            coord.publish(gen, [s[0] for s in scores], [s[1] for s in scores])
        if member.stall >= 5:
            member.apply(coord.fetch(gen))
            member.stall = 0
        if rank == 0:
            print(
                f"gen {gen} losses {[round(s[0], 3) for s in scores]}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
