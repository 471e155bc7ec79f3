"""
How is a child process talked to that answers line by line?
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, cast


__all__ = ["Conversation", "converse"]

# Of what it complains of; what came first is dropped.
_MOST_COMPLAINT = 1 << 16
# An answer with all that is kept of two streams takes 90 MiB.
_MOST_LINE = 1 << 28
# So long may it end by itself what it began elsewhere.
_LEAVE_S = 5.0


class Conversation:
    """
    What a child process says.

    Attributes:
        tell: Its standard input.

        complaint: The last 64 KiB of its standard error.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], select: selectors.BaseSelector
    ) -> None:
        self.tell = cast("IO[bytes]", process.stdin)
        self.complaint = b""
        self._select = select
        self._heard = bytearray()
        self._searched = 0
        for name in ("stdout", "stderr"):
            stream = getattr(process, name)
            select.register(stream, selectors.EVENT_READ, name)

    def hear(self, until: float) -> bytes | None:
        """
        What does it say next?

        Args:
            until: By when, as of :func:`time.monotonic`.

        Returns:
            A line; ``None`` if it has no more to say.

        Raises:
            TimeoutError: It says nothing in time.

            ValueError: It says too much.
        """
        while (end := self._heard.find(b"\n", self._searched)) < 0:
            self._searched = len(self._heard)
            if self._searched > _MOST_LINE:
                msg = f"it said more than {_MOST_LINE:,} bytes without a pause"
                raise ValueError(msg)
            if not self._select.get_map():
                return None
            self._read(until - time.monotonic())

        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        self._searched = 0
        return line

    def _read(self, wait_s: float) -> None:
        ready = self._select.select(max(wait_s, 0.0))
        if not ready and wait_s <= 0:
            raise TimeoutError
        for key, _ in ready:
            data = os.read(key.fd, 1 << 20)
            if not data:
                self._select.unregister(key.fileobj)
            elif key.data == "stdout":
                self._heard += data
            else:
                kept = self.complaint + data
                self.complaint = kept[-_MOST_COMPLAINT:]


@contextmanager
def converse(
    argv: Sequence[str],
    *,
    question: bytes,
    environment: Mapping[str, str],
    pass_fds: Collection[int] = (),
) -> Iterator[Conversation]:
    """
    Talk to a child process; it has to end when its standard input does.

    Args:
        argv: The command.

        question: What it is told first.

        environment: Its environment.

        pass_fds: What it shares with us.

    Yields:
        What it says.

    Raises:
        OSError: It cannot be started.
    """
    with (
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            # An interrupt is for us; we tell it.
            start_new_session=True,
            pass_fds=pass_fds,
        ) as process,
        selectors.DefaultSelector() as select,
    ):
        talk = Conversation(process, select)
        try:
            with suppress(BrokenPipeError):
                talk.tell.write(question + b"\n")
                talk.tell.flush()
            yield talk
        finally:
            _leave(process, talk)


def _leave(process: subprocess.Popen[bytes], talk: Conversation) -> None:
    until = time.monotonic() + _LEAVE_S
    try:
        with suppress(BrokenPipeError):
            talk.tell.close()
        # Listen on, so that it does not wait for us.
        with suppress(TimeoutError, ValueError, subprocess.TimeoutExpired):
            while talk.hear(until) is not None:
                pass
            process.wait(max(until - time.monotonic(), 0.0))
    finally:
        process.kill()
