"""Rank 1 stops in the loop of another library; `distdebug.watch` reports it."""

# expect: ranks 1; causes sleeping; line
# live: report
import time

import job
import torch
import torch.distributed as dist

import distdebug


def main():
    rank, device = job.start(60)
    grads = torch.ones(1 << 16, device=device)
    with distdebug.watch(output_dir="watched", floor_s=3, start_s=5) as watch:
        for step in range(100):
            if rank == 1 and step == 5:
                time.sleep(1000)  # HERE
            dist.all_reduce(grads)
            print("loss", float(grads[0]), flush=True)
            watch.step()


main()
