"""Tiny image segmentation with accelerate and IoU reports at the end of every epoch."""

# expect: ranks 0; causes extra_collective type_mismatch; line
import time

from datetime import timedelta

import torch

from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, Dataset


torch.set_num_threads(1)


class Blobs(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        cx, cy, r = (torch.rand(3, generator=g) * 10 + 3).tolist()
        yy, xx = torch.meshgrid(
            torch.arange(16.0), torch.arange(16.0), indexing="ij"
        )
        mask = ((xx - cx) ** 2 + (yy - cy) ** 2 < r * 2).float()
        return mask[None] + 0.3 * torch.randn(1, 16, 16, generator=g), mask


def unet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 1, 1),
    )


def iou(pred, mask):
    p, m = pred > 0, mask > 0.5
    return (
        (p & m).flatten(1).sum(1) / ((p | m).flatten(1).sum(1) + 1e-6)
    ).float()


def validate(acc, model, loader):
    model.eval()
    parts = []
    with torch.no_grad():
        for x, m in loader:
            parts.append(iou(acc.unwrap_model(model)(x).squeeze(1), m))
    model.train()
    return torch.cat(parts)


def report(acc, epoch, scores, loss):
    if acc.is_main_process:
        mean = scores.mean().item()
        line = f"epoch {epoch} loss {loss:.4f} mIoU {mean:.4f}"
        if epoch and epoch % 2 == 0:
            every = acc.gather_for_metrics(scores)  # HERE
            line += f" worst {every.min().item():.4f} of {len(every)}"
        print(line, flush=True)


def main():
    acc = Accelerator(
        cpu=True,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(minutes=30))
        ],
    )
    train = DataLoader(Blobs(450, 0), batch_size=5, shuffle=True)
    val = DataLoader(Blobs(60, 9000), batch_size=5)
    model = unet()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    model, opt, train, val = acc.prepare(model, opt, train, val)
    for epoch in range(60):
        for x, m in train:
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(x).squeeze(1), m
            )
            opt.zero_grad()
            acc.backward(loss)
            opt.step()
            time.sleep(0.08)
        scores = validate(acc, model, val)
        report(acc, epoch, scores, loss.item())
    acc.end_training()


if __name__ == "__main__":
    main()
