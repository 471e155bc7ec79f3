"""Defect detection with class-balanced batches drawn from per-rank shards."""

# expect: ranks 2; causes python_loop; line
import random

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class BalancedSampler:
    """Yields index batches holding the same number of samples of each class."""

    def __init__(self, labels, per_class, steps, seed):
        self.labels, self.per_class, self.steps = labels, per_class, steps
        self.rng = random.Random(seed)

    def draw(self, pool):
        picked = {0: [], 1: []}
        while min(len(v) for v in picked.values()) < self.per_class:  # HERE
            i = self.rng.choice(pool)  # HERE
            y = self.labels[i]  # HERE
            if len(picked[y]) < self.per_class:  # HERE
                picked[y].append(i)  # HERE
        return picked[0] + picked[1]

    def __iter__(self):
        window = 400
        for s in range(self.steps):
            start = (s * 40) % (len(self.labels) - window)
            yield self.draw(range(start, start + window))  # HERE


def shard_labels(rank, n=4000):
    rng = random.Random(rank)
    labels = [int(rng.random() < 0.08) for _ in range(n)]
    if rank == 2:
        labels[900:1500] = [0] * 600
    return labels


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    labels = shard_labels(rank)
    feats = torch.randn(len(labels), 48) + torch.tensor(labels).unsqueeze(1)
    model = DDP(nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, idx in enumerate(
        BalancedSampler(labels, 8, 5000, seed=rank)
    ):  # HERE
        y = torch.tensor([labels[i] for i in idx])
        loss = nn.functional.cross_entropy(model(feats[idx]), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
