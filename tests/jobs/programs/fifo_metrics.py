"""DDP regression that publishes its loss to a local metrics agent."""

# expect: ranks 2; causes io_wait; line
import os
import tempfile

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def publish(path, step, loss):
    if not os.path.exists(path):
        os.mkfifo(path)
    with open(path, "w") as f:  # HERE
        f.write(f"{step} {loss:.5f}\n")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(4000, 16), torch.randn(4000, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
    )
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    path = os.path.join(tempfile.gettempdir(), f"agent-{os.getpid()}.pipe")
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 49 and rank == world - 1:
            publish(path, step, loss.item())  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
