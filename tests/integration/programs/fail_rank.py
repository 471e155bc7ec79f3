"""
A rank of a job in which rank 1 comes to grief in the way that is asked for.
"""

import contextlib
import ctypes
import datetime as dt
import faulthandler
import importlib
import math
import os
import resource
import signal
import sys
import time

from pathlib import Path

import torch
import torch.distributed as dist

from meeting import gather
from torch.utils.data import DataLoader, Dataset


def raise_error(_: Path) -> None:
    """
    Find nothing in a batch.
    """
    msg = "batch 17 is empty"
    raise ValueError(msg)


def raise_chain(_: Path) -> None:
    """
    Fail because something else failed.
    """
    try:
        {}["tokens"]
    except KeyError:
        msg = "no data"
        raise RuntimeError(msg) from None


def crash(_: Path) -> None:
    """
    Read where there is nothing.
    """
    faulthandler.enable()
    ctypes.string_at(0)


def use_memory(_: Path) -> None:
    """
    Ask for more memory than there is.
    """
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    torch.ones(1 << 34)


def fill_disk(_: Path) -> None:
    """
    Write where nothing fits.
    """
    Path("/dev/full").write_bytes(bytes(1 << 20))


def open_files(_: Path) -> None:
    """
    Open more files than are allowed.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.ExitStack() as stack:
        for _ in range(99):
            stack.enter_context(Path(__file__).open())


def load_checkpoint(folder: Path) -> None:
    """
    Load a file that is cut off.
    """
    path = folder / "broken.pt"
    path.write_bytes(b"PK\x03\x04 cut off")
    torch.load(path)


WAYS = {
    "raise": raise_error,
    "chain": raise_chain,
    "segfault": crash,
    "abort": lambda _: os.abort(),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "memory": use_memory,
    "disk": fill_disk,
    "files": open_files,
    "module": lambda _: importlib.import_module("no_such_module_anywhere"),
    "loader": lambda _: list(DataLoader(Rows(), num_workers=1)),
    "loader-kill": lambda _: list(DataLoader(Killer(), num_workers=1)),
    "checkpoint": load_checkpoint,
    "state": lambda _: torch.nn.Linear(2, 2).load_state_dict({}),
    "late": lambda _: time.sleep(600),
}


class Rows(Dataset):
    """
    Data that is broken.
    """

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        msg = "bad row"
        raise ValueError(msg)


class Killer(Rows):
    """
    Data that costs the process that loads it its life.
    """

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


def main() -> None:
    """
    Work for some steps.
    """
    how, folder = sys.argv[1:]
    gather(Path(folder), int(os.environ["RANK"]), 2)
    dist.init_process_group(
        "gloo", timeout=dt.timedelta(seconds=5 if how == "late" else 60)
    )
    for step in range(5):
        if dist.get_rank() == 1 and step == 3:
            WAYS.get(how, print)(Path(folder))
        loss = math.nan if how == "nan" and step > 2 else 1 / (step + 1)
        dist.all_reduce(torch.ones(8))
        print(
            f"step: {step} loss: {loss:.4f} number of nan iterations:   0",
            flush=True,
        )
    dist.destroy_process_group()
    print("done with 0 errors", flush=True)


if __name__ == "__main__":
    main()
