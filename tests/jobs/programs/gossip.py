"""Decentralised SGD: local steps, then every rank averages its weights with its left neighbour."""

# expect: ranks 0 1 2; causes p2p_deadlock; line
from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left = (self.rank - 1) % self.world
        self.right = (self.rank + 1) % self.world

    def shift(self, vector):
        """Hand the vector to the right, return the one from the left."""
        incoming = torch.empty_like(vector)
        dist.recv(incoming, src=self.left)  # HERE
        dist.send(vector, dst=self.right)
        return incoming


def make_batch(gen):
    x = torch.randn(128, 30, generator=gen)
    return x, (x[:, :5].sum(1, keepdim=True) * x[:, 5:6]).tanh()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ring = Ring()
    gen = torch.Generator().manual_seed(ring.rank)
    model = nn.Sequential(
        nn.Linear(30, 256),
        nn.Tanh(),
        nn.Linear(256, 256),
        nn.Tanh(),
        nn.Linear(256, 1),
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 3001):
        x, y = make_batch(gen)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            stats = loss.detach().clone()
            dist.all_reduce(stats)
            if ring.rank == 0:
                print(
                    f"step {step} loss {stats.item() / ring.world:.4f}",
                    flush=True,
                )
        if step % 300 == 0:
            weights = parameters_to_vector(model.parameters()).detach()
            vector_to_parameters(
                (weights + ring.shift(weights)) / 2, model.parameters()
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
