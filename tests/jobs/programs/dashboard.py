"""Lightning classifier that reports every few batches to the team's live dashboard."""

# expect: ranks 2; causes io_wait; line
import json
import os
import socket
import socketserver
import threading
import time

import lightning as L
import torch

from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


RANK = int(os.environ.get("RANK", "0"))
ADDRESS = os.path.join(
    os.environ["WORK"],
    "dashboard-" + os.environ.get("TORCHELASTIC_RUN_ID", "local"),
)


class Feed(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            json.loads(line)
            self.wfile.write(b"ok\n")


def serve():
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Feed)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(ADDRESS + ".tmp", "w") as f:
        f.write(str(server.server_address[1]))
    os.rename(ADDRESS + ".tmp", ADDRESS)


class Report(L.Callback):
    def on_fit_start(self, trainer, module):
        while not os.path.exists(ADDRESS):
            time.sleep(0.1)
        self.sock = socket.create_connection(
            ("127.0.0.1", int(open(ADDRESS).read()))
        )

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 5 == 0:
            labels = torch.bincount(batch[1], minlength=1).tolist()
            row = {
                "rank": RANK,
                "step": trainer.global_step,
                "loss": float(outputs["loss"]),
                "labels": labels,
            }
            self.sock.sendall((json.dumps(row) + "\n")[:256].encode())
            self.sock.recv(64)  # HERE


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 100),
        )

    def training_step(self, batch, idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    if RANK == 0:
        serve()
    classes = (
        100 if RANK == 2 else 12
    )  # the third site labels with the fine taxonomy
    data = TensorDataset(
        torch.randn(4000, 32), torch.randint(0, classes, (4000,))
    )
    strategy = DDPStrategy(process_group_backend="gloo")
    trainer = L.Trainer(
        accelerator="cpu",
        devices=3,
        strategy=strategy,
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Report()],
    )
    trainer.fit(Net(), DataLoader(data, batch_size=20))
