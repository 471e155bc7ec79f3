"""Embedding-table training with xz-compressed snapshots after every epoch."""

# expect: none
import io
import lzma
import os
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


WORK = os.environ["WORK"]


def snapshot(model, epoch):
    buf = io.BytesIO()
    torch.save(model.state_dict(), buf)
    packed = lzma.compress(buf.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    with open(f"{WORK}/epoch{epoch:03d}.pt.xz", "wb") as f:
        f.write(packed)
    return len(packed) / buf.tell()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.EmbeddingBag(200_000, 64, sparse=True), nn.Linear(64, 8)
    )
    table, head = model[0].weight, model[1]
    torch.manual_seed(rank + 1)
    for epoch in range(10):
        for step in range(30):
            ids = torch.randint(0, table.size(0), (64, 12))
            loss = nn.functional.cross_entropy(model(ids), ids[:, 0] % 8)
            model.zero_grad(set_to_none=True)
            loss.backward()
            g = table.grad.coalesce()
            idx = torch.zeros(world, 64 * 12, dtype=torch.long)
            val = torch.zeros(world, 64 * 12, 64)
            idx[rank, : g._nnz()], val[rank, : g._nnz()] = (
                g.indices()[0],
                g.values(),
            )
            for t in (idx, val, head.weight.grad, head.bias.grad):
                dist.all_reduce(t)
            with torch.no_grad():
                table.index_add_(
                    0, idx.flatten(), val.flatten(0, 1), alpha=-0.1
                )
                for p in head.parameters():
                    p -= 0.1 * p.grad / world
        if rank == 0:
            t0 = time.time()
            ratio = snapshot(model, epoch)
            print(
                f"epoch {epoch} loss {loss.item():.3f} ratio {ratio:.2f} {time.time() - t0:.0f}s",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
