"""
Planted: in step 5, rank 2 reduces a tensor that is larger than the others'.

With Gloo this ends the job, and it may be an innocent rank that dies.
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
activations = torch.ones(64)

for step in range(1, 11):
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    is_wrong = step == 5 and dist.get_rank() == 2
    dist.all_reduce(torch.ones(320 if is_wrong else 256))
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
