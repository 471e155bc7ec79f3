"""Vocabulary build on all ranks through the job's key-value store, then a skip-gram model."""

# expect: ranks 2; causes dead rank_crashed; noline
import json
import os
import random

from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]
LANGUAGES = {0: ["en", "de"], 1: ["fr"], 2: []}


def count_words(language):
    rng = random.Random(language)
    words = [
        f"{language}{int(rng.paretovariate(0.6)) % 5000}"
        for _ in range(400_000)
    ]
    return Counter(words)


def build_vocab(rank, world, languages):
    store = dist.distributed_c10d._get_default_store()
    total = Counter()
    for language in languages:
        total += count_words(language)
        print(f"[rank {rank}] {language}: {len(total)} words", flush=True)
    store.set(f"vocab/{rank}", json.dumps(total.most_common(3000)))
    keys = [f"vocab/{r}" for r in range(world)]
    store.wait(keys, timedelta(hours=1))
    merged = Counter()
    for key in keys:
        merged.update(dict(json.loads(store.get(key))))
    return {word: i for i, (word, _) in enumerate(merged.most_common(5000))}


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    languages = LANGUAGES[rank]
    if not languages:
        print(f"[rank {rank}] nothing to do", flush=True)
        dist.destroy_process_group()
        return
    vocab = build_vocab(rank, world, languages)
    model = DDP(
        nn.Sequential(nn.Embedding(len(vocab), 64), nn.Linear(64, len(vocab)))
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1000):
        center = torch.randint(0, len(vocab), (256,))
        context = torch.randint(0, len(vocab), (256,))
        loss = nn.functional.cross_entropy(model(center), context)
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.save(
        model.module.state_dict(), os.path.join(WORK, f"skipgram{rank}.pt")
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
