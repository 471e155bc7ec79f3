"""Accelerate training where each process reads its own shard list."""

# expect: ranks 2; causes skipped_collective type_mismatch size_mismatch rank_not_arrived collective_wait; line
import torch

from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset


class Shards(IterableDataset):
    def __init__(self, shards, rank, world):
        self.mine = shards[rank::world]  # HERE

    def __iter__(self):
        for seed in self.mine:
            g = torch.Generator().manual_seed(seed)
            for _ in range(320):
                x = torch.randn(24, generator=g)
                yield x, x.mean()


def main():
    accelerator = Accelerator(cpu=True)
    rank, world = accelerator.process_index, accelerator.num_processes
    model = torch.nn.Sequential(
        torch.nn.Linear(24, 96), torch.nn.Tanh(), torch.nn.Linear(96, 1)
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, opt = accelerator.prepare(model, opt)
    loader = DataLoader(Shards(list(range(8)), rank, world), batch_size=16)
    for epoch in range(3):
        for x, y in loader:  # HERE
            loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        accelerator.wait_for_everyone()  # HERE
        if accelerator.is_main_process:
            print("epoch", epoch, loss.item(), flush=True)


if __name__ == "__main__":
    main()
