"""Each batch takes a second to be read; the job goes on."""

# expect: none
import time

import torch
import torch.distributed as dist

from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.25)
        return torch.randn(16)


def main():
    dist.init_process_group("gloo")
    for batch in DataLoader(Scans(), batch_size=2, num_workers=1):
        dist.all_reduce(batch.sum())


main()
