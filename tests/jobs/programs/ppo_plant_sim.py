"""PPO for a plant controller: rank 1 runs the external simulator, all ranks learn from its rollouts."""

# expect: none
import json
import subprocess
import sys
import time

from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)

SIMULATOR = r"""
import json, random, sys, time
cfg = json.load(sys.stdin)
rng = random.Random(cfg["seed"])
rows = []
for k in range(cfg["episodes"]):
    level = rng.uniform(-1, 1)
    for t in range(12):
        act = cfg["gain"] * level + rng.gauss(0, 0.3)
        rows.append([level, float(t) / 12, act, -abs(level + 0.5 * act)])
        level += 0.2 * act + rng.gauss(0, 0.05)
    time.sleep(0.35 + 0.2 * (k % 3))
json.dump(rows, sys.stdout)
"""


def simulate(gain, seed):
    out = subprocess.run(
        [sys.executable, "-S", "-c", SIMULATOR],
        check=True,
        text=True,
        capture_output=True,
        input=json.dumps({"gain": gain, "seed": seed, "episodes": 24}),
    )
    return torch.tensor(json.loads(out.stdout))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 24), nn.Tanh())
        self.mu, self.v = nn.Linear(24, 1), nn.Linear(24, 1)

    def forward(self, s):
        h = self.body(s)
        return self.mu(h).squeeze(-1), self.v(h).squeeze(-1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Policy())
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    accumulate = 4
    for it in range(14):
        rollout = torch.empty(24 * 12, 4)
        if rank == 1:
            t = time.time()
            with torch.no_grad():
                gain = float(model.module(torch.tensor([[1.0, 0.5]]))[0])
            rollout.copy_(simulate(gain, it))
            print(
                f"iteration {it}: simulator took {time.time() - t:.1f}s",
                flush=True,
            )
        dist.broadcast(rollout, src=1)
        mine = rollout[rank::world]
        for update in range(40):
            part = mine[torch.randint(0, len(mine), (16,))]
            last = update % accumulate == accumulate - 1
            with nullcontext() if last else model.no_sync():
                mu, v = model(part[:, :2])
                adv = part[:, 3] - v
                loss = (
                    (mu - part[:, 2]) ** 2 * adv.detach().exp()
                ).mean() + adv.pow(2).mean()
                (loss / accumulate).backward()
            if last:
                opt.step()
                opt.zero_grad()
            time.sleep(0.15)
        if rank == 0:
            print(
                f"iteration {it} loss {loss.item():.4f} reward {rollout[:, 3].mean().item():.3f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
