"""DDP training with a background thread that calls a small C library."""

# expect: ranks 1; causes gil_contention native_spin sleeping; line
import ctypes
import threading
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel as DDP


libc = ctypes.PyDLL(None)


class Heartbeat(threading.Thread):
    def __init__(self, intervals):
        super().__init__(daemon=True)
        self.intervals = intervals
        self.beats = 0

    def run(self):
        for seconds in self.intervals:
            libc.usleep(int(seconds * 1000))
            self.beats += 1
        libc.sleep(3600)  # HERE


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    beat = Heartbeat([1] * (2000 if rank == 1 else 10**6))
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        )
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    beat.start()
    for step in range(20000):
        x = torch.randn(16, 32)
        loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 8)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            print(
                f"{time.time():.0f} step {step} loss {loss.item():.3f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
