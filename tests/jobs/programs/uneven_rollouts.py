"""Policy gradient where every rank owns a different number of environments (DDP + Join)."""

# expect: none
import math
import random
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Cart:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def episode(self, policy):
        obs, x, v, rewards = [], 0.0, 0.0, []
        for t in range(120):
            state = torch.tensor([x, v, math.sin(t / 7), 1.0])
            with torch.no_grad():
                a = torch.tanh(policy(state)).item()
            v = 0.95 * v + 0.1 * a + self.rng.gauss(0, 0.02)
            x += v
            obs.append(state)
            rewards.append(-abs(x))
            time.sleep(0.004)  # renderer tick
        return torch.stack(obs), torch.tensor(rewards)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    n_envs = [12, 30, 110][rank]
    with Join([model]):
        for i in range(n_envs):
            env = Cart(seed=1000 * rank + i)
            episodes = [env.episode(net) for _ in range(3)]
            obs = torch.cat([e[0] for e in episodes])
            ret = torch.cat([e[1] for e in episodes])
            ret = (ret - ret.mean()) / (ret.std() + 1e-6)
            loss = -(model(obs).squeeze(1) * ret).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(
                f"[{rank}] env {i + 1}/{n_envs} loss {loss.item():.4f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
