"""Contrastive training with the memory bank of all ranks pooled every few steps."""

# expect: none
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


BANK, DIM = 100_000, 256


def refresh_bank(encoder, rank, rnd):
    """Encode the rank's own items and hand everybody the vectors of everybody."""
    rng = np.random.default_rng(rnd * 10 + rank)
    chunks = []
    with torch.no_grad():
        for _ in range(0, BANK, 10_000):
            raw = torch.from_numpy(
                rng.standard_normal((10_000, 64), dtype=np.float32)
            )
            chunks.append(encoder(raw).numpy())
    mine = {
        "rank": rank,
        "ids": list(range(BANK)),
        "vectors": np.concatenate(chunks),
    }
    banks = [None] * dist.get_world_size()
    dist.all_gather_object(banks, mine)
    return np.stack([b["vectors"][:2000] for b in banks])


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    encoder = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, DIM)
    )
    ddp = DDP(encoder)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for rnd in range(250):
        negatives = torch.from_numpy(refresh_bank(encoder, rank, rnd)).flatten(
            0, 1
        )
        for step in range(3):
            anchor = torch.randn(256, 64)
            q = torch.nn.functional.normalize(ddp(anchor), dim=1)
            with torch.no_grad():
                k = torch.nn.functional.normalize(
                    encoder(anchor + 0.1 * torch.randn_like(anchor)), dim=1
                )
            logits = (
                torch.cat(
                    [(q * k).sum(1, keepdim=True), q @ negatives.T], dim=1
                )
                / 0.07
            )
            loss = torch.nn.functional.cross_entropy(
                logits, torch.zeros(256, dtype=torch.long)
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rnd % 5 == 0 and rank == 0:
            print(f"round {rnd} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
