"""
Run one rank of a test: join the process group, call the function, report.

:mod:`~distdebug.integrations.local_ranks` starts it, with the variables of the
rank in the environment, and removes what it leaves.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
import time

from pathlib import Path
from typing import Any

import distdebug

from distdebug._io import write_whole


_PR_SET_PDEATHSIG = 1


def main(parent: str, folder: str, all_returned: str) -> None:
    """
    Run the rank; an exception of the function ends the process, as usual.

    Args:
        parent: The PID of the process that started it, and with which it ends.

        folder: The folder of the run.

        all_returned: The descriptor of a pipe, which is closed when the
            function has returned on all ranks.
    """
    _end_with(int(parent))

    # Imported here, as the parent may have ended meanwhile; and before the
    # recorder is enabled, which then knows what this torch reads.
    from torch import distributed

    distdebug.enable_flight_recorder(dump_dir=Path(folder, "dumps"))
    rank, size = (int(os.environ[x]) for x in ("RANK", "WORLD_SIZE"))
    run = Path(folder).absolute()
    distributed.init_process_group(
        "gloo", init_method=f"file://{run}/store", rank=rank, world_size=size
    )
    # It was pickled by the process that started us, in a folder of its own.
    function, arguments = pickle.loads(run.joinpath("call").read_bytes())  # noqa: S301
    run.joinpath(f"{rank}.started").touch()
    try:
        function(**arguments)
    except BaseException as exc:
        report, kind = _describe(exc)
        _write(run / f"{rank}.end", report)
        if kind == "raised":
            raise
    else:
        _write(run / f"{rank}.end", {"kind": "returned"})
    # A rank that leaves early would end the calls of those that still work.
    os.read(int(all_returned), 1)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _end_with(parent: int) -> None:
    """
    Have the kernel kill this process when its parent dies.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this rank has ended")


def _describe(exc: BaseException) -> tuple[dict[str, Any], str]:
    """
    Describe an exception as *pytest* does, and say what it means to it.
    """
    import pytest

    info = pytest.ExceptionInfo.from_exception(exc)
    kind = (
        "skip"
        if isinstance(exc, pytest.skip.Exception)
        else "xfail"
        if isinstance(exc, pytest.xfail.Exception)
        else "raised"
    )
    frames = info.traceback.filter(lambda x: Path(x.path) != Path(__file__))
    text = info.getrepr(tbfilter=lambda _: frames or info.traceback)
    return {
        "kind": kind,
        "summary": getattr(exc, "msg", None) or info.exconly(),
        "traceback": str(text),
    }, kind


def _write(path: Path, report: dict[str, Any]) -> None:
    data = {**report, "at_s": time.monotonic()}
    write_whole(path, json.dumps(data).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
