"""Accelerate training with a long evaluation on all processes."""

# expect: none
import time

import torch

from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def evaluate(accelerator, model, seconds=30):
    model.eval()
    end, n, total = time.time() + seconds, 0, 0.0
    while time.time() < end:
        x = torch.randn(256, 64)
        total += (model(x) - x.mean(1, keepdim=True)).pow(2).mean().item()
        n += 1
    model.train()
    return accelerator.reduce(torch.tensor(total / n), "mean").item()


def main():
    accelerator = Accelerator(cpu=True)
    data = TensorDataset(torch.randn(1200, 64))
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)
    )
    opt = torch.optim.AdamW(model.parameters())
    model, opt, loader = accelerator.prepare(
        model, opt, DataLoader(data, batch_size=8, shuffle=True)
    )
    for epoch in range(6):
        for (x,) in loader:
            loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        score = evaluate(accelerator, model)
        accelerator.print(f"epoch {epoch} eval {score:.5f}", flush=True)


if __name__ == "__main__":
    main()
