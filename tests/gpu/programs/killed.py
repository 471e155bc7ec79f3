"""Rank 1 is killed, as by the kernel when memory is short."""

# expect: ranks 1; causes killed rank_crashed; noline
# env: NCCL_DEBUG=WARN
import os
import signal

import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start()
    grads = torch.ones(1 << 16, device=device)
    for step in range(100):
        if rank == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(grads)
        job.synchronize(device)


main()
