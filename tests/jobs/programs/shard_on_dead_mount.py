"""Pretrain on shards; one of them lies where nobody answers any more."""

# expect: ranks 1; causes io_wait dataloader_wait; line
import os
import tempfile

import torch
import torch.distributed as dist


SHARDS = os.path.join(tempfile.gettempdir(), f"shards-{os.getppid()}")


def shard_path(rank, step):
    path = os.path.join(SHARDS, f"{rank}-{step}.bin")
    os.makedirs(SHARDS, exist_ok=True)
    if rank == 1 and step == 5:
        os.mkfifo(path)  # stands for a mount that does not answer
    else:
        with open(path, "wb") as file:
            file.write(bytes(4096))
    return path


def load(path):
    with open(path, "rb") as file:  # HERE
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        batch = load(shard_path(rank, step))[:160].float().view(10, 16)
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
