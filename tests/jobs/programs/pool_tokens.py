"""DDP training whose batches are tokenised by a multiprocessing pool."""

# expect: ranks 2; causes future_wait queue_wait subprocess_wait lock_deadlock dataloader_wait; line
import multiprocessing as mp
import os

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


VOCAB = 64


def tokenise(text):
    if len(text) > 400:
        os._exit(137)
    return [ord(c) % VOCAB for c in text][:32]


def texts(rank, step):
    rows = [
        "the quick brown fox jumps over the lazy dog " * 2 for _ in range(8)
    ]
    if rank == 2 and step == 30:
        rows[5] *= 10
    return rows


def main():
    pool = mp.get_context("spawn").Pool(2)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Embedding(VOCAB, 16), torch.nn.Linear(16, VOCAB)
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(300):
        ids = torch.tensor(  # HERE
            pool.map(tokenise, texts(rank, step), chunksize=2)  # HERE
        )
        logits = model(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    pool.close()
    pool.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
