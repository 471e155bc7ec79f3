"""Regression with the group's report plug-in, which rank 0 loads for the monthly tables."""

# expect: ranks 0; causes import_lock lock_deadlock; noline
import importlib
import os
import sys
import textwrap

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


WORK = os.environ["WORK"]
PLUGIN = """
    from concurrent.futures import ThreadPoolExecutor

    MONTHS = 12


    def column(month):
        from monthly_tables import MONTHS

        return [month * k % MONTHS for k in range(1, 32)]


    with ThreadPoolExecutor(4) as pool:
        TABLE = list(pool.map(column, range(MONTHS)))


    def render(loss):
        return f"{len(TABLE)} columns, loss {loss:.4f}"
"""


def install_plugin():
    folder = os.path.join(WORK, "plugins")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "monthly_tables.py"), "w") as f:
        f.write(textwrap.dedent(PLUGIN))
    sys.path.insert(0, folder)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.set_num_threads(1)
    rank = dist.get_rank()
    if rank == 0:
        install_plugin()
    gen = torch.Generator().manual_seed(rank)
    model = DDP(
        nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 1))
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 3001):
        x = torch.randn(256, 40, generator=gen)
        loss = nn.functional.mse_loss(
            model(x), x.square().mean(1, keepdim=True)
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 300 == 0 and rank == 0:
            report = importlib.import_module("monthly_tables")
            print(f"step {step}: {report.render(loss.item())}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
