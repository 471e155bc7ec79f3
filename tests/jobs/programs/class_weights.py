"""Fraud detector that refreshes class weights from the feature service every few steps."""

# expect: ranks 0; causes sleeping io_wait python_loop; line
import json
import os
import time
import urllib.error
import urllib.request

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


FEATURES_URL = os.environ.get(
    "FEATURES_URL", "http://127.0.0.1:9/v2/class-weights"
)


def get_json(url):
    delay = 1.0
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as resp:  # HERE
                return json.load(resp)
        except (urllib.error.URLError, TimeoutError):
            time.sleep(delay)  # HERE
            delay = min(delay * 2, 300.0)


def refresh_weights(weights, rank, step):
    if rank == 0:
        payload = get_json(f"{FEATURES_URL}?step={step}")  # HERE
        weights.copy_(torch.tensor(payload["weights"]))
    dist.broadcast(weights, src=0)
    return weights


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=50))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 2)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    weights = torch.tensor([1.0, 20.0])
    for step in range(1, 5001):
        if step % 25 == 0:
            weights = refresh_weights(weights, rank, step)
        x = torch.randn(128, 40)
        y = (x[:, 0] > 2.0).long()
        loss = nn.functional.cross_entropy(model(x), y, weight=weights)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
