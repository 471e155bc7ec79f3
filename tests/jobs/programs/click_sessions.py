"""Session model on click logs; shards differ in size, so epochs run under Join."""

# expect: none
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)
ITEMS = 120


class Sessions(nn.Module):
    def __init__(self, d=20):
        super().__init__()
        self.emb = nn.Embedding(ITEMS, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, ITEMS)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h[:, -1])


def shard(rank, epoch):
    """One batch per session length bucket; the last shard holds the heavy users."""
    g = torch.Generator().manual_seed(rank * 100 + epoch)
    for k in range([18, 26, 60][rank % 3]):
        length = int(torch.randint(4, 12, (1,), generator=g)) + (
            k // 10 if rank == 2 else 0
        )
        ids = torch.randint(0, ITEMS, (6, length + 1), generator=g)
        time.sleep(0.02 * length)
        yield ids[:, :-1], ids[:, -1]


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Sessions())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(16):
        seen = 0
        with Join([model]):
            for ids, target in shard(rank, epoch):
                loss = nn.functional.cross_entropy(model(ids), target)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen += len(ids)
                if seen % 60 == 0:
                    print(
                        f"[{rank}] epoch {epoch} sessions {seen} loss {loss.item():.3f}",
                        flush=True,
                    )
        total = torch.tensor([float(seen)])
        dist.all_reduce(total)
        if rank == 0:
            print(
                f"epoch {epoch} done, {int(total.item())} sessions", flush=True
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
