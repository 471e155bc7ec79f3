"""Log from a callback while the lock of the metrics is held."""

# expect: ranks 0; causes lock_deadlock; line
import threading

import torch
import torch.distributed as dist


class Metrics:
    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}

    def record(self, name, value):
        with self.lock:
            self.values[name] = value
            if len(self.values) >= 3:
                self.flush()

    def flush(self):
        with self.lock:  # HERE
            print(self.values, flush=True)
            self.values.clear()


def main():
    dist.init_process_group("gloo")
    metrics = Metrics()
    for step in range(50):
        loss = torch.ones(4)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            metrics.record(f"loss/{step}", loss.sum().item())


main()
