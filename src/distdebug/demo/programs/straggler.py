"""
Planted: rank 1 computes twice as long as the others in every step.

The job goes on, at the pace of its slowest rank.
"""

from __future__ import annotations

import sys
import time

from datetime import timedelta

import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh

import distdebug


distdebug.enable_flight_recorder(dump_dir=sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(minutes=2))

shape = (dist.get_world_size() // 2, 2)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
activations, gradients = torch.ones(64), torch.ones(256)

for step in range(1, 601):
    time.sleep(0.2 if dist.get_rank() == 1 else 0.1)
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    dist.all_reduce(gradients, group=mesh.get_group("dp"))
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
