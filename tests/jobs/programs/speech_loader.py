"""Keyword-spotting model, clips decoded in DataLoader workers, usage stats on rank 0."""

# expect: ranks 0; causes dataloader_wait lock_deadlock; line
import os
import threading
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


stats_lock = threading.Lock()
stats = {"clips": 0, "seconds": 0.0}


def publish_stats(path):
    while True:
        with stats_lock:
            with open(path, "a") as f:
                for key, value in stats.items():
                    f.write(f"{time.time():.0f} {key} {value}\n")
                    f.flush()
                    os.fsync(f.fileno())
                    time.sleep(0.4)
        time.sleep(0.02)


class Clips(Dataset):
    def __len__(self):
        return 1800

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        wave = torch.randn(800, generator=g)
        with stats_lock:  # HERE
            stats["clips"] += 1
            stats["seconds"] += 0.05
        return wave, i % 10


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    rank = dist.get_rank()
    ds = Clips()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=30, sampler=sampler, num_workers=2)
    model = DDP(
        nn.Sequential(nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))
    )
    opt = torch.optim.AdamW(model.parameters())
    if rank == 0:
        path = os.path.join(os.environ["WORK"], "usage.txt")
        threading.Thread(
            target=publish_stats, args=(path,), daemon=True
        ).start()
        time.sleep(0.1)
    for epoch in range(50):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):  # HERE
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and step % 5 == 0:
                print(
                    f"epoch {epoch} step {step} loss {loss.item():.3f}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
