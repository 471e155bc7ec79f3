"""
How does nsys turn a large report into another form, and end in time?

It starts programs of its own, and writes files as large as the report.
"""

from __future__ import annotations

import os
import signal
import subprocess

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..._text import clean
from ...capture.tool import stoppable


__all__ = ["Ended", "run_in_group"]

_MOST_OUTPUT = 1 << 20
_REAP_S = 5.0


class Ended(NamedTuple):
    """
    How a command ended.

    Attributes:
        status: Its exit status; ``None`` if its time was over.

        output: What it printed, at most 1 MiB of it.
    """

    status: int | None
    output: str

    @property
    def why(self) -> str:
        """
        One line that says why it failed.
        """
        if self.status is None:
            return "nsys was not done in time"
        lines = [x for x in self.output.splitlines() if x.strip()]
        last = clean(lines[-1]) if lines else "it said nothing"
        return f"nsys ended with status {self.status}: {last}"


def run_in_group(argv: Sequence[str], folder: Path, timeout_s: float) -> Ended:
    """
    Run a command in a process group, which is gone afterwards.

    Args:
        argv: The command and its arguments.

        folder: Where it may leave files.

        timeout_s: How long it may take, in seconds.

    Returns:
        How it ended.

    Raises:
        OSError: It cannot be started.
    """
    printed = folder / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        status: int | None = None
        try:
            with (
                stoppable(lambda: _kill(process)),
                suppress(subprocess.TimeoutExpired),
            ):
                status = process.wait(timeout_s)
        finally:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
    with printed.open("rb") as text:
        output = text.read(_MOST_OUTPUT).decode("utf-8", "replace")
    return Ended(status, output)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # What it started may outlive it, in the same group.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
