"""Lightning module that saves its best weights itself."""

# expect: ranks 0; causes extra_collective type_mismatch size_mismatch rank_not_arrived collective_wait checkpointing; line
import lightning as L
import torch

from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
        self.best = float("inf")

    def training_step(self, batch, idx):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def on_train_batch_end(self, outputs, batch, idx):
        if idx % 30 != 29 or self.global_rank != 0:
            return
        loss = outputs["loss"].item()
        if loss < self.best:
            self.best = loss
            self.trainer.save_checkpoint("/tmp/lit_best.ckpt")  # HERE

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(3)
    x = torch.randn(6000, 16)
    loader = DataLoader(
        TensorDataset(x, x.mean(1, keepdim=True)), batch_size=10, shuffle=True
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), loader)  # HERE


if __name__ == "__main__":
    main()
