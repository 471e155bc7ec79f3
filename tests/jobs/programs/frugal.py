"""Training on shared workstations: a rank parks itself when its owner needs the memory."""

# expect: ranks 2; causes stopped; noline
import os
import signal

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


LIMIT_MB = int(os.environ.get("RSS_LIMIT_MB", "2500"))


def resident_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


class Guard:
    """Parks the process over the limit; `fg` or `kill -CONT` by the owner lets it go on."""

    def __init__(self, rank, limit):
        self.rank, self.limit = rank, limit

    def check(self, step):
        if resident_mb() > self.limit:
            print(
                f"[rank {self.rank}] step {step}: over {self.limit} MB, parked",
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGSTOP)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(
        nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = Guard(
        rank,
        resident_mb() + 300 if "RSS_LIMIT_MB" not in os.environ else LIMIT_MB,
    )
    replay = []
    for step in range(5000):
        guard.check(step)
        width = (
            2000 if rank == 2 else 16
        )  # the third site records at full rate
        x = torch.randn(width, 128)
        replay.append(x)
        replay = replay[-1000:]
        batch = torch.cat(replay[-2:])[-64:]
        loss = nn.functional.mse_loss(model(batch), batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 and rank == 0:
            print(
                f"step {step} loss {loss.item():.4f} rss {resident_mb()} MB",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
