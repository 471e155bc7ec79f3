"""
What changes as long as a job makes progress?
"""

from __future__ import annotations

import os
import threading

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ..processes import parse_stat, parse_status, read_proc


_MOST_FILES = 10_000
_beats = [0]


def step() -> None:
    """
    Tell that a step is done, from the loop of the job itself.

    It costs as much as adding one to a number, and never fails.
    """
    # Two threads may count the same step; any change will do.
    _beats[0] += 1


def steps() -> int | None:
    """
    Tell how often :func:`step` was called in this process.

    Returns:
        The number; ``None`` as long as it never was.
    """
    return _beats[0] or None


def files_state(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[tuple[str, int, int], ...] | None:
    """
    Tell how large files are, and when they were written last.

    Args:
        paths: Logs and files of progress, or folders of them.  A file system
            that does not answer blocks this call.

    Returns:
        Path, bytes, and nanoseconds since 1970 of each of the first 10,000
        files, sorted; ``None`` if there is none.
    """
    found = set()
    for file in islice(_files(paths), _MOST_FILES):
        with suppress(OSError, ValueError):
            status = Path(file).stat()
            found.add((file, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found)) or None


class InTime:
    """
    Asks something that may hang together with the job, in time.

    A file system that hangs keeps whoever looks at it, and a lock of the job
    keeps whoever takes it.  So a thread asks, and as long as it does not return
    there is no other.

    Args:
        ask: What to call; it does not raise.

        patience_s: How long to wait for its answer, in seconds.
    """

    def __init__(
        self, ask: Callable[[], object], patience_s: float = 2.0
    ) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._asking: threading.Thread | None = None
        self._answer: object = None

    def __call__(self) -> object:
        """
        Ask.

        Returns:
            The answer; the last one if there is none in time.
        """
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(
                target=self._take, name="distdebug", daemon=True
            )
            try:
                asking.start()
            except RuntimeError:  # there are too many, or Python ends
                return self._answer
            self._asking = asking
        self._asking.join(self._patience_s)
        return self._answer

    def _take(self) -> None:
        self._answer = self._ask()


class FilesState(InTime):
    """
    Tells how large files are, and when they were written last, in time.

    Args:
        paths: Logs and files of progress, or folders of them.

        patience_s: How long to wait for the file system, in seconds.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        patience_s: float = 2.0,
    ) -> None:
        self._paths = tuple(paths)
        super().__init__(lambda: files_state(self._paths), patience_s)

    def __call__(self) -> object:
        """
        Look at the files.

        Returns:
            As :func:`files_state` does; what was seen last if the file system
            does not answer.
        """
        return super().__call__() if self._paths else None


def last_known(
    *senses: Callable[[tuple[int, ...]], object],
) -> Callable[[tuple[int, ...]], object]:
    """
    Join senses: the job moves if any of them does.

    Args:
        senses: What takes the numbers of processes, and tells what moves.

    Returns:
        One for all of them.  Where one sees nothing for a while, nothing has
        moved.
    """
    last: list[object] = [None] * len(senses)

    def sense(pids: tuple[int, ...]) -> object:
        for number, one in enumerate(senses):
            value = one(pids)
            last[number] = last[number] if value is None else value
        return None if last == [None] * len(senses) else tuple(last)

    return sense


def newest_file(
    folder: str | os.PathLike[str],
) -> tuple[int, int] | None:
    """
    Tell how many files a folder has, and when one was written last.

    It is meant for dumps, side-cars, and checkpoints, where each is written
    once.

    Args:
        folder: The folder; those below it are not looked at.

    Returns:
        The number of files and nanoseconds since 1970; ``None`` if there is
        none.
    """
    state = files_state([folder])
    if state is None:
        return None

    return len(state), max(written for _, _, written in state)


def switches(pids: Iterable[int], *, root: str = "/proc") -> int | None:
    """
    Tell how often main threads gave up their processor to wait.

    Other threads are not counted: those that watch over a job wake up for
    ever, also if it is stuck.  A main thread that computes for minutes without
    waiting looks as if it did not move; see :func:`processor_time`.

    Args:
        pids: The processes.

        root: Where the kernel's files are.

    Returns:
        The sum; ``None`` if all processes are gone.
    """
    texts = (
        parse_status(read_proc(f"{root}/{pid}/task/{pid}/status")).get(
            "voluntary_ctxt_switches", ""
        )
        for pid in pids
    )
    counts = [int(x) for x in texts if x.isascii() and x.isdigit()]
    return sum(counts) if counts else None


def processor_time(pids: Iterable[int], *, root: str = "/proc") -> int | None:
    """
    Tell for how long main threads ran.

    It moves also if a thread spins while it waits for others, as it does for a
    GPU; so by this alone a job on GPUs never seems stuck.

    Args:
        pids: The processes.

        root: Where the kernel's files are.

    Returns:
        The sum, in clock ticks; ``None`` if all processes are gone.
    """
    stats = (
        parse_stat(read_proc(f"{root}/{pid}/task/{pid}/stat")) for pid in pids
    )
    ticks = [stat.cpu_ticks for stat in stats if stat is not None]
    return sum(ticks) if ticks else None


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for path in paths:
        try:
            with os.scandir(path) as entries:
                yield from (x.path for x in entries if x.is_file())
        except NotADirectoryError:
            yield os.fspath(path)
        except (OSError, ValueError):
            continue
