"""BPE-tokenizes the corpus in a process pool on rank 0, then trains a bigram model on all ranks."""

# expect: none
import collections
import multiprocessing as mp
import os
import random
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


PATH = os.path.join(os.environ["WORK"], "tokens.pt")


def merge_document(seed, n_chars=6000, n_merges=60):
    rng = random.Random(seed)
    toks = [rng.choice((97, 98, 99, 100, 101, 32)) for _ in range(n_chars)]
    for new in range(256, 256 + n_merges):
        pair = collections.Counter(zip(toks, toks[1:])).most_common(1)[0][0]
        out, i = [], 0
        while i < len(toks):
            if i + 1 < len(toks) and (toks[i], toks[i + 1]) == pair:
                out.append(new)
                i += 2
            else:
                out.append(toks[i])
                i += 1
        toks = out
    return toks


def tokenize(n_docs=2000):
    ids, t0 = [], time.time()
    with mp.Pool(2) as pool:
        for n, toks in enumerate(
            pool.imap(merge_document, range(n_docs), chunksize=10), 1
        ):
            ids.extend(toks)
            if n % 50 == 0:
                print(
                    f"tokenized {n}/{n_docs} {time.time() - t0:.0f}s",
                    flush=True,
                )
    torch.save(torch.tensor(ids), PATH)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank = dist.get_rank()
    if rank == 0:
        tokenize()
    dist.barrier()
    ids = torch.load(PATH)
    model = DDP(nn.Sequential(nn.Embedding(320, 64), nn.Linear(64, 320)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(24000):
        at = torch.randint(0, len(ids) - 1, (256,))
        loss = nn.functional.cross_entropy(model(ids[at]), ids[at + 1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
