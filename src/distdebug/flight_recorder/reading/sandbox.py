"""
How are files decoded that may be damaged, or made to do harm?

Each file is decoded by a child process that has a limit on its memory and on
its time.  Whatever happens to the child costs one file; a new child goes on
with the next.  What children send is never unpickled, only looked at.

There are as many children as cores, which is also how large jobs are read
fast.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, cast

from .decode import LENGTHS, Message, pack


# Positions of records by file, whose stacks are wanted instead of columns.
Rows = Mapping[str, Sequence[int]]

# A file of 20,000 records takes 50 milliseconds.
TIME_LIMIT_S = 60.0

# Enough for a child to have work while we look at its answer; few enough for
# the requests to fit into a pipe.
_AHEAD = 2

_BATCH = 32
_MESSAGE_LIMIT = 1 << 30
_PIPE_SIZE = 1 << 20

# Between the end of its output and the end of a process.
_PATIENCE_S = 2.0

# Our own modules, without the package around them and what it imports.
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
        paths: The files.

        executor: Where to start the child processes, in batches of files; by
            default one child per core runs here.

        time_limit_s: How long one file may take, in seconds.

    Yields:
        Each file with its message (see `decode`), as they come.  A failure is
        a message, too.
    """
    if executor is not None:
        return _decode_elsewhere(paths, executor, time_limit_s)

    return _decode(paths, {}, _children(paths), time_limit_s)


def decode_batch(
    paths: Sequence[str], time_limit_s: float = TIME_LIMIT_S
) -> list[tuple[str, Message]]:
    """
    Decode some files in one child process.

    Executors run this function, perhaps on other machines.
    """
    return list(_decode(paths, {}, 1, time_limit_s))


def decode_frames(
    wanted: Rows, time_limit_s: float = TIME_LIMIT_S
) -> Iterator[tuple[str, Message]]:
    """
    Read the stacks of some records of some files.

    Args:
        wanted: Positions of records, by file.

        time_limit_s: How long one file may take, in seconds.

    Yields:
        Each file with a message with *frames*, or a failure.
    """
    paths = list(wanted)
    return _decode(paths, wanted, _children(paths), time_limit_s)


def _children(paths: Sequence[str]) -> int:
    # A child takes as long to start as it takes to decode a few files.
    return min(_cores(), -(-len(paths) // 4))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))

    return os.cpu_count() or 1


def _decode_elsewhere(
    paths: Sequence[str], executor: Executor, time_limit_s: float
) -> Iterator[tuple[str, Message]]:
    batches = [paths[i : i + _BATCH] for i in range(0, len(paths), _BATCH)]
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
                answers = [(p, _failure(reason)) for p in futures[future]]
            yield from answers
    finally:
        for future in futures:
            future.cancel()


def _decode(
    paths: Sequence[str],
    wanted: Rows,
    children: int,
    time_limit_s: float,
) -> Iterator[tuple[str, Message]]:
    """
    Keep some children busy until every file has an answer.
    """
    todo = deque(paths)
    crew: list[_Child] = []
    with selectors.DefaultSelector() as selector:
        try:
            while todo or crew:
                while todo and len(crew) < children:
                    try:
                        crew.append(_Child(wanted, time_limit_s))
                    except OSError as exc:
                        if crew:  # it takes longer, and loses nothing
                            children = len(crew)
                            break
                        reason = f"no process could be started for it: {exc}"
                        yield todo.popleft(), _failure(reason)
                        continue

                    selector.register(crew[-1], selectors.EVENT_READ)
                for child in crew:
                    child.feed(todo)
                _listen(crew, selector)
                for child in list(crew):
                    yield from child.answers()
                    # If we are slow, it may have answered all it was asked.
                    if child.failure is not None or not (child.asked or todo):
                        selector.unregister(child)
                        crew.remove(child)
                        child.close()
                        # What it had not begun with is for another one.
                        todo.extendleft(reversed(child.asked))
        finally:
            # Also if the caller was interrupted: no child outlives this call.
            for child in crew:
                child.close()


def _listen(crew: list[_Child], selector: selectors.BaseSelector) -> None:
    """
    Wait until a child has something to say, or takes too long.
    """
    deadline = min((child.deadline for child in crew), default=0.0)
    timeout = max(deadline - time.monotonic(), 0)
    ready = {key.fileobj for key, _ in selector.select(timeout)}
    now = time.monotonic()
    for child in crew:
        if child in ready:
            child.receive()
        elif child.deadline <= now:
            child.failure = f"it takes more than {child.limit_s:g} s to decode"


class _Child:
    """
    One process that decodes.

    Attributes:
        asked: What it was asked for and did not answer yet, oldest first.

        deadline: When its next answer is overdue.

        failure: Why it answers no more.
    """

    def __init__(self, wanted: Rows, limit_s: float) -> None:
        self.asked: deque[str] = deque()
        self.limit_s = limit_s
        self.deadline = time.monotonic() + limit_s
        self.failure: str | None = None
        self._wanted = wanted
        self._inbox = _Inbox()
        self._answered: list[Message] = []
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
        _widen(self.fileno())

    def fileno(self) -> int:
        """
        Where its answers come from.
        """
        assert self._process.stdout  # noqa: S101

        return self._process.stdout.fileno()

    def feed(self, todo: deque[str]) -> None:
        """
        Ask for the next files, or say that there are no more.
        """
        assert self._process.stdin  # noqa: S101

        while todo and len(self.asked) < _AHEAD:
            path = todo.popleft()
            self.asked.append(path)
            # One character per byte: the child may see names differently.
            request: dict[str, Any] = {
                "path": os.fsencode(path).decode("latin-1")
            }
            if path in self._wanted:
                request["rows"] = [int(row) for row in self._wanted[path]]
            # If it is dead, that shows when its answer is awaited.
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def receive(self) -> None:
        """
        Take what it has sent.
        """
        # Without a buffer it is a raw file.
        pipe = cast("FileIO", self._process.stdout)
        try:
            while size := pipe.readinto(self._inbox.space):
                self._answered += self._inbox.filled(size)
        except ValueError as exc:
            self.failure = str(exc)
            return

        if size == 0:
            self.failure = self._obituary()

    def answers(self) -> Iterator[tuple[str, Message]]:
        """
        What it has answered by now, as far as it is complete.
        """
        while self.asked and self._answered:
            self.deadline = time.monotonic() + self.limit_s
            yield self.asked.popleft(), self._answered.pop(0)

        if self.failure is not None and self.asked:
            yield self.asked.popleft(), _failure(self.failure)

    def _obituary(self) -> str:
        try:
            status = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "the process that decoded it went silent"

        if status >= 0:
            return f"the process that decoded it ended with status {status}"

        return f"the process that decoded it was killed by {_signal(-status)}"

    def close(self) -> None:
        """
        End the process, whatever it is doing.
        """
        self._process.kill()
        # Leaving its context closes the pipes and reaps it.
        with self._process:
            pass


class _Inbox:
    """
    Messages that arrive in pieces, each put straight to its place.

    Attributes:
        space: Where the next piece goes.
    """

    space: memoryview

    def __init__(self) -> None:
        self._message = bytearray(LENGTHS.size)
        self.space = memoryview(self._message)

    def filled(self, size: int) -> list[Message]:
        """
        Count a piece of *size* bytes, and return what is whole by now.
        """
        self.space = self.space[size:]
        if self.space:
            return []

        lengths = sum(LENGTHS.unpack_from(self._message))
        if not 0 < lengths <= _MESSAGE_LIMIT:
            msg = f"it was decoded to nonsense: {lengths:,} bytes"
            raise ValueError(msg)

        if len(self._message) == LENGTHS.size:
            # Lengths are followed by the rest of the message …
            message = bytearray(LENGTHS.size + lengths)
            message[: LENGTHS.size] = self._message
            self._message = message
            self.space = memoryview(self._message)[LENGTHS.size :]
            return []

        # … and that by the lengths of the next one.
        message = self._message
        self._message = bytearray(LENGTHS.size)
        self.space = memoryview(self._message)
        return [message]


def _widen(fd: int) -> None:
    """
    Let a child go on while we are busy, if the system has room for that.
    """
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failure(reason: str) -> bytes:
    return pack({"failure": "broken", "reason": reason})
