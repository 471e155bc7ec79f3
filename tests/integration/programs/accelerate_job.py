"""
A job of Accelerate in which rank 1 does not come, in the way that FAULT says.
"""

import os
import threading
import time

import torch

from hang_options import OPTIONS, TOLD
from torch.utils.data import DataLoader, TensorDataset

from distdebug.integrations.accelerate import WatchedAccelerator


# Rank 1 takes it twice.
LOCK = threading.Lock()
LOCK.acquire()


def main():
    """
    Train.
    """
    accelerator = WatchedAccelerator(
        cpu=True,
        project_dir=os.environ["RUN"],
        watch_options=OPTIONS,
    )
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(400, 4)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, (x,) in enumerate(loader):
        if number == 20 and accelerator.process_index == 1:
            if os.environ["FAULT"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if os.environ["FAULT"] == "locks":
                LOCK.acquire()  # HERE locks
            if os.environ["FAULT"] == "raises":
                TOLD.wait()  # HERE raises
                raise TimeoutError
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
    accelerator.end_training()


if __name__ == "__main__":
    main()
