"""Both ranks were given the same GPU of the same node."""

# expect: ranks 0 1 | 0 | 1 | ; causes node_misconfigured network_misconfigured; noline
# only: nccl
# host: one
# env: NCCL_DEBUG=WARN
import job
import torch
import torch.distributed as dist


def main():
    _, device = job.start(first_call=False)
    grads = torch.ones(1 << 16, device="cuda:0")
    dist.all_reduce(grads)
    job.synchronize(device)


main()
