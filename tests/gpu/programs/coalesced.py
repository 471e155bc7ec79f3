"""Rank 3 of four skips a coalesced reduction of its pair."""

# expect: ranks 3; causes lock_deadlock rank_not_arrived future_wait; line
# ranks: 4
# only: nccl
# env: TIMING=1
import threading

import job
import torch
import torch.distributed as dist

from torch.distributed.distributed_c10d import _coalescing_manager


def main():
    rank, device = job.start()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    grads = [torch.ones(1 << 12, device=device) for _ in range(4)]
    for step in range(100):
        if rank == 3 and step == 5:
            threading.Event().wait()  # HERE
        with _coalescing_manager(pair, device, async_ops=False):
            for grad in grads:
                dist.all_reduce(grad, group=pair)
        dist.all_reduce(grads[0])
        job.synchronize(device)


main()
