"""Topic model on hashed n-grams; the ranks load their part of the corpus one after another to spare the file server."""

# expect: none
import os
import random
import re
import zlib

from datetime import timedelta

import torch
import torch.distributed as dist


WORK, DIM = os.environ["WORK"], 4096
WORD = re.compile(r"[a-z]+")


def write_part(rank, docs=6000):
    rng = random.Random(rank)
    vocab = [
        "".join(rng.choices("abcdefghilmnoprstuvw", k=rng.randint(3, 11)))
        for _ in range(20_000)
    ]
    path = os.path.join(WORK, f"part-{rank}.txt")
    with open(path, "w") as f:
        f.writelines(
            " ".join(rng.choices(vocab, k=400)) + "\n" for _ in range(docs)
        )
    return path


def featurize(line):
    counts = {}
    for word in WORD.findall(line):
        padded = f"<{word}>"
        for n in (3, 4, 5):
            for i in range(len(padded) - n + 1):
                bucket = zlib.crc32(padded[i : i + n].encode()) % DIM
                counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def load_part(path, rank):
    x = torch.zeros(6000, DIM, dtype=torch.uint8)
    for row, line in enumerate(open(path)):
        for bucket, n in featurize(line).items():
            x[row, bucket] = min(n, 255)
        if row % 500 == 499:
            print(f"[rank {rank}] {row + 1} documents", flush=True)
    return x


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    path = write_part(rank)
    dist.barrier()
    for turn in range(world):
        if turn == rank:
            x = load_part(path, rank)
        dist.barrier()
    centers = torch.randn(32, DIM, generator=torch.Generator().manual_seed(0))
    for it in range(200):
        batch = x[torch.randint(len(x), (512,))].float()
        assign = torch.cdist(batch, centers).argmin(1)
        sums = torch.zeros_like(centers).index_add_(0, assign, batch)
        sizes = torch.bincount(assign, minlength=32).float()
        dist.all_reduce(sums)
        dist.all_reduce(sizes)
        centers = (sums + centers) / (sizes + 1)[:, None]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
