"""Neighbour averaging (gossip) over pairs of ranks."""

# expect: ranks 0 1 2; causes group_order_deadlock rank_not_arrived collective_wait; line
import torch
import torch.distributed as dist


def build_pairs(world):
    pairs = {}
    for a in range(world):
        for b in range(a + 1, world):
            pairs[(a, b)] = dist.new_group([a, b])
    return pairs


def gossip(model, groups):
    for group in groups:
        for p in model.parameters():
            dist.all_reduce(p.data, group=group)  # HERE
            p.data /= 2


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = build_pairs(world)
    order = [(rank + 1) % world, (rank - 1) % world]
    groups = [pairs[tuple(sorted((rank, peer)))] for peer in order]
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1)
    )
    opt = torch.optim.Adam(model.parameters())
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(1000):
        x = torch.randn(32, 20, generator=g)
        loss = (model(x).squeeze(1) - x.sum(1)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 99:
            gossip(model, groups)  # HERE
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
