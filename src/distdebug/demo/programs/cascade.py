"""
Planted: rank 1 takes a lock in step 5 that its checkpoint thread still holds.

Rank 0 waits for rank 1 in group tp.  All others wait in groups dp, where
nothing is wrong: they wait for ranks that wait.
"""

from __future__ import annotations

import sys
import threading

from datetime import timedelta

import torch
import torch.distributed as dist

from torch.distributed.device_mesh import init_device_mesh

import distdebug


weights_lock = threading.Lock()


def start_checkpoint() -> None:
    """
    Write the weights in the background, and forget to release the lock.
    """
    threading.Thread(target=weights_lock.acquire, name="checkpoint").start()


def update_weights(step: int) -> None:
    """
    Change the weights; not while they are written.
    """
    if step == 5 and dist.get_rank() == 1:
        start_checkpoint()
    with weights_lock:
        pass


distdebug.enable_flight_recorder(dump_dir=sys.argv[1])
dist.init_process_group("gloo", timeout=timedelta(minutes=2))

shape = (dist.get_world_size() // 2, 2)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
activations, gradients = torch.ones(64), torch.ones(256)

for step in range(1, 11):
    update_weights(step)
    dist.all_reduce(activations, group=mesh.get_group("tp"))
    dist.all_reduce(gradients, group=mesh.get_group("dp"))
    if dist.get_rank() == 0:
        print(f"step {step}", flush=True)

dist.destroy_process_group()
