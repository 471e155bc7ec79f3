"""
What does one heartbeat cost, one look of a watch, one call, and one dump?
"""

from __future__ import annotations

import subprocess
import sys
import tempfile


BEGIN = """
import sys, time
import torch, torch.distributed as dist, distdebug
folder = sys.argv[1]
distdebug.enable_flight_recorder(dump_dir=folder, cpp_stacks=len(sys.argv) > 2)
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
)
"""

# The watch looks very often, and the process sleeps meanwhile.
WATCHED = """
dist.all_reduce(torch.ones(1))
with distdebug.watch(output_dir=f"{folder}/hangs", poll_s=0.05) as watch:
    used = time.process_time()
    time.sleep(10)
    look_s = (time.process_time() - used) / (10 / 0.05)
used = time.process_time()
for _ in range(1_000_000):
    watch.step()
step_s = (time.process_time() - used) / 1_000_000
print(step_s, look_s)
"""

# The first blocks fill the ring and whatever is kept; so does the first dump.
RECORDED = """
number, calls, dumps = torch.ones(1), [], []
for _ in range(10):
    used = time.process_time()
    for _ in range(5000):
        dist.all_reduce(number)
    calls.append((time.process_time() - used) / 5000)
for _ in range(5):
    used = time.process_time()
    distdebug.dump_flight_recorder()
    dumps.append(time.process_time() - used)
print(min(calls), min(dumps[1:]))
"""


def show_calls() -> None:
    """
    Print all of them, in time of the processor.
    """
    step_s, look_s = run(WATCHED)
    print(f"{'watch.step()':38} {1e9 * step_s:9.2f} ns")
    print(f"{'a look of watch()':38} {1e6 * look_s:9.2f} us")
    for extra, options in (("", ()), (", C++ stacks", ("cpp_stacks",))):
        call_s, dump_s = run(RECORDED, *options)
        print(
            f"{'a call in a group of one' + extra:38} {1e6 * call_s:9.2f} us"
        )
        print(f"{'a dump of 2,000' + extra:38} {1e3 * dump_s:9.2f} ms")


def run(program: str, *options: str) -> list[float]:
    """
    What a program prints, in a process and a folder of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.check_output(
            [sys.executable, "-c", BEGIN + program, folder, *options],
            text=True,
        )
    return [float(word) for word in out.split()]
