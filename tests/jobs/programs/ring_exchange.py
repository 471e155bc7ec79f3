"""Ring exchange of halo activations between stages after each local step."""

# expect: ranks 0 1 2; causes p2p_deadlock rank_not_arrived collective_wait; line
import torch
import torch.distributed as dist


class Stage(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        return x + self.body(x)


def exchange(x, rank, world):
    halo = torch.empty_like(x)
    dist.recv(halo, src=(rank - 1) % world)  # HERE
    dist.send(x, dst=(rank + 1) % world)
    return halo


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Stage(128)
    opt = torch.optim.SGD(stage.parameters(), lr=1e-3)
    halo = torch.zeros(64, 128)
    for step in range(200):
        x = torch.randn(64, 128) + halo
        out = stage(x)
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 19:
            halo = exchange(out.detach(), rank, world)  # HERE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
