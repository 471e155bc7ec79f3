"""Small image classifier with Accelerate, a checkpoint after every epoch."""

# expect: ranks 0; causes extra_collective type_mismatch; line
import os

from datetime import timedelta

import torch

from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


WORK = os.environ["WORK"]


def save_checkpoint(accelerator, model, epoch):
    state = accelerator.unwrap_model(model).state_dict()
    torch.save(state, os.path.join(WORK, f"epoch{epoch}.pt"))
    accelerator.print(f"epoch {epoch} saved")
    accelerator.wait_for_everyone()  # HERE


def main():
    accelerator = Accelerator(
        cpu=True,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(minutes=30))
        ],
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(
        torch.randn(960, 3, 24, 24), torch.randint(0, 10, (960,))
    )
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    best = float("inf")
    for epoch in range(20):
        total = torch.zeros(1)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            total += loss.detach()
        mean = accelerator.reduce(total, reduction="mean").item() / len(loader)
        if mean < best and accelerator.is_main_process:
            best = mean
            save_checkpoint(accelerator, model, epoch)
        accelerator.wait_for_everyone()  # HERE
        accelerator.print(f"epoch {epoch} loss {mean:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
