"""
One rank of a small Gloo job in which rank 0 ends in a chosen way.

Usage: record_rank.py BEHAVIOR DUMP_DIR STORE_FILE

Both ranks complete two calls and say "ready".  Then rank 1 waits until its
standard input ends.  Rank 0 waits for a line, so that it does not take the
connection from rank 1, and does what BEHAVIOR says.
"""

import ctypes
import os
import resource
import shutil
import sys

import torch
import torch.distributed as dist

from distdebug.flight_recorder import enable_flight_recorder


def hang():
    """
    Wait in a call that rank 1 never enters.
    """
    dist.all_reduce(torch.ones(1))


def hang_without_folder():
    """
    Hang, after the folder of the dumps is gone.
    """
    shutil.rmtree(DUMP_DIR)
    hang()


def hang_without_space():
    """
    Hang, with a disk on which nothing can be written.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    print("ready", flush=True)
    hang()


def fail():
    """
    Raise, while a call is in flight.
    """
    dist.all_reduce(torch.ones(1), async_op=True)
    msg = "no data\nleft"
    raise ValueError(msg)


def exit_in_flight():
    """
    Exit with an error, while a call is in flight.
    """
    dist.all_reduce(torch.ones(1), async_op=True)
    sys.exit(3)


def finish():
    """
    End without an error.
    """


def terminate():
    """
    Abort as an exception does that C++ code does not catch.
    """
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


if __name__ == "__main__":
    BEHAVIOR, DUMP_DIR, STORE = sys.argv[1:]
    RANK = int(os.environ["RANK"])
    enable_flight_recorder(dump_dir=DUMP_DIR)
    dist.init_process_group(
        "gloo", init_method=f"file://{STORE}", rank=RANK, world_size=2
    )
    for _ in range(2):
        dist.all_reduce(torch.ones(1))
    print("ready", flush=True)
    if RANK == 1:
        sys.stdin.read()
        os._exit(0)
    sys.stdin.readline()
    globals()[BEHAVIOR]()
