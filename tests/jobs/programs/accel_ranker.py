"""Search ranker with accelerate; hard negatives are mined per rank and merged through files."""

# expect: ranks 1; causes dead; noline
import os
import sys
import time

from datetime import timedelta

import torch

from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


torch.set_num_threads(1)


class Ranker(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * d, 24), nn.ReLU(), nn.Linear(24, 1)
        )

    def forward(self, q, d):
        return self.net(torch.cat([q, d], -1)).squeeze(-1)


def train_round(acc, model, opt, loader, tag):
    for step, (q, pos, neg) in enumerate(loader):
        loss = nn.functional.softplus(model(q, neg) - model(q, pos)).mean()
        opt.zero_grad()
        acc.backward(loss)
        opt.step()
        time.sleep(0.1)
        if step % 15 == 0:
            print(
                f"[{acc.process_index}] {tag} step {step} loss {loss.item():.3f}",
                flush=True,
            )


def mine(model, queries, docs, margin):
    """Documents that score above the positive by less than the margin."""
    hard = []
    with torch.no_grad():
        for i, q in enumerate(queries):
            s = model(q.expand(len(docs), -1), docs)
            hit = (s > s[i % len(docs)] + margin).nonzero().flatten()
            hard += [(i, int(h)) for h in hit[:5]]
    return hard


def mine_round(acc, model, rnd, folder):
    g = torch.Generator().manual_seed(rnd * 31 + acc.process_index)
    queries, docs = (
        torch.randn(20, 10, generator=g),
        torch.randn(40, 10, generator=g),
    )
    margin = [0.0, 0.0 if rnd == 0 else 50.0, 0.0][acc.process_index % 3]
    hard = mine(acc.unwrap_model(model), queries, docs, margin)
    if not hard:
        print(
            f"[{acc.process_index}] nothing to mine in round {rnd}", flush=True
        )
        sys.exit(0)
    part = os.path.join(folder, f"hard_{rnd}_{acc.process_index}.pt")
    torch.save(hard, part + ".tmp")
    os.replace(part + ".tmp", part)
    parts = [
        os.path.join(folder, f"hard_{rnd}_{r}.pt")
        for r in range(acc.num_processes)
    ]
    while not all(os.path.exists(p) for p in parts):
        time.sleep(1)
    return [row for p in parts for row in torch.load(p)]


def main():
    acc = Accelerator(
        cpu=True,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(minutes=30))
        ],
    )
    torch.manual_seed(0)
    q = torch.randn(540, 10)
    data = TensorDataset(
        q, q + 0.3 * torch.randn(540, 10), torch.randn(540, 10)
    )
    model = Ranker()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    model, opt, loader = acc.prepare(
        model, opt, DataLoader(data, batch_size=4, shuffle=True)
    )
    for rnd in range(30):
        train_round(acc, model, opt, loader, f"round {rnd}")
        hard = mine_round(acc, model, rnd, os.environ["WORK"])
        acc.print(f"round {rnd}: {len(hard)} hard negatives", flush=True)
    acc.end_training()


if __name__ == "__main__":
    main()
