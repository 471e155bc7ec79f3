"""
What is the stack of a process, whichever tool took it?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import attrs

from .._render import Block, Branch, Shown, Tree
from .._text import clean
from ..findings import as_plain


# Of a line of a stack, in a text for people.
_MOST_SHOWN = 96


@attrs.frozen
class StackFrame:
    """
    One line of a stack.

    Attributes:
        name: The function, with its class where the tool knows it.

        filename: The file; the library for a native function.

        line: The line that runs, counted from 1; 0 if unknown.

        is_native: Whether it is machine code, and not Python.

        code: What stands at that line, if the tool showed it; no part of what
            makes two lines the same.
    """

    name: str
    filename: str
    line: int
    is_native: bool = False
    code: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        where = f"{self.filename}:{self.line}" if self.line else self.filename
        return f"{self.name} ({where})" if where else self.name


@attrs.frozen(kw_only=True)
class SystemCall:
    """
    What a thread asked the kernel for, and did not get yet.

    Attributes:
        name: Such as ``"read"`` or ``"futex"``.

        target: What its file descriptor stands for, such as ``"/data/a.bin"``,
            ``"pipe:[123]"`` or ``"tcp 10.0.0.1:443"``; ``""`` if unknown.
    """

    name: str
    target: str = ""

    def __str__(self) -> str:
        return f"{self.name}({self.target})"


@attrs.frozen(kw_only=True)
class ThreadActivity:
    """
    What became of a thread from the first look at it to the last.

    Attributes:
        seconds: How long it was watched.

        voluntary: How often it gave up the processor to wait.

        involuntary: How often the processor was taken from it.

        cpu_s: How long it ran, in seconds.

        has_moved: Whether its Python stack changed; ``None`` if unknown.

        has_left: Whether it was seen in another function, and not only at
            another line of the same one; ``None`` if unknown.

        has_new_values: Whether variables of its Python functions got new
            values, so that it went on, also at the same line; ``None`` if
            unknown.

        has_returned: Whether a function came to its end meanwhile: those that
            had called it were seen at other lines, or with new values;
            ``None`` if unknown.

        has_let_go: Whether it was seen while nobody held the interpreter
            lock, as native code lets go of it and Python cannot; ``None`` if
            unknown.
    """

    seconds: float
    voluntary: int
    involuntary: int
    cpu_s: float
    has_moved: bool | None = None
    has_left: bool | None = None
    has_new_values: bool | None = None
    has_returned: bool | None = None
    has_let_go: bool | None = None


@attrs.frozen(kw_only=True)
class ThreadStack:
    """
    One thread.

    Attributes:
        name: Its name in Python; ``""`` if unknown.

        frames: Innermost first; of Python, or as the tool mixed them.

        thread_id: Its number in the operating system, or else in Python;
            ``None`` if unknown.

        is_main: Whether it is the main thread of its process.

        active: Whether it was running on a processor; ``None`` if unknown.

        owns_gil: Whether it held the interpreter lock; ``None`` if unknown.

        waits_for_gil: Whether it wanted that lock; ``None`` if unknown.

        native: What a second, native tool saw, innermost first.

        state: The letter of the kernel for its state, such as ``"S"``; ``""``
            if unknown.

        system_call: What it waits for in the kernel, if known.

        activity: What became of it while it was watched, if it was.

        idle_s: How many seconds ago it last ran on a processor, if the kernel
            told; also about the time before anybody watched.
    """

    name: str
    frames: tuple[StackFrame, ...]
    thread_id: int | None = None
    is_main: bool = False
    active: bool | None = None
    owns_gil: bool | None = None
    waits_for_gil: bool | None = None
    native: tuple[StackFrame, ...] = ()
    state: str = ""
    system_call: SystemCall | None = None
    activity: ThreadActivity | None = None
    idle_s: float | None = None


@attrs.frozen(kw_only=True)
class GpuKernel:
    """
    A kernel that was on a GPU, as ``info cuda kernels`` tells.

    Attributes:
        name: Its function, with the arguments as shown.

        device: The number of the GPU as the process counts; ``None`` if it
            was not told.

        grid: Size of the grid in blocks (x, y, z), if told.

        block: Size of a block in threads (x, y, z), if told.
    """

    name: str
    device: int | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class ProcessStacks(Shown):
    """
    All threads of one process at one moment.

    Attributes:
        pid: Number of the process on its node.

        source: The file it was read from, or the tool that took it.

        threads: Its threads, in the order of the tool.

        rank: Global rank, if it is known, and the process is the rank itself
            and not, say, a worker of its data loader.

        world_size: How many ranks the job has, if known.

        coordinates: Where the rank is in the mesh: names of dimensions in
            small letters, and the place along each.

        role: ``"rank"``, ``"dataloader"``, ``"compile"``, ``"launcher"``,
            ``"server"``; ``""`` if unknown.

        job: What tells its job from others, or ``""``.

        host: Name of the node, if known.

        command: Its command line, or ``""``.

        parent_pid: The process that started it, if known.

        state: The letter of the kernel for its state (``"T"`` is stopped,
            ``"Z"`` a zombie, ``"X"`` gone); ``""`` if unknown.

        tracer_pid: The debugger that is attached to it, if any.

        kernels: What its GPUs were running, if that was looked at.

        taken: When, in seconds since 1970; ``None`` if unknown.
    """

    pid: int
    source: str
    threads: tuple[ThreadStack, ...]
    rank: int | None = None
    world_size: int | None = None
    coordinates: tuple[tuple[str, int], ...] = ()
    role: str = ""
    job: str = ""
    host: str | None = None
    command: str = ""
    parent_pid: int | None = None
    state: str = ""
    tracer_pid: int | None = None
    kernels: tuple[GpuKernel, ...] = ()
    taken: float | None = None

    @property
    def main_thread(self) -> ThreadStack | None:
        """
        The main thread; the first one if none is marked.
        """
        marked = (t for t in self.threads if t.is_main)
        return next(marked, next(iter(self.threads), None))

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, for JSON.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per thread.
        """
        whose = {"rank": self.rank, "pid": self.pid, "host": self.host}
        return [
            {
                **whose,
                "thread": thread.name,
                "is_main": thread.is_main,
                "state": thread.state,
                "at": str(next(iter(thread.frames or thread.native), "")),
            }
            for thread in self.threads
        ]

    def _blocks_(self) -> Iterator[Block]:
        who = "" if self.rank is None else f"rank {self.rank}, "
        where = f" on {clean(self.host)}" if self.host else ""
        yield f"{who}process {self.pid}{where}: {len(self.threads)} threads"
        yield Tree(
            [
                Branch(
                    0,
                    clean(f"thread {thread.name or thread.thread_id or '-'}"),
                    [
                        clean(str(frame), limit=_MOST_SHOWN)
                        for frame in reversed(thread.frames or thread.native)
                    ],
                )
                for thread in self.threads
            ]
        )


_DEEPEST = 16

# Who was asked to give the lock up waits in drop_gil until it is taken.
_TAKES = re.compile(
    r"take_gil|drop_gil|_?Py(Eval_(RestoreThread|AcquireThread|AcquireLock)"
    r"|GILState_Ensure|ThreadState_Attach)|tstate_wait_attach"
    r"|pybind11::gil_scoped_acquire::gil_scoped_acquire"
)
_WAITS = re.compile(
    r"futex|pthread_(cond|mutex|rwlock)|lll_lock|_L_lock|sem_(timed|clock)?wait"
    r"|do_wait|PyCOND_|PyMUTEX_|PyMutex_Lock|ParkingLot_Park|PySemaphore_"
    r"|^(__)?syscall$|^_?cond_(timed)?wait|^\?\?|^0x[0-9a-f]"
)
_TIMED = re.compile(r"pthread_cond_(?:timed|clock)wait")


def wants_gil(frames: Iterable[StackFrame]) -> bool | None:
    """
    Does a thread with this stack wait for the interpreter lock?

    Args:
        frames: Innermost first, with those of machine code.

    Returns:
        ``True``, or ``None``: a stack without names of functions proves
        nothing.
    """
    waits = ""
    for frame in islice(frames, _DEEPEST):
        name = frame.name.partition("@")[0].partition("(")[0].rstrip()
        if not frame.is_native:
            # py-spy leaves out the functions of the interpreter, so that
            # Python seems to wait itself; it does so for nothing else.
            return _TIMED.search(waits) is not None or None

        if _TAKES.fullmatch(name):
            # Who takes a free lock is not seen in it.
            return True if waits or name == "take_gil" else None

        if not _WAITS.search(name):
            return None
        waits = name

    return None
