"""
How is a program on another node talked to while it runs?

Its standard input and output are one socket here, so that whoever talks to
many of them can wait for all at once.  It has to end when its input does: then
nothing stays on a node, however we end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import IO, Protocol

import attrs

from .last_words import trouble_of
from .model import Ended, NodeStatus, Trouble


__all__ = ["Channel", "Door", "Talks", "close_channels", "open_channel"]

# Of what it complains of; a pipe holds no more.
_MOST_COMPLAINT = 1 << 16
# A child whose output ended ends soon.
_REAP_S = 0.5


@attrs.frozen(kw_only=True)
class Channel:
    """
    A program on a node.

    Attributes:
        socket: Its standard input and output.

        why: Tells why it is not there any more.

        wait: Waits until nothing of it is left here, for so many seconds at
            most, and makes it so.
    """

    socket: socket.socket
    why: Callable[[], Trouble]
    wait: Callable[[float], None]


Door = Callable[[], Channel]
"""Starts the program on one node; it may raise `OSError`."""


class Talks(Protocol):
    """
    What lets us talk to a program on each node of a job.
    """

    @property
    def python(self) -> str:
        """
        Which Python runs the program?
        """

    def doors(
        self, argv: Sequence[str]
    ) -> AbstractContextManager[Mapping[str, Door]]:
        """
        On which nodes can a program be started?

        Args:
            argv: The command.

        Returns:
            What starts it, by the name of the node, as long as the context is
            open.

        Raises:
            NodesError: The nodes are not known.
        """


def open_channel(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    explain: Callable[[Ended], Trouble | None],
) -> Channel:
    """
    Start a command that brings a program to a node.

    Args:
        argv: The command.

        environment: Its environment.

        explain: Knows what it says when it fails.

    Returns:
        What to talk to.

    Raises:
        OSError: It cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                env=environment,
                # An interrupt is for us.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise

    return Channel(
        socket=ours,
        why=lambda: _why(process, explain),
        wait=lambda seconds: _wait(process, seconds),
    )


def close_channels(channels: Iterable[Channel], grace_s: float = 3.0) -> None:
    """
    Talk to none of them any more, and see that they end.

    Args:
        channels: The programs.

        grace_s: How long all of them together may take, in seconds.
    """
    left = list(channels)
    for channel in left:
        channel.socket.close()
    end = time.monotonic() + grace_s
    for channel in left:
        channel.wait(max(end - time.monotonic(), 0.0))


def _why(
    process: subprocess.Popen[bytes],
    explain: Callable[[Ended], Trouble | None],
) -> Trouble:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
    status, complaint = process.poll(), _complaint(process.stderr)
    if trouble := explain(Ended(status, complaint=complaint)):
        return trouble
    if status in {None, 0}:
        return Trouble(NodeStatus.FAILED, "the connection broke")
    return trouble_of(status, complaint.decode("utf-8", "replace"), 0.0)


def _complaint(stderr: IO[bytes] | None) -> bytes:
    if stderr is None or stderr.closed:
        return b""

    os.set_blocking(stderr.fileno(), False)
    with suppress(BlockingIOError):
        return os.read(stderr.fileno(), _MOST_COMPLAINT)
    return b""


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            # Only as long as it was not waited for is the number surely its.
            with suppress(OSError):
                os.killpg(process.pid, number)
        seconds = _REAP_S
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
    if process.stderr:
        process.stderr.close()
