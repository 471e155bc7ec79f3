"""
Run child processes, and calls that may never return, in bounded time.

A child runs in a process group of its own, with bounded output.  A thread that
waits inside the kernel or a driver cannot be ended: it is abandoned when its
time is over, and does not keep Python from ending.

Nothing is imported by the functions: they run on threads of jobs that fork.
"""

from __future__ import annotations

import logging
import os
import queue
import resource
import select
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from ._in_job import OwnThread
from ._secrets import redact
from ._text import clean


Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Per stream, in bytes; the oldest output is dropped.
MAX_BYTES = 1 << 25
# In bytes; what a tool may write to a file.
_MAX_FILE_BYTES = 1 << 26
# How often to check for the end of the process and for `stop`.
_POLL_S = 0.1
# A process in state D ends only when the kernel releases it.
_REAP_S = 5.0

_logger = logging.getLogger("distdebug.commands")
# Callbacks that end running children.  Threads that wait for a child cannot be
# interrupted, so the interrupted main thread ends the children instead.
_stop_callbacks: set[Callable[[], object]] = set()


class Completed(NamedTuple):
    """
    Exit status and output of a child process.

    Attributes:
        status: The exit status; ``None`` if it was killed at the timeout.

        output: The last 32 MiB of its standard output.

        stderr: The last 32 MiB of its standard error.
    """

    status: int | None = None
    output: bytes = b""
    stderr: bytes = b""


class ToolOutput(NamedTuple):
    """
    Exit status and output of a tool, as text.

    Attributes:
        status: The exit status; ``None`` if it was killed at the timeout.

        output: The last 32 MiB of its standard output.

        complaint: The last 32 MiB of its standard error.
    """

    status: int | None
    output: str
    complaint: str


def run_child(  # noqa: PLR0913 each can be left out
    argv: Sequence[str],
    *,
    timeout_s: float,
    data: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    grace_s: float = 0.0,
    stop: threading.Event | None = None,
    kill_rest: bool = False,
    cpu_s: float | None = None,
) -> Completed:
    """
    Run a command and collect its output.

    It runs in its own process group, which is killed at the timeout, when
    *stop* is set, or when the caller is interrupted.

    Args:
        data: Its standard input; ``None`` for an empty one.

        environment: Its environment; by default the one of this process.

        folder: Its working folder.

        grace_s: The time between SIGTERM and SIGKILL, in seconds; 0 kills at
            once.

        stop: Ends the command when it is set.

        kill_rest: Whether to kill also what a command that has ended leaves in
            its process group.

        cpu_s: Bound of its CPU time, in seconds; it then writes no core dump
            and no large file either, even if this process is killed meanwhile.

    Raises:
        OSError: It cannot be started.
    """
    start = time.monotonic()
    with _stdin_file(data) as stdin:
        process = _start_child(argv, stdin, environment, folder)
    has_ended = False
    with _OutputReader(process) as reader:
        try:
            if cpu_s is not None:
                _limit_resources(process.pid, cpu_s)
            with stoppable(partial(kill_group, process)):
                has_ended = reader.read(time.monotonic() + timeout_s, stop)
                if grace_s and not has_ended:
                    kill_group(process, signal.SIGTERM)
                    reader.read(time.monotonic() + grace_s)
        finally:
            if kill_rest or not has_ended:
                kill_group(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)

    output, stderr = map(bytes, reader.buffers)
    status = process.returncode if has_ended else None
    _log_child(argv, status, time.monotonic() - start)
    return Completed(status, output, stderr)


def _start_child(
    argv: Sequence[str],
    stdin: IO[bytes] | int,
    environment: Mapping[str, str] | None,
    folder: str | os.PathLike[str] | None,
) -> subprocess.Popen[bytes]:
    """
    Start a command in a process group of its own.
    """
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )


def _log_child(
    argv: Sequence[str], status: int | None, seconds: float
) -> None:
    if _logger.isEnabledFor(logging.DEBUG):
        ended = "killed at its timeout" if status is None else f"exit {status}"
        command = clean(redact(shlex.join(map(str, argv))), limit=500)
        _logger.debug("%.2f s, %s: %s", seconds, ended, command)


def run_tool(argv: Sequence[str], *, timeout_s: float) -> ToolOutput:
    """
    Run a tool that does not stop other processes, and return its output.

    Its CPU time and the size of its files are bounded.

    Raises:
        OSError: The tool cannot be started.
    """
    done = run_child(argv, timeout_s=timeout_s, cpu_s=timeout_s + 2)
    output, complaint = (x.decode("utf-8", "replace") for x in done[1:])
    return ToolOutput(done.status, output, complaint)


def find_tool(name: str) -> str | None:
    """
    Return the path of a tool: beside this Python, or else on ``PATH``.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name)


def stop_children() -> None:
    """
    Kill every child that this process waits for in `run_child`.

    The callers get the output so far.
    """
    for stop in tuple(_stop_callbacks):
        stop()


@contextmanager
def stoppable(stop: Callable[[], object]) -> Iterator[None]:
    """
    Register a callback for `stop_children` while the block runs.

    Args:
        stop: May be called from any thread, and more than once.
    """
    _stop_callbacks.add(stop)
    try:
        yield
    finally:
        _stop_callbacks.discard(stop)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """
    Ignore another Ctrl-C while the block cleans up.
    """
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


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


class _OutputReader(ExitStack):
    """
    Reads the output of a process into bounded buffers.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self._pid = process.pid
        self.buffers = (bytearray(), bytearray())
        self._selector = self.enter_context(selectors.DefaultSelector())
        streams = (process.stdout, process.stderr)
        for stream, buffer in zip(streams, self.buffers, strict=True):
            if stream:
                self.enter_context(stream)
                self._selector.register(stream, selectors.EVENT_READ, buffer)

    def read(
        self, deadline: float, stop: threading.Event | None = None
    ) -> bool:
        """
        Read until the process has ended, the time is over, or *stop* is set.

        Do not wait for the end of a pipe: a child of the process may keep it
        open for ever.

        Returns:
            Whether the process has ended; it is not reaped yet.
        """

        def is_over() -> bool:
            return time.monotonic() >= deadline or (
                stop is not None and stop.is_set()
            )

        while not is_over():
            has_ended = child_has_ended(self._pid)
            while self._read_once(0.0 if has_ended else _POLL_S):
                if is_over():
                    return has_ended
            if has_ended:
                return True
            if not self._selector.get_map():
                time.sleep(0.002)  # it has closed its output
        return False

    def _read_once(self, wait_s: float) -> bool:
        if not self._selector.get_map():
            return False

        ready = self._selector.select(wait_s)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            buffer: bytearray = key.data
            buffer += data
            if len(buffer) > 2 * MAX_BYTES:
                del buffer[:-MAX_BYTES]
            if not data:
                self._selector.unregister(key.fileobj)
        return bool(ready)


def child_has_ended(pid: int) -> bool:
    """
    Return whether a child has ended; it is not reaped.
    """
    # WNOWAIT: until it is reaped, its process group ID is not reused.
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, flags) is not None
    except ChildProcessError:  # SIGCHLD is ignored here
        return True


def kill_group(
    process: subprocess.Popen[bytes], signum: signal.Signals = signal.SIGKILL
) -> None:
    """
    Send a signal to the process group that a child leads, unless it is reaped.
    """
    if process.returncode is None:
        with suppress(OSError):
            os.killpg(process.pid, signum)


def _limit_resources(pid: int, cpu_s: float) -> None:
    for limit, most in (
        (resource.RLIMIT_CPU, int(cpu_s)),
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(OSError, ValueError):
            resource.prlimit(pid, limit, (most, most))


def write_in_time(fd: int, data: bytes, timeout_s: float) -> None:
    """
    Write to a pipe or socket, which is made non-blocking.

    Raises:
        TimeoutError: The other side did not read it in time.

        OSError: The other side is closed.
    """
    deadline, left = time.monotonic() + timeout_s, memoryview(data)
    os.set_blocking(fd, False)
    poll = select.poll()  # unlike select(), it takes any number
    poll.register(fd, select.POLLOUT)
    while left:
        wait_s = deadline - time.monotonic()
        if wait_s <= 0 or not poll.poll(wait_s * 1000):
            raise TimeoutError
        with suppress(BlockingIOError):
            left = left[os.write(fd, left) :]


def in_time(
    call: Callable[[], Answer], seconds: float, *, may_block: bool = False
) -> Answer:
    """
    Call *call* in a thread of its own and return its result within *seconds*.

    Args:
        may_block: Whether to call it here if no thread can be started.

    Raises:
        TimeoutError: It did not return in time, or no thread could be started.

        Exception: Whatever *call* raised.
    """
    try:
        future = start_call(call)
    except RuntimeError:  # the node, or the process, may have no more
        if may_block:
            return call()
        msg = "no thread can be had"
        raise TimeoutError(msg) from None

    return future.result(seconds)


def start_call(call: Callable[[], Answer]) -> Future[Answer]:
    """
    Call *call* in a thread of its own, which does not keep Python from ending.

    Returns:
        Its result, or what it raised.  It cannot be cancelled.

    Raises:
        RuntimeError: No thread can be started.
    """
    future: Future[Answer] = Future()
    future.set_running_or_notify_cancel()
    OwnThread(partial(_settle, future, call)).start()
    return future


def map_with_timeout(  # noqa: PLR0913 each can be left out
    function: Callable[[Item], Answer],
    items: Iterable[Item],
    *,
    deadline: float = float("inf"),
    quiet_s: float = threading.TIMEOUT_MAX,
    threads: int = 32,
    may_block: bool = False,
) -> Generator[tuple[Item, Future[Answer]]]:
    """
    Call *function* for many items in parallel; abandon the calls that are late.

    Args:
        function: Called with one item.  It may hang: its thread is abandoned
            then.

        deadline: When to stop, on the monotonic clock.

        quiet_s: How long to wait for the next result, in seconds.

        threads: How many calls run at a time.

        may_block: Whether to call the function here if no thread can be
            started; otherwise there are no results then.

    Yields:
        An item and its finished future, in the order in which they finish.
        Items that are late are left out, and nothing is begun for those that
        wait when the iterator ends.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, Future[Answer]]] = queue.SimpleQueue()
    for item in items:
        todo.put(item)
    count = todo.qsize()

    def work() -> None:
        for item in _drain(todo):
            future: Future[Answer] = Future()
            _settle(future, partial(function, item))
            done.put((item, future))

    # As many threads as the node allows.
    started = sum(_started(work) for _ in range(min(threads, count)))
    if not started:
        if not may_block:
            return
        work()
    try:
        for _ in range(count):
            left_s = max(deadline - time.monotonic(), 0.0)
            yield done.get(timeout=min(left_s, quiet_s))
    except queue.Empty:
        return
    finally:
        for _ in _drain(todo):
            pass


def answers_in_time(
    ask: Callable[[Item], Answer],
    items: Iterable[Item],
    deadline: float,
    *,
    threads: int = 32,
) -> Iterator[tuple[Item, Answer]]:
    """
    Call *ask* as `map_with_timeout` does, and leave out the calls that fail.

    Yields:
        An item and its result, in the order in which they arrive.
    """
    for item, future in map_with_timeout(
        ask, items, deadline=deadline, threads=threads
    ):
        if not future.exception():
            yield item, future.result()


def _settle(future: Future[Any], call: Callable[[], object]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 it is raised again
        future.set_exception(error)


def _started(work: Callable[[], object]) -> bool:
    try:
        threading.Thread(target=work, name="distdebug", daemon=True).start()
    except RuntimeError:  # the node, or the process, may have no more
        return False

    return True


def _drain(items: queue.SimpleQueue[Item]) -> Iterator[Item]:
    with suppress(queue.Empty):
        while True:
            yield items.get_nowait()
