"""Image crops prepared by helper processes, at most three at a time per rank, then an autoencoder."""

# expect: ranks 1; causes lock_deadlock subprocess_wait; line
import multiprocessing as mp
import os
import random
import zlib

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]


def write_images(folder, rank, n=36):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(rank)
    for i in range(n):
        blob = zlib.compress(rng.randbytes(64 * 64))
        if (
            rank == 1 and i % 9 == 5
        ):  # this camera loses the end of a frame now and then
            blob = blob[: len(blob) // 2]
        with open(os.path.join(folder, f"{i:04d}.z"), "wb") as f:
            f.write(blob)


def crop(path, slots):
    with open(path, "rb") as f:
        pixels = zlib.decompress(f.read())
    rows = [pixels[r * 64 + 16 : r * 64 + 48] for r in range(16, 48)]
    open(path + ".crop", "wb").write(b"".join(rows))
    slots.release()


def prepare(folder):
    ctx = mp.get_context("fork")
    slots = ctx.BoundedSemaphore(3)
    helpers = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".z"):
            slots.acquire()  # HERE
            helper = ctx.Process(
                target=crop, args=(os.path.join(folder, name), slots)
            )
            helper.start()
            helpers.append(helper)
    for helper in helpers:
        helper.join()
    files = sorted(f for f in os.listdir(folder) if f.endswith(".crop"))
    crops = [list(open(os.path.join(folder, f), "rb").read()) for f in files]
    return torch.tensor(crops, dtype=torch.float32) / 255


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    folder = os.path.join(WORK, f"camera{dist.get_rank()}")
    write_images(folder, dist.get_rank())
    x = prepare(folder)
    model = DDP(
        nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 1024))
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(500):
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
