"""
A rank that reads data with two workers, and then waits.
"""

import sys
import time

import torch
import torch.distributed as dist

from torch.utils.data import DataLoader, Dataset


class Endless(Dataset):
    """
    Data that takes its time.
    """

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.ones(1)


dist.init_process_group("gloo")
loader = iter(DataLoader(Endless(), num_workers=2))
next(loader)
# One write, so that lines of different ranks do not mix.
sys.stdout.write("ready\n")
sys.stdout.flush()
time.sleep(600)
