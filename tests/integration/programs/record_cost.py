"""
Prints how many modules a dump with stacks imports, and whether it has stacks.

Usage: record_cost.py DUMP_DIR
"""

import pathlib
import sys

import torch
import torch.distributed as dist

from distdebug.flight_recorder import (
    dump_flight_recorder,
    enable_flight_recorder,
)


enable_flight_recorder(dump_dir=sys.argv[1])
dist.init_process_group(
    "gloo",
    init_method=f"file://{pathlib.Path(sys.argv[1]).resolve()}/store",
    rank=0,
    world_size=1,
)
dist.all_reduce(torch.ones(1))
dump_flight_recorder(stacks=False)
before = set(sys.modules)
file = dump_flight_recorder()
print(len(set(sys.modules) - before), b"record_cost.py" in file.read_bytes())
