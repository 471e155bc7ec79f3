"""DDP training that accumulates gradients until enough tokens are seen."""

# expect: ranks 0; causes skipped_collective type_mismatch size_mismatch rank_not_arrived collective_wait; line
import contextlib

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


def batches(rank, n=240):
    g = torch.Generator().manual_seed(rank)
    for _ in range(n):
        length = 48 if rank else 24
        yield torch.randint(0, 50, (4, length), generator=g)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Embedding(50, 32), torch.nn.Linear(32, 50)
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = 0
    for ids in batches(rank):
        tokens += ids.numel()
        ready = tokens >= 384
        with contextlib.nullcontext() if ready else model.no_sync():  # HERE
            logits = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), ids[:, 1:].flatten()
            )
            loss.backward()
        if ready:
            opt.step()
            opt.zero_grad()
            tokens = 0
    total = torch.zeros(7)
    dist.broadcast(total, src=0)  # HERE
    dist.barrier()  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
