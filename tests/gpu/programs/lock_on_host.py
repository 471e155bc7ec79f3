"""A helper thread of rank 1 holds a lock that the training loop needs."""

# expect: ranks 1; causes lock_deadlock; line
import threading

import job
import torch
import torch.distributed as dist


LOCK = threading.Lock()


def main():
    rank, device = job.start()
    grads = torch.ones(1 << 16, device=device)
    for step in range(100):
        if rank == 1 and step == 5:
            LOCK.acquire()
        with LOCK:  # HERE
            dist.all_reduce(grads)
        print("loss", float(grads[0]), flush=True)


main()
