"""
Planted: in step 5, rank 2 leaves out the all_reduce of the gradient norm.

It goes on to the broadcast, where the others will never come.
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
activations, norm, weights = torch.ones(64), torch.ones(1), torch.ones(256)

for step in range(1, 11):
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    if not (step == 5 and dist.get_rank() == 2):
        dist.all_reduce(norm)
    dist.broadcast(weights, src=0)
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
