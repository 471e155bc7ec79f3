"""Small transformer LM with a loss-sanity report before the gradient average."""

# expect: ranks 1; causes type_mismatch; line
import math

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


VOCAB = 500


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 64)
        self.enc = nn.TransformerEncoderLayer(
            64, 4, 128, batch_first=True, dropout=0.0
        )
        self.out = nn.Linear(64, VOCAB)

    def forward(self, x):
        return self.out(self.enc(self.emb(x)))


def get_batch(rank, step):
    x = torch.randint(1, VOCAB, (8, 33))
    y = x[:, 1:].clone()
    if rank == 1 and step == 14:
        y.fill_(-100)
    return x[:, :-1], y


def report(loss, step):
    world = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(world, loss.detach().reshape(1))  # HERE
    print(
        f"step {step}: losses {[f'{w.item():.3f}' for w in world]}", flush=True
    )


def sync_grads(model):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)  # HERE
    flat /= dist.get_world_size()
    off = 0
    for p in model.parameters():
        p.grad.copy_(flat[off : off + p.numel()].view_as(p))
        off += p.numel()


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(100 + rank)
    for step in range(2000):
        x, y = get_batch(rank, step)
        loss = nn.functional.cross_entropy(
            model(x).flatten(0, 1), y.flatten(), ignore_index=-100
        )
        if step % 100 == 0 or not math.isfinite(loss.item()):
            report(loss, step)  # HERE
        opt.zero_grad()
        loss.backward()
        sync_grads(model)  # HERE
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
