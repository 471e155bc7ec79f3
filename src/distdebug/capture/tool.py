"""
How is a tool run so that it neither outlives its time nor its caller?
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from .._io import scratch_file


# The JSON of 10,000 threads stays below.
_MOST_BYTES = 1 << 26
_MOST_COMPLAINT = 1 << 16
_MOST_SECRET = 1 << 25
# What waits inside the kernel cannot be killed before that is over.
_REAP_S = 5.0

# How to stop the tools that run now.  Threads that wait for them cannot be
# interrupted, so whoever is interrupted in their place stops the tools.
_stops: set[Callable[[], object]] = set()


class ToolOutput(NamedTuple):
    """
    What a tool left.

    Attributes:
        status: Its exit status; ``None`` if its time was over.

        output: What it printed, at most 64 MiB.

        complaint: What it printed to its standard error, at most 64 KiB.
    """

    status: int | None
    output: str
    complaint: str


def find_tool(name: str) -> str | None:
    """
    Where is this tool?

    Args:
        name: Such as ``"py-spy"``.

    Returns:
        The one that belongs to this Python, or else the one on ``PATH``.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name)


def run_tool(
    argv: Sequence[str], *, timeout_s: float, is_secret: bool = False
) -> ToolOutput:
    """
    What does this tool print?

    It is for tools that stop nobody.  It runs in a process group of its own,
    which is killed when the time is over or the caller is interrupted.

    Args:
        argv: The tool and its arguments.

        timeout_s: How long it may take, in seconds.

        is_secret: Whether its output may not come near a disk.  Then it is
            kept in memory, and may be 32 MiB at most.

    Returns:
        What it left.

    Raises:
        OSError: It cannot be started.
    """
    # Files, because a pipe is only at its end when all that inherited it are
    # gone.
    with _file(in_memory=is_secret) as out, _file() as err:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with stoppable(lambda: _kill(process)):
                most = _MOST_SECRET if is_secret else _MOST_BYTES
                _bound(process.pid, timeout_s, most)
                status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(process)
        output = _text_of(out.fileno(), _MOST_BYTES)
        complaint = _text_of(err.fileno(), _MOST_COMPLAINT)

    return ToolOutput(status, output, complaint)


def stop_tools() -> None:
    """
    End every tool of this process that runs now.

    Those who wait for one get what it left so far.
    """
    for stop in tuple(_stops):
        stop()


@contextmanager
def stoppable(stop: Callable[[], object]) -> Iterator[None]:
    """
    Let `stop_tools` end something while the block runs.

    Args:
        stop: What ends it; may be called from any thread, and more than once.
    """
    _stops.add(stop)
    try:
        yield
    finally:
        _stops.discard(stop)


def _file(*, in_memory: bool = False) -> IO[bytes]:
    if in_memory:
        return os.fdopen(os.memfd_create("distdebug"), "w+b")
    return scratch_file()


def _bound(pid: int, timeout_s: float, most_bytes: int) -> None:
    """
    Let the kernel see to it that a tool ends when we are killed meanwhile.

    It neither computes for ever, nor fills a disk with output or with an
    image of itself.
    """
    seconds = int(timeout_s) + 2
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, most_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(OSError, ValueError):
            resource.prlimit(pid, limit, (most, most))


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Only as long as it was not waited for is the number surely its own.
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def _text_of(fd: int, most: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read(most).decode("utf-8", "replace")
