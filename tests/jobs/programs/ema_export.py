"""ResNet-ish regression with a background EMA exporter on the last rank."""

# expect: ranks 2; causes lock_deadlock; line
import json
import os
import threading
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch import nn


weights_lock = threading.Lock()
metrics_lock = threading.Lock()
metrics = {"step": 0, "loss": 0.0}


class EmaExporter(threading.Thread):
    def __init__(self, model, out):
        super().__init__(daemon=True, name="ema-exporter")
        self.model, self.out = model, out
        self.ema = {k: v.clone() for k, v in model.state_dict().items()}

    def run(self):
        while True:
            time.sleep(2.0)
            with metrics_lock:
                with open(self.out + ".json", "w") as f:
                    for key, value in metrics.items():
                        f.write(json.dumps({key: value}) + "\n")
                        f.flush()
                        time.sleep(0.3)
                with weights_lock:  # HERE
                    for k, v in self.model.state_dict().items():
                        self.ema[k].lerp_(v, 0.1)
                    torch.save(self.ema, self.out + ".pt")


def average_grads(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    if rank == world - 1:
        EmaExporter(model, os.path.join(os.environ["WORK"], "ema")).start()
    for step in range(100000):
        x = torch.randn(64, 64)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        average_grads(model)
        with weights_lock:
            opt.step()
            with metrics_lock:  # HERE
                metrics.update(step=step, loss=loss.item())
        time.sleep(0.05)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
