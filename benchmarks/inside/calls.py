"""
What does one heartbeat cost, and one look of a watch?
"""

from __future__ import annotations

import subprocess
import sys
import tempfile


# The watch looks very often, and the process sleeps meanwhile.
PROGRAM = """
import sys, time
import torch, torch.distributed as dist, distdebug
folder = sys.argv[1]
distdebug.enable_flight_recorder(dump_dir=folder)
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
)
dist.all_reduce(torch.ones(1))
with distdebug.watch(output_dir=f"{folder}/hangs", poll_s=0.05) as watch:
    used = time.process_time()
    time.sleep(10)
    look_s = (time.process_time() - used) / (10 / 0.05)
used = time.process_time()
for _ in range(1_000_000):
    watch.step()
step_s = (time.process_time() - used) / 1_000_000
print(look_s, step_s)
"""


def show_calls() -> None:
    """
    Print both, in time of the processor.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.check_output(
            [sys.executable, "-c", PROGRAM, folder], text=True
        )
    look_s, step_s = map(float, out.split())
    print(f"{'watch.step()':32} {1e9 * step_s:9.2f} ns")
    print(f"{'a look of watch()':32} {1e6 * look_s:9.2f} us")
