"""DQN on grid worlds: one actor process per rank feeds a data-parallel learner."""

# expect: ranks 0; causes queue_wait; line
import multiprocessing as mp
import os
import random
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


torch.set_num_threads(1)

MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0)]


class Grid:
    def __init__(self, size, rng):
        self.size, self.rng = size, rng

    def reset(self):
        self.pos, self.t = [0, 0], 0
        return list(self.pos)

    def step(self, a):
        dx, dy = MOVES[a]
        self.pos[0] = min(max(self.pos[0] + dx, 0), self.size - 1)
        self.pos[1] = min(max(self.pos[1] + dy, 0), self.size - 1)
        self.t += 1
        goal = self.pos == [self.size - 1, self.size - 1]
        return (
            list(self.pos),
            float(goal),
            goal or self.t >= self.size * self.size,
        )


def actor(size, episodes, seed, out):
    rng = random.Random(seed)
    env = Grid(size, rng)
    for _ in range(episodes):
        s, done = env.reset(), False
        while not done:
            a = rng.randrange(4)
            s2, r, done = env.step(a)
            out.put((s, a, r, s2, done))
            s = s2


class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.net(x)


def next_batch(replay, n):
    rows = [replay.get() for _ in range(n)]  # HERE
    s, a, r, s2, d = zip(*rows)
    return (
        torch.tensor(s, dtype=torch.float32),
        torch.tensor(a),
        torch.tensor(r),
        torch.tensor(s2, dtype=torch.float32),
        torch.tensor(d, dtype=torch.float32),
    )


def main():
    rank = int(os.environ["RANK"])
    size = [4, 10, 12][rank % 3]
    replay = mp.Queue(maxsize=256)
    worker = mp.Process(
        target=actor, args=(size, 160, 11 + rank, replay), daemon=True
    )
    worker.start()

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(0)
    net = DDP(Q())
    target = Q()
    target.load_state_dict(net.module.state_dict())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for update in range(300):
        s, a, r, s2, d = next_batch(replay, 32)
        with torch.no_grad():
            y = r + 0.97 * (1 - d) * target(s2).max(1).values
        q = net(s).gather(1, a[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.12)
        if update % 20 == 0:
            target.load_state_dict(net.module.state_dict())
            print(f"[{rank}] update {update} td {loss.item():.4f}", flush=True)
    worker.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
