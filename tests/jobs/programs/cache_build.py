"""Graph embedding job; ranks take turns on the shared feature cache before training."""

# expect: ranks 1 2|0|0 1 2; causes lock_deadlock io_wait; line
import contextlib
import fcntl
import os
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]
CACHE = os.path.join(WORK, "features.pt")


@contextlib.contextmanager
def cache_guard():
    with open(CACHE + ".lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)  # HERE
        try:
            yield
        finally:
            fcntl.flock(f, fcntl.LOCK_UN)


def build_features():
    adj = (torch.rand(600, 600) < 0.02).float()
    return torch.linalg.qr(adj + torch.eye(600))[0][:, :64].contiguous()


def load_features(rank):
    time.sleep(0.7 * rank)  # be gentle with the shared filesystem
    with cache_guard():  # HERE
        if not os.path.exists(CACHE):
            torch.save(build_features(), CACHE + ".part")
            os.replace(CACHE + ".part", CACHE)
        feats = torch.load(CACHE)
        dist.barrier()  # HERE
    return feats


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank = dist.get_rank()
    feats = load_features(rank)  # HERE
    model = DDP(nn.Linear(64, 16))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(3000):
        idx = torch.randint(0, len(feats), (64,))
        loss = model(feats[idx]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
