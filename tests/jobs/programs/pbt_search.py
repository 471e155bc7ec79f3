"""Population-based training: every few rounds all members copy the best member's weights."""

# expect: ranks 2|0 1; causes type_mismatch; line
from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


SYNC_EVERY = 3


def build(rank):
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
    return net, torch.optim.SGD(
        net.parameters(), lr=[0.004, 0.003, 0.01][rank]
    )


def train_round(net, opt, rank, rnd, iters=150):
    noise = 40.0 if (rank == 2 and rnd == 7) else [0.4, 0.8, 0.1][rank]
    for _ in range(iters):
        x = torch.randn(64, 32)
        y = x[:, :4].sum(1, keepdim=True) + noise * torch.randn(64, 1)
        loss = (net(x) - y).pow(2).mean().clamp(max=1e4)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def gather_scores(score, world):
    out = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(out, torch.tensor([score]))
    return [t.item() for t in out]


def exploit(net, scores):
    best = min(range(len(scores)), key=scores.__getitem__)
    flat = parameters_to_vector(net.parameters()).detach()
    dist.broadcast(flat, src=best)  # HERE
    vector_to_parameters(flat, net.parameters())
    return best


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=40))
    rank, world = dist.get_rank(), dist.get_world_size()
    net, opt = build(rank)
    scores = [0.0] * world
    for rnd in range(400):
        score = train_round(net, opt, rank, rnd)
        if rnd % SYNC_EVERY == 0:
            scores = gather_scores(score, world)
        scores[rank] = score
        if rnd % SYNC_EVERY == 1:
            best = exploit(net, scores)  # HERE
            if rank == 0:
                print(
                    f"round {rnd} best member {best} scores {scores}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
