"""Wait for a file that rank 0 writes under another name."""

# expect: ranks 1 2; causes sleeping python_loop; line
import os
import tempfile
import time

import torch
import torch.distributed as dist


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.2)  # HERE


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    work = os.environ.get("WORK", tempfile.gettempdir())
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank == 0:
        open(os.path.join(work, "vocab.tmp"), "w").close()
    else:
        wait_for(os.path.join(work, "vocab.json"))
    dist.barrier()


main()
