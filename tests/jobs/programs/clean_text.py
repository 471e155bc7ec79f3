"""Domain text classifier: cleans the raw shards on the fly before batching."""

# expect: ranks 1; causes io_wait subprocess_wait; line
import subprocess

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Lowercaser:
    """Same normaliser as the production pipeline, kept open for the whole run."""

    def __init__(self):
        self.proc = subprocess.Popen(
            ["tr", "A-Z", "a-z"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __call__(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()
        return self.proc.stdout.readline().rstrip("\n")  # HERE


def load_shard(rank):
    words = ["invoice", "shipment", "refund", "account", "delay", "warranty"]
    rows = [" ".join(words[(i + j) % 6] for j in range(8)) for i in range(400)]
    if rank == 1:
        rows = rows[:96] + [r.title() for r in rows[96:]]
    return rows


def encode(line):
    v = torch.zeros(256)
    for ch in line:
        v[ord(ch) % 256] += 1
    return v


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank = dist.get_rank()
    rows = load_shard(rank)
    clean = None
    model = DDP(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 6)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(len(rows) // 16):
        batch = []
        for line in rows[step * 16 : step * 16 + 16]:
            if not line.islower():
                clean = clean or Lowercaser()
                line = clean(line)  # HERE
            batch.append(encode(line))
        y = torch.randint(0, 6, (16,))
        loss = nn.functional.cross_entropy(model(torch.stack(batch)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
