"""
Run child processes with bounded time and output, and stream to others.

There are three ways: run a command to its end (:func:`run_process`), stream
bytes to and from a program on a node (:class:`Channel`), and exchange lines
with a child process (:func:`child_session`).
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

from .results import (
    CommandLimits,
    CompletedCommand,
    NodeFailure,
    NodeStatus,
    exit_failure,
)


# Per stream, in bytes; the oldest output is dropped.
MAX_BYTES = 1 << 25
# How often to check for the end of the process and for `stop`.
_POLL_S = 0.1
# A process that is blocked in the kernel ends only after that call.
_REAP_S = 5.0


def run_process(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    limits: CommandLimits,
    data: bytes | None = None,
) -> CompletedCommand:
    """
    Run a command and collect its output.

    It runs in its own process group, which is killed at the timeout or when
    ``limits.stop`` is set.

    Args:
        data: Its standard input; ``None`` for an empty one.

    Raises:
        OSError: It cannot be started.
    """
    with _stdin_file(data) as stdin:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    with selectors.DefaultSelector() as selector:
        reader = _OutputReader(process, selector)
        in_time = False
        try:
            reader.read(time.monotonic() + limits.timeout_s, limits.stop)
            in_time = process.poll() is not None
            if not in_time and limits.grace_s:
                _signal(process, signal.SIGTERM)
                end = time.monotonic() + limits.grace_s
                reader.read(end, threading.Event())
        finally:
            _kill(process)
            reader.close()

    output, stderr = map(bytes, reader.buffers.values())
    status = process.returncode if in_time else None
    return CompletedCommand(status, output, stderr)


def try_run_process(
    argv: Sequence[str],
    *,
    data: bytes | None,
    environment: Mapping[str, str],
    limits: CommandLimits,
) -> CompletedCommand:
    """
    Run a command as :func:`run_process` does; a failed start is a result.

    Args:
        data: Its standard input; ``None`` for an empty one.
    """
    try:
        return run_process(
            argv, environment=environment, limits=limits, data=data
        )
    except (OSError, ValueError) as exc:
        return CompletedCommand(
            failure=NodeFailure(
                NodeStatus.FAILED,
                f"it could not be started: {exc}",
                "see whether the command exists and may be run here",
            )
        )


@contextmanager
def _stdin_file(data: bytes | None) -> Iterator[IO[bytes] | int]:
    """
    Yield the standard input of a command.

    A pipe would block if the command does not read, and a disk may be full.
    """
    if data is None:
        yield subprocess.DEVNULL
        return

    with os.fdopen(os.memfd_create("distdebug"), "w+b") as file:
        file.write(data)
        file.seek(0)
        yield file


class _OutputReader:
    """
    Reads the output of a process into bounded buffers.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
    ) -> None:
        self._process, self._selector = process, selector
        self._streams = [x for x in (process.stdout, process.stderr) if x]
        self.buffers = {x.fileno(): bytearray() for x in self._streams}
        for stream in self._streams:
            selector.register(stream, selectors.EVENT_READ)

    def close(self) -> None:
        """
        Close both streams.
        """
        for stream in self._streams:
            stream.close()

    def read(self, deadline: float, stop: threading.Event) -> None:
        """
        Read until the process has ended, the time is over, or *stop* is set.

        Do not wait for the end of a pipe: a child of the process may keep it
        open for ever.
        """
        while time.monotonic() < deadline and not stop.is_set():
            has_ended = self._process.poll() is not None
            while self._read_once(0.0 if has_ended else _POLL_S):
                if time.monotonic() >= deadline or stop.is_set():
                    return
            if has_ended:
                return
            if not self._selector.get_map():
                # The process has closed its output, but still runs.
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)

    def _read_once(self, wait_s: float) -> bool:
        if not self._selector.get_map():
            return False

        ready = self._selector.select(wait_s)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            buffer = self.buffers[key.fd]
            buffer += data
            if len(buffer) > 2 * MAX_BYTES:
                del buffer[:-MAX_BYTES]
            if not data:
                self._selector.unregister(key.fileobj)
        return bool(ready)


def _signal(process: subprocess.Popen[bytes], signum: int) -> None:
    # After a wait, the PID may belong to another process.
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signum)


def _kill(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


# In bytes; a pipe holds no more.
_MAX_STDERR = 1 << 16
# How long a child may take to end after it has closed its output.
_EXIT_WAIT_S = 0.5


@attrs.frozen(kw_only=True)
class Channel:
    """
    A running program on a node, with one socket for its input and output.

    Attributes:
        socket: The standard input and output of the program.

        failure: Returns why the program has ended.

        wait: Waits at most this many seconds for the local process, if there
            is one, and then ends it.
    """

    socket: socket.socket
    failure: Callable[[], NodeFailure]
    wait: Callable[[float], None]


Connector = Callable[[], Channel]
"""Starts the program on one node; may raise `OSError`."""


class StreamExecutor(Protocol):
    """
    An engine that starts programs on nodes and streams to them.
    """

    @property
    def python(self) -> str:
        """
        Return the Python that runs the program.
        """

    def connectors(
        self, argv: Sequence[str]
    ) -> AbstractContextManager[Mapping[str, Connector]]:
        """
        Return a context with a connector for each node, by host name.

        The connectors can be used while the context is open.

        Raises:
            NodesError: The nodes are unknown.
        """


def open_channel(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    explain: Callable[[CompletedCommand], NodeFailure | None],
) -> Channel:
    """
    Start a command that runs a program on a node, such as ``ssh``.

    Args:
        explain: Returns the failure that the command's standard error shows;
            ``None`` if it shows none.

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
                # Ctrl-C must reach only this process.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise

    return Channel(
        socket=ours,
        failure=lambda: _explain_exit(process, explain),
        wait=lambda seconds: _terminate(process, seconds),
    )


def close_channels(channels: Iterable[Channel], grace_s: float = 3.0) -> None:
    """
    Close all channels and wait until their processes have ended.

    Args:
        grace_s: The time for all of them together, in seconds.
    """
    left = list(channels)
    for channel in left:
        channel.socket.close()
    end = time.monotonic() + grace_s
    for channel in left:
        channel.wait(max(end - time.monotonic(), 0.0))


def _explain_exit(
    process: subprocess.Popen[bytes],
    explain: Callable[[CompletedCommand], NodeFailure | None],
) -> NodeFailure:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_WAIT_S)
    status, stderr = process.poll(), _read_stderr(process.stderr)
    if failure := explain(CompletedCommand(status, stderr=stderr)):
        return failure
    if status in {None, 0}:
        return NodeFailure(NodeStatus.FAILED, "the connection broke")
    return exit_failure(status, stderr.decode("utf-8", "replace"), 0.0)


def _read_stderr(stderr: IO[bytes] | None) -> bytes:
    if stderr is None or stderr.closed:
        return b""

    os.set_blocking(stderr.fileno(), False)
    with suppress(BlockingIOError):
        return os.read(stderr.fileno(), _MAX_STDERR)
    return b""


def _terminate(process: subprocess.Popen[bytes], seconds: float) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            # After a wait, the PID may belong to another process.
            with suppress(OSError):
                os.killpg(process.pid, signum)
        seconds = _EXIT_WAIT_S
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_WAIT_S)
    if process.stderr:
        process.stderr.close()


# In bytes; an answer with two full streams takes 90 MiB.
_MAX_LINE = 1 << 28
# How long the child may take to end its work on other nodes.
_CLOSE_GRACE_S = 5.0


class ChildSession:
    """
    A child process that answers line by line.

    Attributes:
        stdin: Its standard input.

        stderr: The last 64 KiB of its standard error.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], select: selectors.BaseSelector
    ) -> None:
        self.stdin = cast("IO[bytes]", process.stdin)
        self.stderr = b""
        self._select = select
        self._buffer = bytearray()
        self._searched = 0
        for name in ("stdout", "stderr"):
            stream = getattr(process, name)
            select.register(stream, selectors.EVENT_READ, name)

    def read_line(self, deadline: float) -> bytes | None:
        """
        Return the next line of output; ``None`` at its end.

        Args:
            deadline: As of :func:`time.monotonic`.

        Raises:
            TimeoutError: No line arrived in time.

            ValueError: The line is too long.
        """
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > _MAX_LINE:
                msg = f"it said more than {_MAX_LINE:,} bytes without a pause"
                raise ValueError(msg)
            if not self._select.get_map():
                return None
            self._read(deadline - time.monotonic())

        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
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
                self._buffer += data
            else:
                stderr = self.stderr + data
                self.stderr = stderr[-_MAX_STDERR:]


@contextmanager
def child_session(
    argv: Sequence[str],
    *,
    request: bytes,
    environment: Mapping[str, str],
    pass_fds: Collection[int] = (),
) -> Iterator[ChildSession]:
    """
    Start a child process, send it one line, and yield its session.

    The child has to end when its standard input does.

    Args:
        request: The first line, without its end.

        pass_fds: The file descriptors that it inherits.

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
            # Ctrl-C must reach only this process, which closes the session.
            start_new_session=True,
            pass_fds=pass_fds,
        ) as process,
        selectors.DefaultSelector() as select,
    ):
        session = ChildSession(process, select)
        try:
            with suppress(BrokenPipeError):
                session.stdin.write(request + b"\n")
                session.stdin.flush()
            yield session
        finally:
            _close_session(process, session)


def _close_session(
    process: subprocess.Popen[bytes], session: ChildSession
) -> None:
    deadline = time.monotonic() + _CLOSE_GRACE_S
    try:
        with suppress(BrokenPipeError):
            session.stdin.close()
        # Keep reading, so that the child does not block on a full pipe.
        with suppress(TimeoutError, ValueError, subprocess.TimeoutExpired):
            while session.read_line(deadline) is not None:
                pass
            process.wait(max(deadline - time.monotonic(), 0.0))
    finally:
        process.kill()
