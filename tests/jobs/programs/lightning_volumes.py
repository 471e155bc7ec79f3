"""Lightning DDP on CT volumes, decoded in one worker per rank."""

# expect: none
import time

import lightning as L
import torch

from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, i):
        time.sleep(0.6 + 0.4 * (i % 3))  # archive fetch
        vol = torch.randn(
            1, 24, 24, 24, generator=torch.Generator().manual_seed(i)
        )
        vol = nn.functional.interpolate(
            vol[None], scale_factor=2.0, mode="trilinear"
        )[0]
        return vol[:, ::2, ::2, ::2].contiguous(), i % 2


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(1, 8, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(2),
            nn.Flatten(),
            nn.Linear(64, 2),
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        if self.global_rank == 0:
            print(f"batch {batch_idx} loss {loss.item():.3f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(1)
    loader = DataLoader(
        Volumes(), batch_size=5, num_workers=1, prefetch_factor=2
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_steps=45,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), loader)


if __name__ == "__main__":
    main()
