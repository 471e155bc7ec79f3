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
    # Counted: clocks would let one rank make a step more than the others.
    for _ in range(115):
        dist.all_reduce(grads)
        grads /= dist.get_world_size()
        print("loss", float(grads[0]), flush=True)
        time.sleep(0.2)
    dist.barrier()
    dist.destroy_process_group()


main()
