"""Build an extension under a lock, and meet in a barrier while it is held."""

# expect: ranks 1 | 0; causes lock_deadlock io_wait; line
import fcntl
import os
import tempfile
import time

import torch
import torch.distributed as dist


def build(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # HERE
        dist.barrier()  # HERE


def main():
    dist.init_process_group("gloo")
    path = os.path.join(tempfile.gettempdir(), f"build-{os.getppid()}.lock")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        time.sleep(1)
    if dist.get_rank() < 2:
        build(path)
    else:
        dist.barrier()


main()
