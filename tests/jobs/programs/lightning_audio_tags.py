"""Lightning audio tagger that decodes its clips from long recordings in a worker."""

# expect: none
import time

from datetime import timedelta

import lightning as L
import torch

from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, Dataset


torch.set_num_threads(1)


class Recordings(Dataset):
    """Each clip has to be sought and decoded; concert recordings take longer."""

    def __init__(self, n=1200):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(2.4 if i % 11 == 0 else 0.45)
        g = torch.Generator().manual_seed(i)
        wave = torch.randn(1, 400, generator=g)
        return wave, (wave.abs().mean(1) > 0.8).float()


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 6, 25, 10),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6 * 38, 1),
        )

    def training_step(self, batch, idx):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
        print(
            f"[{self.global_rank}] batch {idx} loss {loss.item():.3f}",
            flush=True,
        )
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


def main():
    L.seed_everything(0)
    loader = DataLoader(
        Recordings(),
        batch_size=8,
        shuffle=True,
        num_workers=1,
        prefetch_factor=2,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        max_epochs=1,
        max_steps=45,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy=DDPStrategy(
            process_group_backend="gloo", timeout=timedelta(minutes=30)
        ),
    )
    trainer.fit(Tagger(), loader)


if __name__ == "__main__":
    main()
