"""The kernel, or somebody, kills a rank in the middle of a step."""

# expect: ranks 1; causes killed rank_crashed dead host_out_of_memory; noline
import os
import signal
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for step in range(100):
        if step == 20 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError:
            time.sleep(600)


main()
