"""Small code LM with accelerate that writes sharded checkpoints to a slow volume."""

# expect: none
import os
import time

from datetime import timedelta

import torch

from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


torch.set_num_threads(1)


class LM(nn.Module):
    def __init__(self, vocab=90, d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.Conv1d(d, d, 5, padding=4)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.conv(self.emb(ids).transpose(1, 2))[..., : ids.shape[1]]
        return self.out(torch.relu(h.transpose(1, 2)))


class SlowVolume:
    """Rate-limited writer in front of the network file system."""

    def __init__(self, folder, chunk=4096, rate=2_000):
        self.folder, self.chunk, self.rate = folder, chunk, rate
        os.makedirs(folder, exist_ok=True)

    def write(self, name, blob):
        with open(os.path.join(self.folder, name), "wb") as f:
            for o in range(0, len(blob), self.chunk):
                part = blob[o : o + self.chunk]
                f.write(part)
                f.flush()
                os.fsync(f.fileno())
                time.sleep(len(part) / self.rate)


def checkpoint(acc, model, step, volume):
    acc.wait_for_everyone()
    if acc.is_main_process:
        t = time.time()
        for k, v in acc.unwrap_model(model).state_dict().items():
            volume.write(
                f"step{step}-{k}.bin", v.contiguous().numpy().tobytes()
            )
        print(
            f"checkpoint {step} written in {time.time() - t:.0f}s", flush=True
        )
    acc.wait_for_everyone()


def main():
    acc = Accelerator(
        cpu=True,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(minutes=30))
        ],
    )
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(0, 90, (1200, 25)))
    loader = DataLoader(data, batch_size=5, shuffle=True)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    volume = SlowVolume(os.path.join(os.environ["WORK"], "ckpt"))
    model, opt, loader = acc.prepare(model, opt, loader)
    step = 0
    for epoch in range(8):
        for (ids,) in loader:
            loss = nn.functional.cross_entropy(
                model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
            )
            opt.zero_grad()
            acc.backward(loss)
            opt.step()
            step += 1
            time.sleep(0.12)
            if step % 20 == 0:
                acc.print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step % 80 == 0:
                checkpoint(acc, model, step, volume)
    acc.end_training()


if __name__ == "__main__":
    main()
