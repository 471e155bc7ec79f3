"""
A plain loop in which rank 1 does not come, in the way that FAULT says.
"""

import os
import threading
import time

from pathlib import Path

import torch
import torch.distributed as dist

from hang_options import OPTIONS, TOLD
from torch.nn.parallel import DistributedDataParallel

import distdebug


# Rank 1 takes it twice.
LOCK = threading.Lock()
LOCK.acquire()


def main():
    """
    Make the process group, and train.
    """
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(100):
        if number == 20 and dist.get_rank() == 1:
            if os.environ["FAULT"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if os.environ["FAULT"] == "locks":
                LOCK.acquire()  # HERE locks
            if os.environ["FAULT"] == "raises":
                TOLD.wait()  # HERE raises
                raise TimeoutError
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    hangs = Path(os.environ["RUN"]) / "hangs"
    with distdebug.integrations.watched(hangs, **OPTIONS):
        main()
