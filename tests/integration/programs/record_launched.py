"""
Prints what becomes of a variable that torchrun sets, and ends.

Usage: record_launched.py DUMP_DIR
"""

import os
import sys

from distdebug.flight_recorder import enable_flight_recorder


name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
before = os.environ[name]
enable_flight_recorder(dump_dir=sys.argv[1])
sys.stdout.write(f"{before} {os.environ[name]}\n")
