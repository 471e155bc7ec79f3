"""Low-rank gradient projection (GaLore style); the layer's owner rank recomputes the basis."""

# expect: none
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


DIM = 5200
RANK = 64
N_LAYERS = 3


def new_basis(grad):
    u, _, _ = torch.linalg.svd(grad, full_matrices=False)
    return u[:, :RANK].contiguous()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.ModuleList(
        nn.Linear(DIM, DIM, bias=False) for _ in range(N_LAYERS)
    )
    bases = [torch.zeros(DIM, RANK) for _ in range(N_LAYERS)]
    torch.manual_seed(10 + rank)
    refresh_every = 3
    for step in range(60):
        t0 = time.time()
        x = torch.randn(8, DIM)
        h = x
        for layer in layers:
            h = torch.tanh(layer(h))
        loss = (h - x).pow(2).mean()
        loss.backward()
        for i, layer in enumerate(layers):
            grad = layer.weight.grad
            if (
                step % refresh_every == 0
                and i == (step // refresh_every) % N_LAYERS
            ):
                full = grad.clone()
                dist.all_reduce(full)
                owner = i % world
                if rank == owner:
                    bases[i].copy_(new_basis(full))
                dist.broadcast(bases[i], src=owner)
            low = bases[i].T @ grad
            dist.all_reduce(low)
            with torch.no_grad():
                layer.weight -= 0.01 * (bases[i] @ low) / world
            layer.weight.grad = None
        print(
            f"[{rank}] step {step} loss {loss.item():.4f} took {time.time() - t0:.1f}s",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
