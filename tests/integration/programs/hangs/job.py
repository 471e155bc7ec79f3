"""
A job of four ranks that hangs, or does not.

Run as ``job.py SCENARIO FOLDER``; ``ready RANK PID`` is printed by each rank
when the scenario has come about for it.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


WORLD_SIZE = 4
PATIENCE = timedelta(minutes=20)
FOLDER = Path(sys.argv[2])


def ready() -> None:
    """
    Report for duty.
    """
    print(f"ready {os.environ['RANK']} {os.getpid()}\n", end="", flush=True)


def reduce_gradients() -> None:
    """
    Meet the others.
    """
    dist.all_reduce(torch.ones(4))


def read_labels() -> None:
    """
    Read what never comes.
    """
    ready()
    (FOLDER / "labels").read_bytes()


def outlier(rank: int) -> None:
    """
    One rank reads, the others meet.
    """
    if rank == 3:
        os.mkfifo(FOLDER / "labels")
        read_labels()
    ready()
    reduce_gradients()


def log_metrics(rank: int) -> None:
    """
    Talk about it, at one rank.
    """
    if rank == 0:
        dist.barrier()


def mismatch(rank: int) -> None:
    """
    One rank is in another collective than the others.
    """
    ready()
    log_metrics(rank)
    reduce_gradients()


def crossed(rank: int) -> None:
    """
    Everybody receives first.
    """
    ready()
    dist.recv(torch.ones(4), src=(rank + 1) % WORLD_SIZE)


class Shards(Dataset[torch.Tensor]):
    """
    Data, of which one piece never comes.
    """

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            return self.read_shard()
        return torch.rand(32)

    def read_shard(self) -> torch.Tensor:
        """
        Read what never comes.
        """
        ready()
        (FOLDER / "shard").read_bytes()
        return torch.rand(32)


def loader(rank: int) -> None:
    """
    The worker of a data loader blocks at one rank.
    """
    os.environ["WORKER_OF"] = str(os.getpid())
    if rank == 1:
        os.mkfifo(FOLDER / "shard")
    else:
        ready()
    data = Shards(6 if rank == 1 else -1)
    for _ in DataLoader(data, batch_size=2, num_workers=1):
        reduce_gradients()


def backward(rank: int) -> None:
    """
    One rank does not run its backward pass.
    """
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    loss = model(torch.rand(2, 8)).sum()
    ready()
    if rank == 2:
        wait_for_user()
    loss.backward()


def wait_for_user() -> None:
    """
    Sleep for an hour.
    """
    time.sleep(3600)


def train_step(model: torch.nn.Module, batch: torch.Tensor) -> None:
    """
    Learn from a batch.
    """
    model.zero_grad()
    model(batch).square().mean().backward()


def augment(seconds: float) -> None:
    """
    Take some time.
    """
    time.sleep(seconds)


def healthy(rank: int) -> None:
    """
    Train, and get on.
    """
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Linear(256, 1))
    )
    for step, batch in enumerate(DataLoader(Shards(-1), batch_size=64)):
        train_step(model, batch)
        if step == 5:
            ready()


def straggler(rank: int) -> None:
    """
    Train, and always wait for one rank.
    """
    model = DistributedDataParallel(torch.nn.Linear(32, 1))
    for step in range(1_000_000):
        if rank == 3:
            # Long beside a step, also where the machine is busy; and steps end
            # half-way between two of the looks, which begin at a step's end.
            augment(1.15)
        train_step(model, torch.rand(8, 32))
        if step == 3:
            ready()


def checkpoint(rank: int) -> None:
    """
    One rank writes, and the others wait for it.
    """
    ready()
    if rank == 0:
        save_model()
    dist.barrier()


def save_model() -> None:
    """
    Write where nobody reads.
    """
    os.mkfifo(FOLDER / "model.pt")
    torch.save({"weight": torch.ones(8)}, str(FOLDER / "model.pt"))


def spin(rank: int) -> None:
    """
    One rank looks for something for ever.
    """
    ready()
    if rank == 1:
        pack_sequences()
    reduce_gradients()


def pack_sequences() -> None:
    """
    Never be done.
    """
    left = 1
    while left:
        left = (left * 5 + 3) % 65536 or 1
        if left < 0:
            break


def run(rank: int, scenario: Callable[[int], None]) -> None:
    """
    Be one rank.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    torch.set_num_threads(1)
    if scenario is rendezvous:
        ready()
    store = dist.FileStore(str(FOLDER / "store"), WORLD_SIZE)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=PATIENCE,
    )
    scenario(rank)
    time.sleep(3600)


def rendezvous(rank: int) -> None:
    """
    Never get here: one rank was not started.
    """
    raise AssertionError(rank)


if __name__ == "__main__":
    scenario = globals()[sys.argv[1]]
    count = WORLD_SIZE - 1 if scenario is rendezvous else WORLD_SIZE
    # Forked, so that torch is imported once, and what DDP imports as well.
    if scenario in {backward, healthy, straggler}:
        importlib.import_module("torch._dynamo")
    context = mp.get_context("fork")
    ranks = [
        context.Process(target=run, args=(rank, scenario))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
