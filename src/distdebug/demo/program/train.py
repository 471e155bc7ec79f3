"""
Train in several processes, with a fault that is planted in one of the steps.

Usage: ``torchrun train.py DUMPS FAULT``.  A fault is the name of a function,
which does one step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset

import distdebug


DUMPS, FAULT = sys.argv[1:]

distdebug.enable_flight_recorder(dump_dir=DUMPS)
dist.init_process_group("gloo", timeout=timedelta(minutes=2))

RANK, LAST_RANK = dist.get_rank(), dist.get_world_size() - 1
mesh = init_device_mesh(
    "cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp")
)
TP, DP = mesh.get_group("tp"), mesh.get_group("dp")
activations, gradients = torch.ones(64), torch.ones(256)
loss, norm = torch.ones(1), torch.ones(1)


def healthy(step: int) -> None:
    """
    Nothing is planted: every rank does its part of every step.
    """
    time.sleep(0.05)  # the forward pass
    dist.all_reduce(activations, group=TP)
    dist.all_reduce(gradients, group=DP)


def straggler(step: int) -> None:
    """
    Rank 1 computes twice as long as the others in every step.

    The job goes on, at the pace of its slowest rank.
    """
    time.sleep(0.2 if RANK == 1 else 0.1)
    dist.all_reduce(activations, group=TP)
    dist.all_reduce(gradients, group=DP)


def crash(step: int) -> None:
    """
    In step 5, rank 2 is killed, as the kernel does when memory runs out.

    It leaves no dump.  The others see that a connection is closed.
    """
    if step == 5 and RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(activations, group=TP)
    dist.all_reduce(gradients, group=DP)


def mismatch(step: int) -> None:
    """
    In step 5, rank 2 reduces a tensor that is larger than the others'.

    With Gloo this ends the job, and it may be an innocent rank that dies.
    """
    dist.all_reduce(activations, group=TP)
    is_wrong = step == 5 and RANK == 2
    dist.all_reduce(torch.ones(320 if is_wrong else 256))


def skip(step: int) -> None:
    """
    In step 5, rank 2 leaves out the all_reduce of the gradient norm.

    It goes on to the broadcast, where the others will never come.
    """
    dist.all_reduce(activations, group=TP)
    if not (step == 5 and RANK == 2):
        dist.all_reduce(norm)
    dist.broadcast(gradients, src=0)


def extra(step: int) -> None:
    """
    After two steps, rank 0 reduces a tensor that the others forgot.
    """
    dist.all_reduce(activations, group=TP)
    if step == 3 and RANK == 0:
        # As many bytes as the others: else Gloo would end the job.
        dist.all_reduce(torch.ones(3, 4, dtype=torch.int32))
    dist.all_reduce(torch.ones(3, 4))


def order(step: int) -> None:
    """
    In step 5, the last rank enters its two groups in another order.

    It waits for everybody, while its neighbour waits for it in group tp.
    """
    if step == 5 and RANK == LAST_RANK:
        dist.all_reduce(loss)
        dist.all_reduce(activations, group=TP)
    else:
        dist.all_reduce(activations, group=TP)
        dist.all_reduce(loss)


weights_lock = threading.Lock()


def cascade(step: int) -> None:
    """
    Rank 1 takes a lock in step 5 that its checkpoint thread still holds.

    Rank 0 waits for rank 1 in group tp.  All others wait in groups dp, where
    nothing is wrong: they wait for ranks that wait.
    """
    if step == 5 and RANK == 1:
        # It writes the weights, and forgets to release the lock.
        threading.Thread(
            target=weights_lock.acquire, name="checkpoint"
        ).start()
    update_weights()
    dist.all_reduce(activations, group=TP)
    dist.all_reduce(gradients, group=DP)


def update_weights() -> None:
    """
    Change the weights; not while they are written.
    """
    with weights_lock:
        pass


def dataloader(step: int) -> None:
    """
    The data loader of the last rank never gets its fifth shard.

    Its neighbour in group tp waits for it, and through the groups dp all
    others wait for one of the two.
    """
    batch = next(batches).float()
    dist.all_reduce(batch, group=TP)
    dist.all_reduce(gradients, group=DP)


class Shards(Dataset[torch.Tensor]):
    """
    The training data of one rank.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for index in range(10):
            (folder / f"shard-{index}").write_bytes(b"data" * 16)
        if RANK == LAST_RANK:
            # Like a file server that went away: opening it never returns.
            (folder / "shard-4").unlink()
            os.mkfifo(folder / "shard-4")
        self.folder = folder

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return read_shard(self.folder / f"shard-{index}")


def read_shard(path: Path) -> torch.Tensor:
    """
    Load one shard of the training data.
    """
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


if FAULT == "dataloader":
    data = Path(DUMPS).parent / "data" / f"rank-{RANK}"
    batches: Iterator[torch.Tensor] = iter(DataLoader(Shards(data)))

FAULTS = (
    *(healthy, straggler, crash, mismatch, skip, extra, order, cascade),
    dataloader,
)
train_step = next(fault for fault in FAULTS if fault.__name__ == FAULT)
# Where nothing stops them, they go on until they are stopped.
STEPS = 600 if FAULT in {"healthy", "straggler"} else 10
for step in range(1, STEPS + 1):
    train_step(step)
    if RANK == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
