"""
How is a tool run so that it neither outlives its time nor its caller?
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


__all__ = ["ToolOutput", "find_tool", "run_tool"]

_MOST_BYTES = 1 << 28


class ToolOutput(NamedTuple):
    """
    What a tool left.

    Attributes:
        status: Its exit status; ``None`` if its time was over.

        output: What it printed, at most 256 MiB.

        complaint: What it printed to its standard error.
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


def run_tool(argv: Sequence[str], *, timeout_s: float) -> ToolOutput:
    """
    What does this tool print?

    It runs in a process group of its own, which is killed when the time is
    over or the caller is interrupted.  It is killed outright: tools that
    attach to processes may leave them stopped when they are asked politely.

    Args:
        argv: The tool and its arguments.

        timeout_s: How long it may take, in seconds.

    Returns:
        What it left.

    Raises:
        OSError: It cannot be started.
    """
    # Files, because a pipe is only at its end when all that inherited it are
    # gone.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = [_text_of(file.fileno()) for file in (out, err)]

    return ToolOutput(status, *texts)


def _text_of(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
