"""Partitioned graph network: halo exchange every layer, node migration once per epoch."""

# expect: ranks 0 1 2; causes p2p_deadlock; line
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


torch.set_num_threads(1)
N, F, HALO = 120, 12, 10


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_lin = nn.Linear(F, F)
        self.neigh = nn.Linear(F, F)

    def forward(self, h, left, right):
        padded = torch.cat([left, h, right])
        agg = (
            padded[HALO - 1 : -HALO - 1]
            + padded[HALO + 1 : padded.shape[0] - HALO + 1]
        ) / 2
        return torch.relu(self.self_lin(h) + self.neigh(agg))


class Partition:
    def __init__(self, rank, world):
        self.prev, self.next = (rank - 1) % world, (rank + 1) % world
        g = torch.Generator().manual_seed(rank)
        self.x = torch.randn(N, F, generator=g)
        self.y = (self.x.sum(1) > 0).long()

    def halos(self, h, tag):
        left, right = torch.empty(HALO, F), torch.empty(HALO, F)
        h = h.detach()
        work = [
            dist.irecv(left, src=self.prev, tag=tag),
            dist.irecv(right, src=self.next, tag=tag + 1),
            dist.isend(h[-HALO:].contiguous(), dst=self.next, tag=tag),
            dist.isend(h[:HALO].contiguous(), dst=self.prev, tag=tag + 1),
        ]
        for w in work:
            w.wait()
        return left, right

    def migrate(self, count):
        """Shifts the first `count` nodes of every partition on to the next one."""
        incoming = torch.empty(count, F + 1)
        outgoing = torch.cat([self.x[:count], self.y[:count, None].float()], 1)
        dist.recv(incoming, src=self.prev, tag=7)  # HERE
        dist.send(outgoing, dst=self.next, tag=7)  # HERE
        self.x = torch.cat([self.x[count:], incoming[:, :F]])
        self.y = torch.cat([self.y[count:], incoming[:, F].long()])


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.ModuleList([Layer(), Layer()])
    head = nn.Linear(F, 2)
    params = list(layers.parameters()) + list(head.parameters())
    opt = torch.optim.Adam(params, 5e-3)
    part = Partition(rank, world)
    for epoch in range(200):
        for step in range(60):
            h = part.x
            for k, layer in enumerate(layers):
                left, right = part.halos(h, 100 + 10 * k)
                h = layer(h, left, right)
            loss = nn.functional.cross_entropy(head(h), part.y)
            opt.zero_grad()
            loss.backward()
            for p in params:
                dist.all_reduce(p.grad)
                p.grad /= world
            opt.step()
            time.sleep(0.1)
            if step % 20 == 0:
                print(
                    f"[{rank}] epoch {epoch} step {step} loss {loss.item():.3f}",
                    flush=True,
                )
        part.migrate(16)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
