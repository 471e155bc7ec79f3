"""Spot-instance training: a snapshot is written when the scheduler gives notice with SIGUSR1."""

# expect: ranks 1; causes lock_deadlock future_wait; line
import os
import signal
import threading

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]


class Snapshotter:
    """Keeps the weights of the last complete step on disk when notice is given."""

    def __init__(self, model, rank):
        self.model, self.rank = model, rank
        self.step_done = threading.Event()
        signal.signal(signal.SIGUSR1, self.on_notice)

    def on_notice(self, signum, frame):
        print(
            f"[rank {self.rank}] notice received, snapshot after this step",
            flush=True,
        )
        self.step_done.clear()
        self.step_done.wait()  # HERE
        torch.save(
            self.model.state_dict(),
            os.path.join(WORK, f"snapshot{self.rank}.pt"),
        )


def scheduler_notice(rank):
    """The cluster agent on a node that is about to be reclaimed."""
    if rank == int(os.environ.get("RECLAIMED_NODE", "1")):
        agent = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGUSR1))
        agent.daemon = True
        agent.start()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    rank = dist.get_rank()
    gen = torch.Generator().manual_seed(rank)
    model = DDP(
        nn.Sequential(
            nn.Linear(64, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 8),
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    snapshots = Snapshotter(model.module, rank)
    scheduler_notice(rank)
    for step in range(20_000):
        x = torch.randn(64, 64, generator=gen)
        y = torch.randint(0, 8, (64,), generator=gen)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        snapshots.step_done.set()
        if step % 100 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
