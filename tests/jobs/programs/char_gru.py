"""Character GRU; rank 0 samples and scores the held-out set after each epoch."""

# expect: none
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


VOCAB = 96


class CharGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 128)
        self.cell = nn.GRUCell(128, 256)
        self.out = nn.Linear(256, VOCAB)

    def forward(self, x):
        h = torch.zeros(x.size(0), 256)
        logits = []
        for t in range(x.size(1)):
            h = self.cell(self.emb(x[:, t]), h)
            logits.append(self.out(h))
        return torch.stack(logits, 1)


@torch.no_grad()
def evaluate(model, n_prompts=1100, length=260):
    model.eval()
    nll = 0.0
    for _ in range(n_prompts):
        h, tok = torch.zeros(8, 256), torch.randint(0, VOCAB, (8,))
        for _ in range(length):
            h = model.cell(model.emb(tok), h)
            logp = model.out(h).log_softmax(-1)
            tok = torch.multinomial(logp.exp(), 1).squeeze(1)
            nll -= logp.gather(1, tok[:, None]).mean().item()
    model.train()
    return nll / (n_prompts * length)


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=45))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(CharGRU())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(9):
        for step in range(12):
            x = torch.randint(0, VOCAB, (16, 49))
            loss = nn.functional.cross_entropy(
                model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            t0 = time.time()
            score = evaluate(model.module)
            print(
                f"epoch {epoch} train {loss.item():.3f} eval {score:.3f} ({time.time() - t0:.0f}s)",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
