"""
Planted: in step 5, the last rank enters its two groups in another order.

It waits for everybody, while its neighbour waits for it in group tp.
"""

from __future__ import annotations

import sys

from datetime import timedelta

import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh

import distdebug


distdebug.enable_flight_recorder(dump_dir=sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(minutes=2))

shape = (dist.get_world_size() // 2, 2)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
activations, loss = torch.ones(64), torch.ones(1)

for step in range(1, 11):
    if step == 5 and dist.get_rank() == dist.get_world_size() - 1:
        dist.all_reduce(loss)
        dist.all_reduce(activations, group=mesh.get_group("tp"))
    else:
        dist.all_reduce(activations, group=mesh.get_group("tp"))
        dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
