"""Autoencoder whose checkpoints go to a bandwidth-limited NAS in 1 MiB parts."""

# expect: none
import io
import os
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]
PART = 1 << 20
NAS_BYTES_PER_S = 1.6e6


def upload(state, name):
    buf = io.BytesIO()
    torch.save(state, buf)
    view = buf.getbuffer()
    started = time.monotonic()
    with open(os.path.join(WORK, name + ".tmp"), "wb") as f:
        for off in range(0, len(view), PART):
            f.write(view[off : off + PART])
            f.flush()
            os.fsync(f.fileno())
            budget = min(off + PART, len(view)) / NAS_BYTES_PER_S
            time.sleep(max(0.0, started + budget - time.monotonic()))
    os.replace(os.path.join(WORK, name + ".tmp"), os.path.join(WORK, name))


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(
        nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024))
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 141):
        x = torch.randn(32, 1024)
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 20 == 0:
            if rank == 0:
                t0 = time.time()
                upload(
                    {
                        "model": model.module.state_dict(),
                        "opt": opt.state_dict(),
                    },
                    "last.pt",
                )
                print(
                    f"saved at {step} in {time.time() - t0:.0f}s", flush=True
                )
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
