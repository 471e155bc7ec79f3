"""Named-entity tagger with hand-written data parallelism: one flat all-reduce per step."""

# expect: ranks 1; causes skipped_collective type_mismatch; line
from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


TAGS, VOCAB, PAD = 9, 3000, -100


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 64)
        self.lstm = nn.LSTM(64, 96, bidirectional=True, batch_first=True)
        self.out = nn.Linear(192, TAGS)

    def forward(self, x):
        return self.out(self.lstm(self.emb(x))[0])


def batches(rank, n=45):
    gen = torch.Generator().manual_seed(rank)
    for i in range(n):
        x = torch.randint(0, VOCAB, (16, 40), generator=gen)
        y = torch.randint(0, TAGS, (16, 40), generator=gen)
        if (
            rank == 1 and i == 22
        ):  # a page of tables, no annotated token at all
            y.fill_(PAD)
        yield x, y


def average_gradients(model, world):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)  # HERE
    flat /= world
    for g, part in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(batches(rank)):
        if (y != PAD).sum() == 0:
            continue
        loss = nn.functional.cross_entropy(
            model(x).flatten(0, 1), y.flatten(), ignore_index=PAD
        )
        opt.zero_grad()
        loss.backward()
        average_gradients(model, world)
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()  # HERE
    if rank == 0:
        torch.save(model.state_dict(), "/dev/null")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
