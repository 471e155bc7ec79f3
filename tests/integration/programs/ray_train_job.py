"""
A job of Ray Train in which rank 1 does not come, in the way that FAULT says.
"""

import os
import threading
import time

import ray
import torch
import torch.distributed as dist

from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from distdebug.integrations.ray_train import (
    HangCallback,
    RecordedTorchConfig,
    watched_loop,
)


HANGS = f"{os.environ['RUN']}/hangs"


def train_loop(config):
    """
    Train; a rank may have its own ideas.
    """
    lock = threading.Lock()
    lock.acquire()
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(100):
        if number == 20 and dist.get_rank() == 1:
            if config["fault"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if config["fault"] == "locks":
                lock.acquire()  # HERE locks
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()


def main():
    """
    Start a cluster of one node, and train on it.
    """
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        runtime_env={
            "env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        },
    )
    TorchTrainer(
        watched_loop(train_loop, HANGS, floor_s=4.0, start_s=60.0, poll_s=0.5),
        train_loop_config={"fault": os.environ["FAULT"]},
        torch_config=RecordedTorchConfig(dump_dir=os.environ["DUMPS"]),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=os.environ["RUN"], callbacks=[HangCallback(HANGS)]
        ),
    ).fit()


if __name__ == "__main__":
    main()
