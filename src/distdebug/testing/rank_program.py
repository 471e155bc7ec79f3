"""
Run one local rank: join the process group, call the function, report.

:mod:`~distdebug.testing.local_ranks` starts it, with the variables of the
rank in the environment, and removes what it leaves.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import sys
import time
import traceback
import unittest

from contextlib import suppress
from pathlib import Path
from typing import Any

from distdebug._io import write_whole
from distdebug.capture import end_with_parent
from distdebug.errors import NotRecordingError
from distdebug.flight_recorder import (
    dump_flight_recorder,
    enable_flight_recorder,
)


_MOST_CHARS = 1 << 20


def main(parent: str, folder: str, gate: str) -> None:
    """
    Run the rank; an exception of the function ends the process, as usual.

    Args:
        parent: The PID of the process that started it, and with which it ends.

        folder: The folder of the run.

        gate: The descriptor of a pipe that is closed when the function has
            returned on all ranks.
    """
    if not end_with_parent(int(parent)):
        sys.exit("the process that started this rank has ended")

    # Imported here, as the parent may have ended meanwhile; and before the
    # recorder is enabled, which then knows what this torch reads.
    from torch import distributed

    enable_flight_recorder(dump_dir=Path(folder, "dumps"))
    rank, size = (int(os.environ[x]) for x in ("RANK", "WORLD_SIZE"))
    run = Path(folder).absolute()
    distributed.init_process_group(
        "gloo", init_method=f"file://{run}/store", rank=rank, world_size=size
    )
    # It was pickled by the process that started us, in a folder of its own.
    function, arguments = pickle.loads(run.joinpath("call").read_bytes())  # noqa: S301
    run.joinpath(f"{rank}.started").touch()
    log = run / "logs" / f"rank_{rank}.log"
    try:
        result = function(**arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except BaseException as exc:
        end = _describe(exc, function)
        _write(run / f"{rank}.end", end, log)
        if end["kind"] == "raised":
            raise
    else:
        with suppress(NotRecordingError):  # a schedule is made from it
            dump_flight_recorder()
        _write(run / f"{rank}.end", {"kind": "returned"}, log)
    wait_for_other_ranks(int(gate))
    if distributed.is_initialized():
        distributed.destroy_process_group()


def wait_for_other_ranks(gate: int) -> None:
    """
    Wait until the function has returned on all ranks.

    A rank that left now would end the calls of those that still work.

    Args:
        gate: The descriptor of a pipe, which is closed then.
    """
    os.read(gate, 1)


def _describe(exc: BaseException, function: Any) -> dict[str, Any]:
    """
    Describe an exception as *pytest* does, and what it means for a test.
    """
    try:
        end = _describe_for_pytest(exc, function)
    except Exception:  # noqa: BLE001 it is not there, or the function is odd
        last = "".join(traceback.format_exception_only(exc)).strip()
        text = "".join(traceback.format_exception(exc))
        end = {"kind": "raised", "summary": last, "traceback": text}
    return {key: text[:_MOST_CHARS] for key, text in end.items()}


def _describe_for_pytest(exc: BaseException, function: Any) -> dict[str, str]:
    import pytest

    code = getattr(inspect.unwrap(function), "__code__", None)
    info = pytest.ExceptionInfo.from_exception(exc)
    shown = info.traceback.cut(path=getattr(code, "co_filename", None))
    text = str(info.getrepr(tbfilter=lambda _: shown))
    kinds: dict[str, Any] = {
        "skip": (pytest.skip.Exception, unittest.SkipTest),
        "xfail": pytest.xfail.Exception,
    }
    names = [name for name, kind in kinds.items() if isinstance(exc, kind)]
    return {
        "kind": next(iter(names), "raised"),
        "summary": str(exc) if names else info.exconly(),
        # It has lost the indentation of its first line.
        "traceback": text if text.startswith(">") else f"    {text}",
    }


def _write(path: Path, end: dict[str, Any], log: Path) -> None:
    # What follows in the log is said by the end itself.
    data = {**end, "at_s": time.monotonic(), "printed": log.stat().st_size}
    write_whole(path, json.dumps(data).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
