"""A kernel of rank 1 writes where nothing is; the driver logs an Xid."""

# expect: ranks 1; causes gpu_fault; noline
# only: nccl
# live: kernel
import job
import torch
import torch.distributed as dist


SOURCE = """
extern "C" __global__ void scale(float* x, long offset) { x[offset] *= 2; }
"""


def main():
    rank, device = job.start()
    scale = torch.cuda._compile_kernel(SOURCE, "scale")
    grads = torch.ones(1 << 16, device=device)
    for step in range(100):
        offset = 1 << 30 if rank == 1 and step == 5 else 0
        scale((1, 1, 1), (1, 1, 1), (grads, offset))
        dist.all_reduce(grads)
        print("loss", float(grads[0]), flush=True)


main()
