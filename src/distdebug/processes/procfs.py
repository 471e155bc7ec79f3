"""
What does the kernel tell about a process?

Every answer may be that it is gone, or that we may not ask; none is an error.
"""

from __future__ import annotations

import os
import re
import threading

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar


_CHUNK = 1 << 16
# Python refuses to read numbers of thousands of digits.
_MOST_DIGITS = 40
# States of a zombie, and of what is gone.
ENDED = frozenset("ZXx")


class Stat(NamedTuple):
    """
    The part of a ``stat`` file that is of use here.

    Attributes:
        name: The name of 15 characters that the kernel keeps.

        letter: The state, such as ``"S"``.

        parent_pid: The process that started it, or inherited it.

        cpu_ticks: How long it ran, in clock ticks.

        start_ticks: When it started, in clock ticks since boot.
    """

    name: str
    letter: str
    parent_pid: int
    cpu_ticks: int
    start_ticks: int

    @property
    def has_ended(self) -> bool:
        """
        Whether nothing of it runs any more.
        """
        return self.letter in ENDED


def read_proc(path: str, *, limit: int = _CHUNK) -> bytes | None:
    """
    Read a file of the kernel.

    Args:
        path: The file.

        limit: How many bytes to read at most.

    Returns:
        What it holds; ``None`` if it is gone or may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):  # a name from elsewhere may hold a NUL
        return None

    parts = []
    try:
        while limit > 0:
            part = os.read(fd, min(limit, _CHUNK))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(parts)


def read_link(path: str) -> str:
    """
    Where does a link of the kernel point; ``""`` if that may not be read.
    """
    try:
        return os.readlink(path)  # noqa: PTH115 paths cost as much as reading
    except (OSError, ValueError):
        return ""


def list_numbers(path: str) -> list[int]:
    """
    Which numbers (of processes, threads, descriptors) are in a folder?

    Returns:
        The numbers in order; none if the folder may not be read.
    """
    try:
        names = os.listdir(path)  # noqa: PTH208 as above
    except (OSError, ValueError):
        return []
    return sorted(int(n) for n in names if n.isascii() and n.isdigit())


def parse_stat(data: bytes | None) -> Stat | None:
    """
    Read a ``stat`` file.

    The name in it may hold brackets, blanks, and line breaks; numbers follow
    the last bracket.

    Args:
        data: The file, or ``None``.

    Returns:
        What it says; ``None`` if it is no ``stat`` file.
    """
    text = (data or b"").decode(errors="replace")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        return Stat(
            name=head[head.index("(") + 1 :],
            letter=fields[0],
            parent_pid=int(fields[1]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            start_ticks=int(fields[19]),
        )
    except (ValueError, IndexError):
        return None


def parse_status(data: bytes | None) -> dict[str, str]:
    """
    Read a ``status`` file.

    Args:
        data: The file, or ``None``.

    Returns:
        What stands behind the colon of each line.  The kernel escapes line
        breaks in names, so that no process can add lines.
    """
    lines = (data or b"").decode(errors="replace").split("\n")
    pairs = (line.partition(":") for line in lines)
    return {key: value.strip() for key, colon, value in pairs if colon}


def whole_number(text: str | bytes | None) -> int | None:
    """
    Which number is this, if it is one?

    Args:
        text: What should be digits.

    Returns:
        The number; ``None`` if there is anything but digits, or if no machine
        has such a number.
    """
    is_number = text and len(text) <= _MOST_DIGITS and text.isascii()
    return int(text) if text and is_number and text.isdigit() else None


# Gives what is at an address, shorter or empty where nothing is mapped.
Memory = Callable[[int, int], bytes]

_MOST = 1 << 20
_PAGE = 4096


@contextmanager
def open_memory(pid: int, root: str = "/proc") -> Iterator[Memory]:
    """
    Read the memory of a process.

    Args:
        pid: The process.

        root: Where the kernel's files are.

    Yields:
        A function of address and size, in bytes.  It gives at most 1 MiB, and
        less, or nothing, where the process has no memory, is gone, or may not
        be read.
    """
    try:
        fd = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda _address, _size: b""
        return

    def read(address: int, size: int) -> bytes:
        try:
            return os.pread(fd, min(size, _MOST), address)
        except (OSError, OverflowError, ValueError):
            return b""

    try:
        yield read
    finally:
        os.close(fd)


def read_c_string(memory: Memory, address: int, *, limit: int) -> str:
    """
    Read a text that ends in a zero byte.

    Args:
        memory: Where it is.

        address: Where it begins.

        limit: How many bytes to read at most.

    Returns:
        The text; what is there of it if it does not end.
    """
    parts: list[bytes] = []
    while limit > 0:
        # Not beyond the page: the next one may not be there.
        size = min(limit, _PAGE - address % _PAGE)
        part, end, _ = memory(address, size).partition(b"\0")
        parts.append(part)
        if end or len(part) < size:
            break
        address += size
        limit -= size
    return os.fsdecode(b"".join(parts))


_LINE = re.compile(
    rb"([0-9]{1,9}): *(->)? *[A-Z]{1,10} +[A-Z]{1,10} +[A-Z]{1,10} +"
    rb"([0-9]{1,10}) "
)
# Of a machine with some ten thousand locks.
_MOST_BYTES = 1 << 20


def lock_holder(pid: int, root: str = "/proc") -> int | None:
    """
    Find the process that holds what another one waits for.

    Args:
        pid: Who waits.

        root: Where the kernel's files are.

    Returns:
        The process that took the lock; ``None`` if nobody on this machine
        did, or the kernel does not say.
    """
    holders: dict[bytes, int] = {}
    data = read_proc(f"{root}/locks", limit=_MOST_BYTES) or b""
    for line in data.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        number, waits, owner = found.groups()
        if not waits:
            holders[number] = int(owner)
        elif int(owner) == pid:
            # Nobody has the number 0: it is of another container.
            return holders.get(number) or None

    return None


Answer = TypeVar("Answer")

# So many processes that never answer, and the rest are not asked.
_MOST_STUCK = 16


def ask_each(
    pids: Iterable[int],
    ask: Callable[[int], Answer],
    *,
    patience_s: float = 1.0,
) -> dict[int, Answer]:
    """
    Ask something about each process, and go on if one does not answer.

    Args:
        pids: The processes.

        ask: What to ask; it must not raise.

        patience_s: How long to wait for one answer, in seconds.

    Returns:
        The answers there are.  A thread stays behind for each that is not
        there; it ends when the kernel lets it go, or with this process.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    for pid in pids:
        waiting.put(pid)

    answers: dict[int, Answer] = {}
    for _ in range(_MOST_STUCK):
        if _ask_all(waiting, ask, answers, patience_s):
            break
    return dict(answers)


def _ask_all(
    waiting: SimpleQueue[int],
    ask: Callable[[int], Answer],
    answers: dict[int, Answer],
    patience_s: float,
) -> bool:
    """
    Whether the queue was worked off; if not, the first left in it is next.
    """
    given_up = threading.Event()

    def work() -> None:
        while not given_up.is_set():
            try:
                pid = waiting.get_nowait()
            except Empty:
                return
            answers[pid] = ask(pid)

    thread = threading.Thread(target=work, daemon=True, name="distdebug-ask")
    try:
        thread.start()
    except RuntimeError:  # no more can be had; an answer is worth the risk
        work()
        return True

    while True:
        before = len(answers)
        thread.join(patience_s)
        if not thread.is_alive():
            return True
        if len(answers) == before:
            given_up.set()
            return False
