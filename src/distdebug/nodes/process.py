"""
Run commands to their end, and talk to programs while they run.

There are two ways to talk: stream bytes to and from a program on a node
(:class:`Channel`), and exchange lines with a child process
(:func:`child_session`).
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
from functools import partial
from typing import IO, Any, Protocol, cast

import attrs

from .._proc import map_with_timeout, run_child, write_in_time
from .results import (
    CompletedCommand,
    NodeFailure,
    NodeReply,
    NodeStatus,
    closed_failure,
)


def run_command(argv: Sequence[str], **limits: Any) -> CompletedCommand:
    """
    Run a command as `run_child` does; a failed start is a result.
    """
    try:
        return CompletedCommand(*run_child(argv, **limits))
    except (OSError, ValueError) as exc:
        reason = f"it could not be started: {exc}"
        remedy = "see whether the command exists and may be run here"
        failure = NodeFailure(NodeStatus.FAILED, reason, remedy)
        return CompletedCommand(failure=failure)


# How long a stopped command may take to end, in seconds.
_END_WAIT_S = 5.0
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


class CommandEngine:
    """
    Base of engines that reach each node by a local command, such as ``ssh``.

    Attributes:
        at_once: How many nodes run the command at the same time.

        grace_s: How long a command may take to end after SIGTERM, in seconds;
            0 kills it at once.
    """

    __slots__ = ()

    at_once = 1
    grace_s = 0.0

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[NodeReply]:
        """
        Run a command on each node and yield the replies as they arrive.

        Closing the iterator ends the commands that still run.

        Args:
            data: Its standard input; ``None`` for an empty one.

            timeout_s: How long it may take on each node, in seconds.

        Raises:
            NodesError: The nodes are unknown, or cannot be reached from here.
        """
        commands = self.commands(argv)
        at_once = max(1, min(self.at_once, len(commands)))
        stop, running = threading.Event(), threading.Semaphore(at_once)
        run_one = partial(
            run_command,
            data=data,
            environment=self.environment(),
            timeout_s=timeout_s,
            grace_s=self.grace_s,
            stop=stop,
        )

        def reply(host: str) -> NodeReply:
            begin = time.monotonic()
            with running:
                completed = run_one(commands[host])
            failure = completed.failure or self.explain(completed)
            seconds = time.monotonic() - begin
            completed = completed._replace(failure=failure)
            return NodeReply(host, completed, len(commands), seconds)

        replies = map_with_timeout(
            reply, commands, threads=at_once, may_block=True
        )
        try:
            for _, future in replies:
                yield future.result()
        finally:
            stop.set()
            replies.close()
            for _ in range(at_once):
                running.acquire(timeout=_END_WAIT_S)

    @contextmanager
    def connectors(
        self, argv: Sequence[str]
    ) -> Iterator[Mapping[str, Connector]]:
        """
        Yield a connector for each node, by host name.

        Raises:
            NodesError: The nodes are unknown, or cannot be reached from here.
        """
        yield {
            host: partial(_open_channel, self, command)
            for host, command in self.commands(argv).items()
        }

    def commands(self, argv: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """
        Return the local command for each host name that runs *argv* there.
        """
        raise NotImplementedError

    def explain(self, completed: CompletedCommand) -> NodeFailure | None:
        """
        Return the failure that the output shows; ``None`` if it shows none.
        """

    def environment(self) -> Mapping[str, str]:
        """
        Return the environment of the local command.
        """
        return os.environ


def _open_channel(engine: CommandEngine, argv: Sequence[str]) -> Channel:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                env=engine.environment(),
                # Ctrl-C must reach only this process.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise

    return Channel(
        socket=ours,
        failure=partial(_explain_exit, process, engine),
        wait=partial(_terminate, process),
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
    process: subprocess.Popen[bytes], engine: CommandEngine
) -> NodeFailure:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_WAIT_S)
    status, stderr = process.poll(), _read_stderr(process.stderr)
    if failure := engine.explain(CompletedCommand(status, stderr=stderr)):
        return failure
    return closed_failure(status, stderr.decode("utf-8", "replace"))


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
# How long the child may take to read its request.
_REQUEST_S = 30.0
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
            # What it does not read, it does not answer either.
            with suppress(BrokenPipeError, TimeoutError):
                write_in_time(
                    session.stdin.fileno(), request + b"\n", _REQUEST_S
                )
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
