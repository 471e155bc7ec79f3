"""
A loop in the shape of torchtitan's, in which rank 1 does not come, in the way
that FAULT says: FSDP over a device mesh, micro-batches, and a trainer.
"""

import os
import threading
import time

from pathlib import Path

import torch
import torch.distributed as dist

from hang_options import OPTIONS, TOLD
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import distdebug


# Rank 1 takes it twice.
LOCK = threading.Lock()
LOCK.acquire()


class Trainer:
    """
    What makes the process group, and trains.
    """

    def __init__(self):
        dist.init_process_group("gloo")
        mesh = init_device_mesh(
            "cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",)
        )
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        )
        for part in (*self.model, self.model):
            fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)

    def train_step(self, number):
        """
        Train on two micro-batches; a rank may have its own ideas.
        """
        self.optimizer.zero_grad()
        for _ in range(2):
            self.model(torch.randn(4, 4)).square().mean().backward()
        if number == 20 and dist.get_rank() == 1:
            if os.environ["FAULT"] == "sleeps":
                time.sleep(3600)  # HERE sleeps
            if os.environ["FAULT"] == "locks":
                LOCK.acquire()  # HERE locks
            if os.environ["FAULT"] == "raises":
                TOLD.wait()  # HERE raises
                raise TimeoutError
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def train(self):
        """
        Train for some steps.
        """
        for number in range(100):
            self.train_step(number)
        dist.destroy_process_group()


if __name__ == "__main__":
    hangs = Path(os.environ["RUN"]) / "hangs"
    with distdebug.integrations.watched(hangs, **OPTIONS):
        Trainer().train()
