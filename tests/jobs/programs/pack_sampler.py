"""DDP language model on sequences packed to a token budget."""

# expect: ranks 0; causes python_loop dataloader_wait; line
import random

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


BUDGET = 128


def load_docs(rank, n=60):
    rng = random.Random(rank)
    docs = [
        [rng.randrange(100) for _ in range(rng.randint(20, 60))]
        for _ in range(n)
    ]
    if rank == 0:
        docs[40:] = [[] for _ in docs[40:]]
    return docs


def pack(docs):
    i = 0
    while True:
        out = []
        while len(out) < BUDGET:  # HERE
            doc = docs[i]  # HERE
            out.extend(doc[: BUDGET - len(out)])  # HERE
            i = i + 1 if i + 1 < len(docs) else 40  # HERE
        yield torch.tensor(out)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100)
        )
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = pack(load_docs(rank))
    for step in range(500):
        ids = next(batches)  # HERE
        loss = torch.nn.functional.cross_entropy(model(ids[:-1]), ids[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
