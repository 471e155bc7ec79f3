"""LoRA fine-tuning of a tiny causal LM with accelerate; adapters are streamed to gzip."""

# expect: ranks 0; causes io_wait; line
import os
import subprocess
import time

from datetime import timedelta

import torch

from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


torch.set_num_threads(1)


class LoRALinear(nn.Module):
    def __init__(self, d_in, d_out, r=4):
        super().__init__()
        self.base = nn.Linear(d_in, d_out)
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(d_in, r) * 0.02)
        self.b = nn.Parameter(torch.zeros(r, d_out))

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b


class TinyLM(nn.Module):
    def __init__(self, vocab=64, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.emb.requires_grad_(False)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.rnn.requires_grad_(False)
        self.proj = LoRALinear(dim, dim)
        self.head = LoRALinear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(torch.relu(self.proj(h)))


class AdapterStream:
    """Compresses adapters on the fly, so that no raw file touches the slow volume."""

    def __init__(self, folder):
        self.pipe = os.path.join(folder, "adapter.pipe")
        self.out = os.path.join(folder, "adapter.pt.gz")
        if not os.path.exists(self.pipe):
            os.mkfifo(self.pipe)
        self.proc = subprocess.Popen(
            ["sh", "-c", 'gzip -c < "$0" > "$1"', self.pipe, self.out]
        )

    def save(self, state):
        with open(self.pipe, "wb") as f:  # HERE
            torch.save(state, f)


def main():
    acc = Accelerator(
        cpu=True,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(minutes=30))
        ],
    )
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (1800, 17))
    loader = DataLoader(TensorDataset(ids), batch_size=6, shuffle=True)
    model = TinyLM()
    opt = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], 1e-3
    )
    model, opt, loader = acc.prepare(model, opt, loader)
    stream = AdapterStream(os.environ["WORK"]) if acc.is_main_process else None
    step = 0
    for epoch in range(30):
        for (batch,) in loader:
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), batch[:, 1:].flatten()
            )
            opt.zero_grad()
            acc.backward(loss)
            opt.step()
            step += 1
            time.sleep(0.1)
            if step % 20 == 0:
                acc.print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step % 40 == 0 and acc.is_main_process:
                state = {
                    k: v
                    for k, v in acc.unwrap_model(model).state_dict().items()
                    if k.endswith((".a", ".b"))
                }
                stream.save(state)
    acc.end_training()


if __name__ == "__main__":
    main()
