"""DDP training with a guard that pauses the process when it uses too much memory."""

# expect: ranks 2; causes stopped; noline
import os
import resource
import signal
import threading
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def guard(limit_mib):
    while True:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if used > limit_mib:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    limit = {0: 8000, 1: 8000, 2: 700}[rank]
    threading.Thread(target=guard, args=(limit,), daemon=True).start()
    data = TensorDataset(torch.randn(30000, 64), torch.randn(30000, 1))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
        )
    )
    opt = torch.optim.Adam(model.parameters())
    history = []
    for epoch in range(200):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            history.append(torch.ones(1 << 18))
            history = history[-600:]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
