"""FSDP2 training of a small MLP that logs the gradient norm."""

# expect: ranks 0; causes extra_collective type_mismatch size_mismatch rank_not_arrived collective_wait; line
import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(width=96, depth=3):
    layers = [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU())
        for _ in range(depth)
    ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))


def grad_norm(model):
    norm = torch.nn.utils.get_total_norm(  # HERE
        [p.grad for p in model.parameters()]
    )
    return norm.full_tensor().item()  # HERE


def main():
    mesh = init_device_mesh("cpu", (3,))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = build()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(300):
        x = torch.randn(16, 96, generator=g)
        loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        loss.backward()
        if rank == 0 and step % 25 == 24:
            print(  # HERE
                f"step {step} loss {loss.item():.4f} gnorm {grad_norm(model):.4f}",
                flush=True,
            )
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
