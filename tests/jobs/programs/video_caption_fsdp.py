"""Video caption embedding model sharded with FSDP2; captions are normalised on the fly."""

# expect: ranks 2; causes native_spin; line
import random
import re
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


torch.set_num_threads(1)
VOCAB = 512
SENTENCE = re.compile(r"^(?:\s*(?:[\w'-]+,?)+)+[.!?]$")
WORDS = [
    "a",
    "man",
    "walks",
    "his",
    "dog",
    "near",
    "the",
    "old",
    "river",
    "while",
    "two",
    "kids",
    "play",
    "football",
    "on",
    "green",
    "grass",
]


def captions(rank, step):
    rng = random.Random(rank * 10_000 + step)
    rows = [
        " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 9))) + "."
        for _ in range(8)
    ]
    if rank == 2 and step == 70:
        rows[3] = "timelapse_of_clouds_over_san-francisco_bay_part2 4k (stock)"
    return rows


def tokens(text):
    if SENTENCE.match(text):  # HERE
        text = text[:-1]
    ids = [hash_word(w) for w in text.lower().split()][:10]
    return ids + [0] * (10 - len(ids))


def hash_word(w):
    h = 7
    for c in w:
        h = (h * 31 + ord(c)) % (VOCAB - 1)
    return h + 1


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Captioner(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
        self.frames = nn.Linear(30, d)

    def forward(self, ids, video):
        t = self.emb(ids).mean(1)
        for b in self.blocks:
            t = b(t)
        return t @ self.frames(video).T


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Captioner()
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(3000):
        ids = torch.tensor([tokens(c) for c in captions(rank, step)])
        video = torch.randn(8, 30)
        loss = nn.functional.cross_entropy(model(ids, video), torch.arange(8))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 15 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
