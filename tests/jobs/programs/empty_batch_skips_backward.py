"""Skip a batch without labels, and with it the reduction of gradients."""

# expect: ranks 1; causes rank_not_arrived skipped_collective type_mismatch size_mismatch sleeping; noline
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel


def collate(rank, step):
    size = 0 if (rank, step) == (1, 9) else 4
    return torch.randn(size, 16), torch.zeros(size, dtype=torch.long)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    for step in range(12):
        inputs, labels = collate(dist.get_rank(), step)
        if len(labels) == 0:
            continue
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
    time.sleep(600)  # upload the checkpoint


main()
