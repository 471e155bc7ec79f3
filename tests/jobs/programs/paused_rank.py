"""A rank was stopped, as by a debugger that somebody left."""

# expect: ranks 2; causes stopped; noline
import os
import signal

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for step in range(100):
        if step == 30 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(4))


main()
