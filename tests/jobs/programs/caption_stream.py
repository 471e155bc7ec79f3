"""Caption pretraining over streamed shards, with a big shuffle buffer per rank."""

# expect: none
import base64
import json
import os
import random
import time
import zlib

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]
BUFFER = 1300


def write_shards(rank):
    for s in range(3):
        with open(f"{WORK}/captions-{rank}-{s}.jsonl", "w") as f:
            for i in range(500):
                blob = base64.b64encode(
                    zlib.compress(random.randbytes(2048))
                ).decode()
                f.write(
                    json.dumps({"id": i, "img": blob, "len": 5 + i % 20})
                    + "\n"
                )


def stream(rank):
    while True:
        for s in range(3):
            with open(f"{WORK}/captions-{rank}-{s}.jsonl") as f:
                for line in f:
                    time.sleep(0.02 + 0.006 * rank)  # object-store read
                    row = json.loads(line)
                    pix = zlib.decompress(base64.b64decode(row["img"]))
                    yield (
                        torch.frombuffer(
                            bytearray(pix), dtype=torch.uint8
                        ).float()
                        / 255,
                        row["len"],
                    )


def shuffled(source, size, rng):
    buf = [next(source) for _ in range(size)]
    for item in source:
        j = rng.randrange(size)
        out, buf[j] = buf[j], item
        yield out


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    write_shards(rank)
    it = shuffled(stream(rank), BUFFER, random.Random(rank))
    model = DDP(
        nn.Sequential(nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 32))
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(500):
        batch = [next(it) for _ in range(12)]
        x, y = (
            torch.stack([b[0] for b in batch]),
            torch.tensor([b[1] for b in batch]),
        )
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
