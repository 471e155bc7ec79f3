"""Accelerate training that reports to an HTTP tracking side-car."""

# expect: ranks 0; causes io_wait; line
import http.client
import json
import socket

import torch

from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Tracker:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def log(self, step, **values):
        conn = http.client.HTTPConnection(self.host, self.port)
        body = json.dumps({"step": step, **values})
        conn.request(
            "POST", "/api/runs/log", body, {"Content-Type": "application/json"}
        )
        reply = conn.getresponse()  # HERE
        reply.read()
        conn.close()


def sidecar():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(16)
    return s


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(9000, 10), torch.randn(9000, 1))
    model = torch.nn.Linear(10, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, opt, loader = accelerator.prepare(
        model, opt, DataLoader(data, batch_size=10, shuffle=True)
    )
    agent = sidecar() if accelerator.is_main_process else None
    tracker = Tracker(*agent.getsockname()) if agent else None
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        if step and step % 40 == 0 and tracker:
            tracker.log(step, loss=loss.item())  # HERE
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
