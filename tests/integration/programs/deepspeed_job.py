"""
A job of DeepSpeed in which rank 1 does not come, in the way that FAULT says.
"""

import os
import threading
import time

from pathlib import Path

import deepspeed
import torch

from hang_options import OPTIONS, TOLD

import distdebug


# Rank 1 takes it twice.
LOCK = threading.Lock()
LOCK.acquire()
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main():
    """
    Make the process group, and train.
    """
    deepspeed.init_distributed("gloo")
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    for number in range(100):
        if number == 20 and engine.global_rank == 1:
            if os.environ["FAULT"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if os.environ["FAULT"] == "locks":
                LOCK.acquire()  # HERE locks
            if os.environ["FAULT"] == "raises":
                TOLD.wait()  # HERE raises
                raise TimeoutError
        engine.backward(engine(torch.randn(4, 4)).square().mean())
        engine.step()


if __name__ == "__main__":
    hangs = Path(os.environ["RUN"]) / "hangs"
    with distdebug.integrations.watched(hangs, **OPTIONS):
        main()
