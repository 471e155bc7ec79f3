"""Train on two groups of two, with times on record; nothing is wrong."""

# expect: none
# ranks: 4
# env: TIMING=1
import time

import job
import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh


def main():
    _, device = job.start()
    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    hidden = torch.ones(1 << 18, device=device)
    shards = torch.empty(1 << 19, device=device)
    # Counted: clocks would let one rank make a step more than the others.
    for _ in range(115):
        dist.all_reduce(hidden, group=tp)
        dist.all_gather_into_tensor(shards, hidden, group=dp)
        hidden = shards[: 1 << 18] / 2
        print("loss", float(hidden.mean()), flush=True)
        time.sleep(0.2)
    dist.barrier()
    dist.destroy_process_group()


main()
