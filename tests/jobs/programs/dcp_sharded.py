"""Sharded MLP saved with torch.distributed.checkpoint onto a rate-limited mount."""

# expect: none
import os
import time

from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from torch import nn
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemWriter,
)


WORK = os.environ["WORK"]


class MountStream:
    def __init__(self, raw, rate):
        self.raw, self.rate = raw, rate

    def write(self, data):
        view = memoryview(data).cast("B")
        for off in range(0, len(view), 1 << 18):
            n = self.raw.write(view[off : off + (1 << 18)])
            time.sleep(n / self.rate)
        return len(view)

    def __getattr__(self, name):
        return getattr(self.raw, name)


class Mount(FileSystem):
    @contextmanager
    def create_stream(self, path, mode):
        with super().create_stream(path, mode) as raw:
            yield MountStream(raw, 0.9e6) if "w" in mode else raw


class MountWriter(FileSystemWriter):
    def __init__(self, path):
        super().__init__(path, single_file_per_rank=False, overwrite=True)
        self.fs = Mount()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    body = nn.ModuleList(nn.Linear(768, 768) for _ in range(8 + 4 * rank))
    opt = torch.optim.SGD(body.parameters(), lr=0.01)
    for step in range(1, 121):
        loss = nn.Sequential(*body)(torch.randn(16, 768)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {mean.item():.4f}", flush=True)
        if step % 15 == 0:
            state = {
                f"stage{rank}.{k}": v for k, v in body.state_dict().items()
            }
            dcp.save(state, storage_writer=MountWriter(f"{WORK}/step{step}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
