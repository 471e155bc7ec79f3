"""Train; nothing is wrong."""

# expect: none
# live: pipe, ras
# env: NCCL_DEBUG=INFO
import time

import job
import torch
import torch.distributed as dist


def main():
    _, device = job.start()
    grads = torch.ones(1 << 20, device=device)
    end = time.monotonic() + 25
    while time.monotonic() < end:
        dist.all_reduce(grads)
        grads /= dist.get_world_size()
        print("loss", float(grads[0]), flush=True)
        time.sleep(0.2)
    dist.barrier()
    dist.destroy_process_group()


main()
