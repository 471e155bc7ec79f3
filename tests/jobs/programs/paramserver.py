"""Asynchronous SGD: rank 0 keeps the weights, the other ranks push gradients and pull weights."""

# expect: none
from datetime import timedelta

import torch
import torch.distributed as dist

from torch.nn.utils import parameters_to_vector, vector_to_parameters


PUSHES = 2400


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 20),
    )


def serve(workers):
    weights = parameters_to_vector(make_model().parameters()).detach()
    momentum = torch.zeros_like(weights)
    grad = torch.empty_like(weights)
    for push in range(PUSHES * workers):
        worker = dist.recv(grad)
        momentum.mul_(0.9).add_(grad)
        weights.add_(momentum, alpha=-0.01 / workers)
        dist.send(weights, dst=worker)
        if push % 100 == 0:
            print(
                f"[server] {push} pushes, |w| = {weights.norm():.3f}",
                flush=True,
            )


def work(rank):
    model = make_model()
    gen = torch.Generator().manual_seed(rank)
    side = 56 if rank == 1 else 80  # the second site has the larger pictures
    for step in range(PUSHES):
        x = torch.randn(24, 3, side, side, generator=gen)
        y = torch.randint(0, 20, (24,), generator=gen)
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        flat = parameters_to_vector([p.grad for p in model.parameters()])
        dist.send(flat, dst=0)
        dist.recv(flat, src=0)
        vector_to_parameters(flat, model.parameters())
        if step % 50 == 0:
            print(
                f"[worker {rank}] step {step} loss {loss.item():.3f}",
                flush=True,
            )


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    rank = dist.get_rank()
    if rank == 0:
        serve(dist.get_world_size() - 1)
    else:
        work(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
