"""
Start a rank, as every program here does; it is copied beside the program.
"""

import os
import threading
import time

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import distdebug


def start(seconds=20.0, first_call=True):
    """
    Join the job, and return rank and device.
    """
    if os.environ.get("RECORDER") != "0":
        timing = os.environ.get("TIMING") == "1"
        distdebug.enable_flight_recorder(timing=timing)
    backend = os.environ["BACKEND"]
    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    if first_call:
        # Communicators and kernels are loaded here, not within the fault.
        dist.all_reduce(torch.ones(1, device=device))
        synchronize(device)
    Path(f"ready.{rank}").touch()
    return rank, device


def synchronize(device):
    """
    Wait for the GPU, if there is one.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def spin(device, seconds):
    """
    Keep the GPU busy with one kernel; without a GPU, the thread.
    """
    if device.type != "cuda":
        time.sleep(seconds)
        return
    properties = torch.cuda.get_device_properties(device)
    kilohertz = getattr(properties, "clock_rate", 1_800_000)
    torch.cuda._sleep(int(seconds * kilohertz * 1000))


def report_pauses():
    """
    Print each time that this process stood still for longer than 0.1 s.
    """

    def look():
        last = time.monotonic()
        while True:
            time.sleep(0.01)
            now = time.monotonic()
            if now - last > 0.1:
                print(f"stood still for {now - last:.2f} s", flush=True)
            last = now

    threading.Thread(target=look, daemon=True).start()
