"""
How is a command run so that neither its time nor its output gets out of hand?
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from .results import Bound, Ended, NodeStatus, Trouble


__all__ = ["MOST_BYTES", "Bound", "Ended", "run_errand", "run_process"]

# Of each of both streams; what came first is dropped.
MOST_BYTES = 1 << 25
# How often to see whether the process ended or the caller gave up.
_BEAT_S = 0.1
# What waits inside the kernel cannot be killed before that is over.
_REAP_S = 5.0


def run_process(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    bound: Bound,
    data: bytes | None = None,
) -> Ended:
    """
    What does this command print, and how does it end?

    It runs in a process group of its own, which is killed when the time is
    over or nobody wants more of it.

    Args:
        argv: The command.

        environment: Its environment.

        bound: When it is ended.

        data: What it reads from its standard input, if anything.

    Returns:
        What it left.

    Raises:
        OSError: It cannot be started.
    """
    with _input(data) as stdin:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    with selectors.DefaultSelector() as selector:
        kept = _Streams(process, selector)
        in_time = False
        try:
            kept.read(time.monotonic() + bound.timeout_s, bound.stop)
            in_time = process.poll() is not None
            if not in_time and bound.grace_s:
                _signal(process, signal.SIGTERM)
                end = time.monotonic() + bound.grace_s
                kept.read(end, threading.Event())
        finally:
            _end(process)
            kept.close()

    output, complaint = map(bytes, kept.kept.values())
    status = process.returncode if in_time else None
    return Ended(status, output, complaint)


def run_errand(
    argv: Sequence[str],
    *,
    data: bytes | None,
    environment: Mapping[str, str],
    bound: Bound,
) -> Ended:
    """
    What does this command make of this data?

    Args:
        argv: The command.

        data: What it reads from its standard input, if anything.

        environment: Its environment.

        bound: When it is ended.

    Returns:
        What it left; that it cannot be started is a trouble.
    """
    try:
        return run_process(
            argv, environment=environment, bound=bound, data=data
        )
    except (OSError, ValueError) as exc:
        return Ended(
            trouble=Trouble(
                NodeStatus.FAILED,
                f"it could not be started: {exc}",
                "see whether the command exists and may be run here",
            )
        )


@contextmanager
def _input(data: bytes | None) -> Iterator[IO[bytes] | int]:
    """
    What a command reads: no pipe, at which we would wait for one that does not
    read, and nothing on a disk, which may be full.
    """
    if data is None:
        yield subprocess.DEVNULL
        return

    with os.fdopen(os.memfd_create("distdebug"), "w+b") as file:
        file.write(data)
        file.seek(0)
        yield file


class _Streams:
    """
    What a process prints, as far as it was read.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
    ) -> None:
        self._process, self._selector = process, selector
        self._streams = [x for x in (process.stdout, process.stderr) if x]
        self.kept = {x.fileno(): bytearray() for x in self._streams}
        for stream in self._streams:
            selector.register(stream, selectors.EVENT_READ)

    def close(self) -> None:
        """
        Read no more.
        """
        for stream in self._streams:
            stream.close()

    def read(self, until: float, stop: threading.Event) -> None:
        """
        Read until the process ended, the time is over, or nobody wants more.

        The end of a pipe is not waited for: a child of the process may keep
        it open for ever.
        """
        while time.monotonic() < until and not stop.is_set():
            ended = self._process.poll() is not None
            while self._read_once(0.0 if ended else _BEAT_S):
                if time.monotonic() >= until or stop.is_set():
                    return
            if ended:
                return
            if not self._selector.get_map():
                # It closed its output and goes on.
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_BEAT_S)

    def _read_once(self, wait_s: float) -> bool:
        if not self._selector.get_map():
            return False

        ready = self._selector.select(wait_s)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            kept = self.kept[key.fd]
            kept += data
            if len(kept) > 2 * MOST_BYTES:
                del kept[:-MOST_BYTES]
            if not data:
                self._selector.unregister(key.fileobj)
        return bool(ready)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    # Only as long as it was not waited for is the number surely its own.
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, number)


def _end(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
