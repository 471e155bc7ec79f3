"""Lightning text model with a light cleaning step in the collate function."""

# expect: ranks 1; causes native_spin python_loop dataloader_wait gil_contention; line
import re

import lightning as L
import torch

from torch.utils.data import DataLoader, DistributedSampler


EMAIL = re.compile(r"^([a-z0-9]+[._]?)+@[a-z]+\.com$")


def corpus():
    texts = [f"user{i}@mail.com" for i in range(1200)]
    texts[301] = "x1y2z3" * 9 + "!"
    return list(enumerate(texts))


def collate(rows):
    feats = []
    for i, text in rows:
        ok = EMAIL.match(text) is not None  # HERE
        feats.append([float(ok), len(text) / 50, i / 1200])
    return torch.tensor(feats)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, idx):
        return (self.net(batch) - batch[:, 1:2]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    data = corpus()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    sampler = DistributedSampler(
        data, num_replicas=3, rank=trainer.global_rank, shuffle=False
    )
    trainer.fit(  # HERE
        Net(),
        DataLoader(data, batch_size=4, sampler=sampler, collate_fn=collate),
    )


if __name__ == "__main__":
    main()
