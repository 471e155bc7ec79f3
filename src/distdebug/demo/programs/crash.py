"""
Planted: in step 5, rank 2 is killed, as the kernel does when memory runs out.

It leaves no dump.  The others see that a connection is closed.
"""

from __future__ import annotations

import os
import signal
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
activations, gradients = torch.ones(64), torch.ones(256)

for step in range(1, 11):
    if step == 5 and dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    dist.all_reduce(gradients, group=mesh.get_group("dp"))
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
