"""
Run decoders in child processes with limits on memory and time.

Dump files may be damaged or malicious.  A child that fails costs one file; a
new child continues with the next one.  Answers of children are parsed as JSON
and columns, never unpickled.

One child per core runs at a time, so large jobs are read in parallel.  They
share one allowance of memory; a file that needs more gets all of it, alone.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import time

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .decode import (
    EMPTY,
    LENGTHS,
    MEMORY_ALLOWANCE,
    OUT_OF_MEMORY,
    Message,
    pack_message,
)


if TYPE_CHECKING:
    from concurrent.futures import Executor


# Positions of records by file; their stacks are read instead of columns.
RowsByFile = Mapping[str, Sequence[int]]

# A file of 20,000 records takes 50 milliseconds.
TIME_LIMIT_S = 60.0

# Requests per child: enough to keep it busy while we process its answer; few
# enough to fit into a pipe.
_REQUESTS_AHEAD = 2

# More of them only wait until we have processed their answers.
_MAX_CHILDREN = 8

# How long to try files alone that took too much memory, in seconds.
_ALONE_S = 10.0

_BATCH_SIZE = 32
_MESSAGE_LIMIT = 1 << 30
_PIPE_SIZE = 1 << 20

# Time from the end of the output to the end of the process.
_EXIT_WAIT_S = 2.0

# Import the decoder without the rest of the package.
_PROGRAM = """
import sys, types
package = types.ModuleType("sandboxed")
package.__path__ = [sys.argv[1]]
sys.modules["sandboxed"] = package
from sandboxed.decode import main
main()
"""


def decode_files(
    paths: Sequence[str],
    *,
    executor: Executor | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Iterator[tuple[str, Message]]:
    """
    Decode files in child processes.

    Args:
        executor: Where to start the child processes, in batches of files; by
            default one child per core runs here.

        time_limit_s: Limit of one file, in seconds.

    Yields:
        Each file with its message (see `decode`), in any order.  A failure is
        a message, too.
    """
    if executor is not None:
        return _decode_in_executor(paths, executor, time_limit_s)

    return _decode(paths, {}, _count_children(paths), time_limit_s)


def decode_batch(
    paths: Sequence[str], time_limit_s: float = TIME_LIMIT_S
) -> list[tuple[str, Message]]:
    """
    Decode some files in one child process.

    Executors run this function, perhaps on other machines.
    """
    return list(_decode(paths, {}, 1, time_limit_s))


def decode_frames(
    rows_by_file: RowsByFile,
) -> Iterator[tuple[str, Message]]:
    """
    Read the stacks of some records of some files.

    Args:
        rows_by_file: Positions of records, by file.

    Yields:
        Each file with a message with *frames*, or a failure.
    """
    paths = list(rows_by_file)
    return _decode(paths, rows_by_file, _count_children(paths), TIME_LIMIT_S)


def _count_children(paths: Sequence[str]) -> int:
    # A child takes as long to start as it takes to decode a few files.
    return min(_usable_cores(), -(-len(paths) // 4), _MAX_CHILDREN)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))

    return os.cpu_count() or 1


def _decode_in_executor(
    paths: Sequence[str], executor: Executor, time_limit_s: float
) -> Iterator[tuple[str, Message]]:
    from concurrent.futures import as_completed

    batches = [
        paths[i : i + _BATCH_SIZE] for i in range(0, len(paths), _BATCH_SIZE)
    ]
    futures = {
        executor.submit(decode_batch, batch, time_limit_s): batch
        for batch in batches
    }
    try:
        for future in as_completed(futures):
            try:
                answers = future.result()
            except Exception as exc:  # noqa: BLE001
                # A lost worker must not cost the other batches.
                reason = f"the executor failed: {type(exc).__name__}: {exc}"
                answers = [
                    (p, _failure_message(reason)) for p in futures[future]
                ]
            yield from answers
    finally:
        for future in futures:
            future.cancel()


def _decode(
    paths: Sequence[str],
    rows_by_file: RowsByFile,
    max_children: int,
    time_limit_s: float,
) -> Iterator[tuple[str, Message]]:
    """
    Decode files in some children, and alone those that lacked memory.
    """
    empty = {path for path in paths if _is_empty(path)}
    yield from ((path, EMPTY) for path in empty)
    paths = [path for path in paths if path not in empty]
    failed: list[str] = []
    for path, message in _decode_together(
        paths, rows_by_file, max_children, time_limit_s
    ):
        if message == OUT_OF_MEMORY and max_children > 1:
            failed.append(path)
        else:
            yield path, message
    deadline = time.monotonic() + _ALONE_S
    for path in failed:
        if time.monotonic() < deadline:
            yield from _decode_together(
                [path], rows_by_file, 1, min(time_limit_s, _ALONE_S)
            )
        else:
            yield path, OUT_OF_MEMORY


def _is_empty(path: str) -> bool:
    # A full disk may leave thousands of them; no process is needed to tell.
    try:
        status = os.stat(path)  # noqa: PTH116 text is enough
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _decode_together(
    paths: Sequence[str],
    rows_by_file: RowsByFile,
    max_children: int,
    time_limit_s: float,
) -> Iterator[tuple[str, Message]]:
    """
    Keep some children busy until every file has an answer.
    """
    memory = MEMORY_ALLOWANCE // max(max_children, 1)
    todo = deque(paths)
    children: list[_Child] = []
    with selectors.DefaultSelector() as selector:
        try:
            while todo or children:
                while todo and len(children) < max_children:
                    try:
                        children.append(
                            _Child(rows_by_file, time_limit_s, memory)
                        )
                    except OSError as exc:
                        if children:  # fewer children only take longer
                            max_children = len(children)
                            break
                        reason = f"no process could be started for it: {exc}"
                        yield todo.popleft(), _failure_message(reason)
                        continue

                    selector.register(children[-1], selectors.EVENT_READ)
                for child in children:
                    child.send_requests(todo)
                _wait_for_answers(children, selector)
                for child in list(children):
                    yield from child.take_answers()
                    # A child without work is closed.
                    if child.failure is not None or not (
                        child.pending or todo
                    ):
                        selector.unregister(child)
                        children.remove(child)
                        child.close()
                        # Files it has not begun go to another child.
                        todo.extendleft(reversed(child.pending))
        finally:
            # No child outlives this call, even after an interrupt.
            for child in children:
                child.close()


def _wait_for_answers(
    children: list[_Child], selector: selectors.BaseSelector
) -> None:
    """
    Wait until a child answers or exceeds its time limit.
    """
    deadline = min((child.deadline for child in children), default=0.0)
    timeout = max(deadline - time.monotonic(), 0)
    ready = {key.fileobj for key, _ in selector.select(timeout)}
    now = time.monotonic()
    for child in children:
        if child in ready:
            child.receive()
        elif child.deadline <= now:
            child.failure = f"it takes more than {child.limit_s:g} s to decode"


class _Child:
    """
    One process that decodes.

    Attributes:
        pending: Requested files without an answer yet, oldest first.

        deadline: When its next answer is overdue.

        failure: Why it stopped answering.
    """

    def __init__(
        self, rows_by_file: RowsByFile, limit_s: float, memory: int
    ) -> None:
        self.pending: deque[str] = deque()
        self.limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        self.failure: str | None = None
        self._rows_by_file = rows_by_file
        self._memory = memory
        self._data = bytearray()
        self._messages: list[Message] = []
        self._process = subprocess.Popen(
            [
                sys.executable,
                *("-I", "-S", "-B", "-c"),
                _PROGRAM,
                str(Path(__file__).parent),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        os.set_blocking(self.fileno(), False)
        _enlarge_pipe(self.fileno())

    def fileno(self) -> int:
        """
        Return the file descriptor of its answers.
        """
        assert self._process.stdout  # noqa: S101

        return self._process.stdout.fileno()

    def send_requests(self, todo: deque[str]) -> None:
        """
        Request the next files.
        """
        assert self._process.stdin  # noqa: S101

        while todo and len(self.pending) < _REQUESTS_AHEAD:
            path = todo.popleft()
            self.pending.append(path)
            # One character per byte: the child may use another encoding.
            request: dict[str, Any] = {
                "path": os.fsencode(path).decode("latin-1"),
                "memory": self._memory,
            }
            if path in self._rows_by_file:
                request["rows"] = [
                    int(row) for row in self._rows_by_file[path]
                ]
            # A dead child is noticed when its answer is read.
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def receive(self) -> None:
        """
        Read the available bytes.
        """
        try:
            with suppress(BlockingIOError):
                while data := os.read(self.fileno(), _PIPE_SIZE):
                    self._data += data
                    self._messages += _split_messages(self._data)
                self.failure = self._exit_reason()
        except ValueError as exc:
            self.failure = str(exc)

    def take_answers(self) -> Iterator[tuple[str, Message]]:
        """
        Yield the complete answers.
        """
        while self.pending and self._messages:
            self.deadline = time.monotonic() + self.limit_s
            yield self.pending.popleft(), self._messages.pop(0)

        if self.failure is not None and self.pending:
            yield self.pending.popleft(), _failure_message(self.failure)

    def _exit_reason(self) -> str:
        try:
            status = self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return "the process that decoded it went silent"

        if status >= 0:
            return f"the process that decoded it ended with status {status}"

        return f"the process that decoded it was killed by {_signame(-status)}"

    def close(self) -> None:
        """
        End the process.
        """
        self._process.kill()
        # Leaving its context closes the pipes and reaps it.
        with self._process:
            pass


def _split_messages(data: bytearray) -> Iterator[Message]:
    """
    Take the complete messages from the begin of *data*.

    Raises:
        ValueError: What is there is no message.
    """
    while len(data) >= LENGTHS.size:
        size = sum(LENGTHS.unpack_from(data))
        if not 0 < size <= _MESSAGE_LIMIT:
            msg = f"it was decoded to nonsense: {size:,} bytes"
            raise ValueError(msg)

        end = LENGTHS.size + size
        if len(data) < end:
            return
        yield data[:end]
        del data[:end]


def _enlarge_pipe(fd: int) -> None:
    """
    Enlarge a pipe, if possible, so that the child continues while we are busy.
    """
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


def _signame(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failure_message(reason: str) -> bytes:
    return pack_message({"failure": "broken", "reason": reason})
