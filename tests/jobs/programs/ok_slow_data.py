"""DDP training on data that take long to read."""

# expect: none
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Remote(Dataset):
    def __len__(self):
        return 360

    def __getitem__(self, i):
        time.sleep(1.25)
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        return x, x.sum()


def main():
    dist.init_process_group("gloo")
    data = Remote()
    loader = DataLoader(
        data, batch_size=4, sampler=DistributedSampler(data), num_workers=1
    )
    model = DDP(torch.nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step, (x, y) in enumerate(loader):
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
