"""
How is a command run so that neither its time nor its output gets out of hand?
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import threading
import time

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Protocol, cast

import attrs

from .results import Bound, Ended, NodeStatus, Trouble, trouble_of


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


# Of what it complains of; a pipe holds no more.
_MOST_COMPLAINT = 1 << 16
# A child whose output ended ends soon.
_STREAM_REAP_S = 0.5


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
        process.wait(_STREAM_REAP_S)
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
        seconds = _STREAM_REAP_S
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STREAM_REAP_S)
    if process.stderr:
        process.stderr.close()


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
