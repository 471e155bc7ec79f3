"""
A job of Lightning in which rank 1 does not come, in the way that FAULT says.
"""

import os
import threading
import time

import lightning
import torch

from hang_options import OPTIONS, TOLD
from torch.utils.data import DataLoader, TensorDataset

from distdebug.integrations.lightning import HangCallback


# Rank 1 takes it twice.
LOCK = threading.Lock()
LOCK.acquire()


class Model(lightning.LightningModule):
    """
    A layer.
    """

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        """
        Return the loss; a rank may have its own ideas.
        """
        if number == 20 and self.global_rank == 1:
            if os.environ["FAULT"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if os.environ["FAULT"] == "locks":
                LOCK.acquire()  # HERE locks
            if os.environ["FAULT"] == "raises":
                TOLD.wait()  # HERE raises
                raise TimeoutError
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        """
        Return the optimizer.
        """
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    """
    Train.
    """
    hangs = HangCallback(**OPTIONS)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        callbacks=[hangs],
        default_root_dir=os.environ["RUN"],
        enable_progress_bar=False,
        logger=False,
    )
    data = TensorDataset(torch.randn(400, 4))
    trainer.fit(Model(), DataLoader(data, batch_size=4))


if __name__ == "__main__":
    main()
