"""Accelerate run with 48 gradient-accumulation micro-batches per optimizer step."""

# expect: none
import time

import torch

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __len__(self):
        return 48 * 2 * 3 * 8

    def __getitem__(self, i):
        time.sleep(0.3)  # blob read + decode
        g = torch.Generator().manual_seed(i)
        return torch.randint(0, 2000, (160,), generator=g)


class LM(nn.Module):
    def __init__(self, dim=192):
        super().__init__()
        self.emb = nn.Embedding(2000, dim)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 4 * dim, batch_first=True, dropout=0.0
        )
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 2000)

    def forward(self, x):
        return self.out(self.enc(self.emb(x)))


def main():
    acc = Accelerator(cpu=True, gradient_accumulation_steps=48)
    torch.manual_seed(0)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(Documents(), batch_size=2, shuffle=True)
    model, opt, loader = acc.prepare(model, opt, loader)
    t0 = time.time()
    for i, x in enumerate(loader):
        with acc.accumulate(model):
            logits = model(x[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), x[:, 1:].flatten()
            )
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
        if acc.sync_gradients:
            acc.print(
                f"update after {i + 1} micro-batches, loss {loss.item():.3f}, {time.time() - t0:.0f}s",
                flush=True,
            )
    acc.wait_for_everyone()
    acc.end_training()


if __name__ == "__main__":
    main()
