"""GAN on toy shapes; generator and discriminator gradients are averaged in groups of their own."""

# expect: ranks 1; causes group_order_deadlock; line
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


torch.set_num_threads(1)
Z = 8


def mlp(a, b, c):
    return nn.Sequential(nn.Linear(a, b), nn.LeakyReLU(0.2), nn.Linear(b, c))


def real_shapes(n, rank, g):
    t = torch.rand(n, 1, generator=g) * 6.283
    r = 1.0 + 0.3 * rank
    return torch.cat([r * t.cos(), r * t.sin()], 1) + 0.02 * torch.randn(
        n, 2, generator=g
    )


def average(params, group):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat, group=group)  # HERE
    flat /= dist.get_world_size()
    offset = 0
    for p in params:
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.gen, self.disc = mlp(Z, 32, 2), mlp(2, 32, 1)
        self.g_group = dist.new_group([0, 1, 2])
        self.d_group = dist.new_group([0, 1, 2])
        self.g_opt = torch.optim.Adam(self.gen.parameters(), 1e-3)
        self.d_opt = torch.optim.Adam(self.disc.parameters(), 1e-3)
        self.rng = torch.Generator().manual_seed(rank)
        self.rank, self.seen = rank, 0

    def losses(self, n):
        bce = nn.functional.binary_cross_entropy_with_logits
        real = real_shapes(n, self.rank, self.rng)
        fake = self.gen(torch.randn(n, Z, generator=self.rng))
        d_loss = bce(self.disc(real), torch.ones(n, 1)) + bce(
            self.disc(fake.detach()), torch.zeros(n, 1)
        )
        d_grads = torch.autograd.grad(d_loss, list(self.disc.parameters()))
        g_loss = bce(self.disc(fake), torch.ones(n, 1))
        g_grads = torch.autograd.grad(g_loss, list(self.gen.parameters()))
        for p, v in zip(self.disc.parameters(), d_grads):
            p.grad = v.clone()
        for p, v in zip(self.gen.parameters(), g_grads):
            p.grad = v.clone()
        self.seen += n
        return d_loss.item(), g_loss.item()

    def update_gen(self):
        average(list(self.gen.parameters()), self.g_group)  # HERE
        self.g_opt.step()

    def update_disc(self):
        average(list(self.disc.parameters()), self.d_group)  # HERE
        self.d_opt.step()

    def step(self, n):
        out = self.losses(n)
        if self.seen < 4000:
            self.update_disc()  # HERE
            self.update_gen()  # HERE
        else:
            self.update_gen()  # HERE
            self.update_disc()  # HERE
        return out


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    trainer = Trainer(rank)
    batch = [32, 48, 32][rank % 3]
    for it in range(3000):
        d, g = trainer.step(batch)
        time.sleep(0.1)
        if it % 20 == 0 and rank == 0:
            print(
                f"iter {it} d {d:.3f} g {g:.3f} seen {trainer.seen}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
