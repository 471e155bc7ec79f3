"""Small CTC acoustic model trained with DDP on sharded synthetic speech."""

# expect: ranks 2; causes dataloader_wait lock_deadlock; line
import random
import threading
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


torch.set_num_threads(1)


class NoiseBank:
    """Room-noise clips, re-read from the archive all the time so that mixes stay fresh."""

    def __init__(self, clips=30):
        self.n = clips
        self.lock = threading.Lock()
        self.clips = []

    def _decode(self, i):
        time.sleep(0.04)
        return torch.randn(80, 16) * 0.05

    def _refresh(self):
        while True:
            with self.lock:
                self.clips = [self._decode(i) for i in range(self.n)]
            time.sleep(0.01)

    def start(self):
        threading.Thread(
            target=self._refresh, daemon=True, name="noise-refresh"
        ).start()
        while not self.clips:
            time.sleep(0.1)

    def sample(self):
        with self.lock:  # HERE
            return random.choice(self.clips)


class Utterances(Dataset):
    def __init__(self, shard, n=96):
        self.shard, self.n = shard, n
        self.bank = None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.shard * 1000 + i)
        feats = torch.randn(80, 16, generator=g)
        if self.bank is not None:
            feats = feats + self.bank.sample()
        target = torch.randint(1, 20, (10,), generator=g)
        return feats, target


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, 20)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h).log_softmax(-1)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    data = Utterances(rank)
    model = DDP(Acoustic())
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    ctc = nn.CTCLoss()
    far_field = {2}
    for epoch in range(40):
        if epoch == 2 and rank in far_field:
            data.bank = NoiseBank()
            data.bank.start()
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1)
        for step, (x, y) in enumerate(loader):  # HERE
            lp = model(x).transpose(0, 1)
            loss = ctc(
                lp, y, torch.full((len(x),), 80), torch.full((len(x),), 10)
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.15)
            if step % 6 == 0 and rank == 0:
                print(
                    f"epoch {epoch} step {step} ctc {loss.item():.3f}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
