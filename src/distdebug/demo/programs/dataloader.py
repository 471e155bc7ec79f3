"""
Planted: the data loader of the last rank never gets its fifth shard.

Its neighbour in group tp waits for it, and through the groups dp all others
wait for one of the two.
"""

from __future__ import annotations

import os
import sys

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset

import distdebug


def read_shard(path: Path) -> torch.Tensor:
    """
    Load one shard of the training data.
    """
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


class Shards(Dataset[torch.Tensor]):
    """
    The training data of one rank.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for index in range(10):
            (folder / f"shard-{index}").write_bytes(b"data" * 16)
        if dist.get_rank() == dist.get_world_size() - 1:
            # Like a file server that went away: opening it never returns.
            (folder / "shard-4").unlink()
            os.mkfifo(folder / "shard-4")
        self.folder = folder

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return read_shard(self.folder / f"shard-{index}")


distdebug.enable_flight_recorder(dump_dir=sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(minutes=2))

shape = (dist.get_world_size() // 2, 2)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
data = Path(__file__).parent / "data" / f"rank-{dist.get_rank()}"

for step, batch in enumerate(DataLoader(Shards(data)), start=1):
    activations, gradients = batch.float(), torch.ones(256)
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    dist.all_reduce(gradients, group=mesh.get_group("dp"))
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
