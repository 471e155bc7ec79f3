"""A kernel of rank 1 never ends, so that its collective never begins."""

# expect: ranks 1; causes rank_not_started gpu_kernel native_spin; noline
# live: cuda, ras
# env: TIMING=1
import job
import torch
import torch.distributed as dist


def main():
    rank, device = job.start(60)
    job.report_pauses()
    grads = torch.ones(1 << 16, device=device)
    for step in range(100):
        if rank == 1 and step == 5:
            job.spin(device, 300)
        dist.all_reduce(grads)
        job.synchronize(device)


main()
