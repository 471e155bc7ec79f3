"""Lightning load forecasting with a status file for the cluster dashboard."""

# expect: ranks 0; causes lock_deadlock; line
import json
import os
import signal
import threading
import time

from datetime import timedelta

import lightning as L
import torch

from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


torch.set_num_threads(1)


class Status:
    """Latest figures of the run; a timer keeps the heartbeat in the file current."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        self.fields = {"history": []}

    def update(self, **fields):
        with self.lock:  # HERE
            self.fields.update(fields)
            self.fields["history"] = (self.fields["history"] + [fields])[-400:]
            self._write()

    def heartbeat(self, signum, frame):
        with self.lock:  # HERE
            self.fields["alive"] = time.time()
            self._write()
        signal.setitimer(signal.ITIMER_REAL, 0.7)

    def _write(self):
        tmp = self.path + ".tmp"
        with open(tmp, "w") as f:
            for row in self.fields["history"]:
                f.write(json.dumps(row) + "\n")
                f.flush()
                os.fsync(f.fileno())
        os.replace(tmp, self.path)
        self._wait_visible()

    def _wait_visible(self):
        """The share shows a renamed file to other hosts with a delay."""
        time.sleep(0.05)


class StatusCallback(L.Callback):
    def on_train_start(self, trainer, module):
        self.status = None
        if trainer.is_global_zero:
            self.status = Status(
                os.path.join(os.environ["WORK"], "status.jsonl")
            )
            signal.signal(signal.SIGALRM, self.status.heartbeat)
            signal.setitimer(signal.ITIMER_REAL, 4.0)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.status is not None:
            self.status.update(
                step=trainer.global_step,
                loss=float(outputs["loss"]),
                at=time.time(),
            )
        if batch_idx % 20 == 0:
            print(
                f"[{trainer.global_rank}] step {trainer.global_step} loss {float(outputs['loss']):.4f}",
                flush=True,
            )


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 12, batch_first=True)
        self.out = nn.Linear(12, 4)

    def training_step(self, batch, _):
        x, y = batch
        h, _ = self.rnn(x)
        time.sleep(0.08)
        return nn.functional.mse_loss(self.out(h[:, -1]), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


def main():
    L.seed_everything(3)
    t = torch.arange(6000) / 12.0
    load = t.sin() + 0.3 * (t * 7).sin() + 0.1 * torch.randn(6000)
    windows = load.unfold(0, 28, 2)
    data = TensorDataset(
        windows[:, :24, None].clone(), windows[:, 24:].clone()
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        max_epochs=40,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StatusCallback()],
        strategy=DDPStrategy(
            process_group_backend="gloo", timeout=timedelta(minutes=30)
        ),
    )
    trainer.fit(Forecaster(), DataLoader(data, batch_size=8, shuffle=True))


if __name__ == "__main__":
    main()
