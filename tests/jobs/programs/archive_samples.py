"""Denoiser that archives its sample dumps with tar/xz after every round."""

# expect: none
import os
import shutil
import subprocess
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]


def dump_samples(model, folder, rank):
    os.makedirs(folder, exist_ok=True)
    with torch.no_grad():
        for i in range(4):
            out = model(torch.randn(4096, 128))
            with open(f"{folder}/r{rank}-{i}.txt", "w") as f:
                f.writelines(
                    " ".join(f"{v:.4f}" for v in row) + "\n"
                    for row in out.tolist()
                )


def archive(folder):
    subprocess.run(
        [
            "tar",
            "-cJf",
            folder + ".tar.xz",
            "-C",
            os.path.dirname(folder),
            os.path.basename(folder),
        ],
        check=True,
        env=dict(os.environ, XZ_OPT="-6e -T1"),
    )
    shutil.rmtree(folder)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(
        nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 128))
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rnd in range(6):
        for step in range(60):
            clean = torch.randn(64, 128).cumsum(1)
            loss = nn.functional.mse_loss(
                model(clean + torch.randn_like(clean)), clean
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
        folder = f"{WORK}/round{rnd}"
        dump_samples(model.module, folder, rank)
        dist.barrier()
        if rank == 0:
            t0 = time.time()
            archive(folder)
            print(
                f"round {rnd} loss {loss.item():.2f} archived in {time.time() - t0:.0f}s",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
