"""Accelerate fine-tuning of a small classifier with evaluation between epochs."""

# expect: ranks 0; causes extra_collective type_mismatch size_mismatch dtype_mismatch rank_not_arrived collective_wait; line
import torch

from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def make_loader(n, shuffle):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 32, generator=g)
    return DataLoader(
        TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=shuffle
    )


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    hits = total = 0
    for x, y in loader:
        pred = model(x).argmax(-1)
        pred, truth = accelerator.gather_for_metrics((pred, y))  # HERE
        hits += (pred == truth).sum().item()
        total += truth.numel()
    model.train()
    return hits / total


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 2)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, opt, train, val = accelerator.prepare(
        model, opt, make_loader(2400, True), make_loader(480, False)
    )
    for epoch in range(5):
        for x, y in train:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        if accelerator.is_main_process:
            acc = evaluate(accelerator, model, val)  # HERE
            print(f"epoch {epoch} acc {acc:.3f}", flush=True)


if __name__ == "__main__":
    main()
