"""Training with a separate group for metrics."""

# expect: ranks 2 | 0 1; causes rendezvous_wait rank_not_arrived skipped_collective extra_collective type_mismatch collective_wait; line
import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


EVAL_SETS = ["dev", "test"]


def train_epoch(model, opt, g, steps=100):
    for _ in range(steps):
        x = torch.randn(16, 12, generator=g)
        loss = (model(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()  # HERE
        opt.step()
    return loss.detach()


def metric_mean(value, rank):
    group = dist.new_group(backend="gloo")  # HERE
    dist.all_reduce(value, group=group)
    if rank == 0:
        print("loss", value.item() / dist.get_world_size(group), flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for epoch in range(4):
        loss = train_epoch(model, opt, g)  # HERE
        if rank < len(EVAL_SETS):
            metric_mean(loss, rank)  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
