"""
Planted: after two steps, rank 0 reduces a tensor that the others forgot.
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
activations, a = torch.ones(64), torch.ones(3, 4)
# As many bytes as the others: with more or fewer Gloo would end the job.
b = torch.ones(3, 4, dtype=torch.int32)

for step in range(1, 5):
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    if step == 3 and dist.get_rank() == 0:
        dist.all_reduce(b)
    dist.all_reduce(a)
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
