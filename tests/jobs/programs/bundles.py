"""Packing a document collection with one background reader per rank while the model trains."""

# expect: ranks 1; causes future_wait; line
import random

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


class Packer:
    """Reads documents ahead of the training loop."""

    def __init__(self, rank, length=128):
        self.rng = random.Random(rank)
        self.rank, self.length = rank, length
        self.reader = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="reader"
        )

    def listing(self, index):
        """A document is a list of tokens; every so often a site ships an archive of several documents."""
        if self.rank == 1 and index == 25:
            return {"archive": [index * 100 + i for i in range(4)]}
        return {
            "tokens": [self.rng.randrange(500) for _ in range(self.length * 2)]
        }

    def read(self, index):
        doc = self.listing(index)
        if "archive" in doc:
            parts = [self.reader.submit(self.read, i) for i in doc["archive"]]
            tokens = []
            for part in parts:
                tokens.extend(part.result()[:50])  # HERE
            return tokens
        return doc["tokens"]

    def request(self, index):
        return self.reader.submit(self.read, index)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    rank = dist.get_rank()
    packer = Packer(rank)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Embedding(500, 64),
            torch.nn.Linear(64, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 500),
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ahead = packer.request(0)
    for step in range(400):
        doc = torch.tensor(ahead.result())
        ahead = packer.request(step + 1)
        logits = model(doc[:-1])
        loss = torch.nn.functional.cross_entropy(logits, doc[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
