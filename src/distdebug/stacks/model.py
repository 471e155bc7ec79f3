"""
Define stacks of processes, threads, and frames, whichever tool took them.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import attrs

from .._lazy import late_pattern
from .._render import Block, Branch, Shown, Tree
from .._text import clean
from ..usercode import Layer, frame_layer


# Width of a frame in the text output, in characters.
_MOST_SHOWN = 96


@attrs.frozen
class StackFrame:
    """
    One frame of a stack.

    Attributes:
        name: The function, with its class where the tool reports it.

        filename: The source file; the library for a native function.

        line: The current line, counted from 1; 0 if unknown.

        is_native: Whether it is machine code rather than Python.

        code: The source code of that line, if the tool printed it; ignored
            when frames are compared.
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
    A system call in which a thread is blocked.

    Attributes:
        name: Such as ``"read"`` or ``"futex"``.

        target: The object behind its file descriptor, such as
            ``"/data/a.bin"``, ``"pipe:[123]"`` or ``"tcp 10.0.0.1:443"``;
            ``""`` if unknown.

        holder: The process that holds the lock it waits for.

        note: What is particular about the target, such as ``"a FIFO"``.

        is_fifo: Whether the target is a FIFO, which waits for its other end.
    """

    name: str
    target: str = ""
    holder: int | None = None
    note: str = ""
    is_fifo: bool = False

    @property
    def remark(self) -> str:
        """
        What is particular about the target, and who holds it.
        """
        held = f"held by process {self.holder}" if self.holder else ""
        return ", ".join(x for x in (held, self.note) if x)

    @property
    def brief(self) -> str:
        """
        The call with the name of a file only, such as ``"openat(shard-4)"``.
        """
        is_path = self.target.startswith("/")
        target = self.target.rpartition("/")[2] if is_path else self.target
        return f"{self.name}({target})"

    def __str__(self) -> str:
        more = f", {self.remark}" if self.remark else ""
        return f"{self.name}({self.target}){more}"


@attrs.frozen(kw_only=True)
class ThreadActivity:
    """
    What a thread did between its first and its last sample.

    Attributes:
        seconds: Time from the first sample to the last.

        voluntary: Voluntary context switches: it blocked.

        involuntary: Involuntary context switches: it was preempted.

        cpu_s: CPU time, in seconds.

        has_moved: Whether its Python stack changed; ``None`` if unknown.

        has_left: Whether it was seen in another function, and not only at
            another line of the same one; ``None`` if unknown.

        has_new_values: Whether variables of its Python functions changed, so
            that it made progress, even at the same line; ``None`` if unknown.

        has_returned: Whether a function returned meanwhile: its callers were
            seen at other lines, or with new values; ``None`` if unknown.

        has_let_go: Whether it was sampled while no thread held the GIL,
            which native code can release and Python code cannot; ``None`` if
            unknown.

        io_bytes: What it wrote, and read from storage, in bytes; ``None`` if
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
    io_bytes: int | None = None


@attrs.frozen(kw_only=True)
class ThreadStack:
    """
    The stack and state of one thread.

    Attributes:
        name: Its name in Python; ``""`` if unknown.

        frames: Innermost first; Python only, or mixed with native frames, as
            the tool printed them.

        thread_id: Its id in the operating system, else in Python; ``None`` if
            unknown.

        is_main: Whether it is the main thread of its process.

        active: Whether it was running on a CPU; ``None`` if unknown.

        owns_gil: Whether it held the GIL; ``None`` if unknown.

        waits_for_gil: Whether it was waiting for the GIL; ``None`` if unknown.

        native: The native stack from a second tool, innermost first.

        state: The state letter of the kernel, such as ``"S"``; ``""`` if
            unknown.

        system_call: The system call it is blocked in, if known.

        activity: What it did between the samples, if there were several.

        idle_s: Seconds since it last ran on a CPU, if the kernel reports it;
            this includes time before the first sample.

        is_current: Whether it printed the stacks, as the thread does that a
            fatal signal hits.
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
    is_current: bool = False


@attrs.frozen(kw_only=True)
class GpuKernel:
    """
    A kernel running on a GPU, as ``info cuda kernels`` lists it.

    Attributes:
        name: Its function, with the arguments as printed.

        device: The GPU, as the process numbers it; ``None`` if unknown.

        grid: Size of the grid in blocks (x, y, z); empty if unknown.

        block: Size of a block in threads (x, y, z); empty if unknown.
    """

    name: str
    device: int | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


_MOST_KERNEL_NAME = 80


def short_kernel_name(kernel: GpuKernel) -> str:
    """
    Return the name of a kernel without its arguments.
    """
    name = kernel.name.replace("(anonymous namespace)::", "")
    name = name.partition("<<<")[0].partition("(")[0].strip()
    name = (name or kernel.name).removeprefix("void ")
    return (
        name
        if len(name) <= _MOST_KERNEL_NAME
        else f"{name[:_MOST_KERNEL_NAME]}…"
    )


@attrs.frozen(kw_only=True)
class ProcessStacks(Shown):
    """
    All threads of one process at one moment.

    Attributes:
        pid: Its pid on its node.

        source: The file it was read from, or the tool that took it; ``""`` if
            it is neither.

        threads: Its threads, in the order of the tool.

        rank: Global rank, if known, and if the process is the rank itself
            and not, for example, a data loader worker of it.

        world_size: The number of ranks of the job, if known.

        coordinates: Position in the device mesh: names of dimensions in
            lower case, and the index along each.

        role: ``"rank"``, ``"dataloader"``, ``"compile"``, ``"launcher"``,
            ``"server"``; ``""`` if unknown.

        job: An identifier of its job, or ``""``.

        host: Name of the node, if known.

        command: Its command line, or ``""``.

        parent_pid: The pid of its parent, if known.

        state: The state letter of the kernel (``"T"`` stopped, ``"Z"`` zombie,
            ``"X"`` dead); ``""`` if unknown.

        fatal_error: The error that it died of and printed this stack for, such
            as ``"Segmentation fault"``; ``""`` if it is not known to be dead.

        tracer_pid: The debugger that is attached to it, if any.

        kernels: The kernels on its GPUs, if cuda-gdb listed them.

        taken: Time of the sample, in seconds since 1970; ``None`` if unknown.

        absent_peers: Ranks that its launcher started on the same node, and of
            which no process was found.
    """

    pid: int
    source: str = ""
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
    fatal_error: str = ""
    tracer_pid: int | None = None
    kernels: tuple[GpuKernel, ...] = ()
    taken: float | None = None
    absent_peers: tuple[int, ...] = ()

    @property
    def main_thread(self) -> ThreadStack | None:
        """
        The main thread; the first thread if none is marked.
        """
        marked = (t for t in self.threads if t.is_main)
        return next(marked, next(iter(self.threads), None))

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per thread.
        """
        identity = {"rank": self.rank, "pid": self.pid, "host": self.host}
        return [
            {
                **identity,
                "thread": thread.name,
                "is_main": thread.is_main,
                "state": thread.state,
                "at": str(next(iter(thread.frames or thread.native), "")),
            }
            for thread in self.threads
        ]

    def _blocks_(self) -> Iterator[Block]:
        rank = "" if self.rank is None else f"rank {self.rank}, "
        where = f" on {clean(self.host)}" if self.host else ""
        yield f"{rank}process {self.pid}{where}: {len(self.threads)} threads"
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


_MOST_GIL_FRAMES = 16

# A thread that must release the GIL waits in drop_gil until another takes it.
_TAKES_GIL = late_pattern(
    r"take_gil|drop_gil|_?Py(Eval_(RestoreThread|AcquireThread|AcquireLock)"
    r"|GILState_Ensure|ThreadState_Attach)|tstate_wait_attach"
    r"|pybind11::gil_scoped_acquire::gil_scoped_acquire"
)
_WAITS_FOR_LOCK = late_pattern(
    r"futex|pthread_(cond|mutex|rwlock)|lll_lock|_L_lock|sem_(timed|clock)?wait"
    r"|do_wait|PyCOND_|PyMUTEX_|PyMutex_Lock|ParkingLot_Park|PySemaphore_"
    r"|^(__)?syscall$|^_?cond_(timed)?wait|^\?\?|^0x[0-9a-f]"
)
_TIMED_WAIT = late_pattern(r"pthread_cond_(?:timed|clock)wait")


def is_gil_wait(frames: Iterable[StackFrame]) -> bool | None:
    """
    Return whether a stack shows a wait for the GIL.

    Args:
        frames: Innermost first, including native frames.

    Returns:
        ``True`` or ``None``, never ``False``: a stack without function names
        proves nothing.
    """
    waits = ""
    for frame in islice(frames, _MOST_GIL_FRAMES):
        name = frame.name.partition("@")[0].partition("(")[0].rstrip()
        if not frame.is_native:
            # py-spy omits interpreter functions, so that a Python frame seems
            # to wait itself; it does this only for the GIL.
            return _TIMED_WAIT.search(waits) is not None or None

        if _TAKES_GIL.fullmatch(name):
            # A thread that takes a free lock does not show up inside it.
            return True if waits or name == "take_gil" else None

        if not _WAITS_FOR_LOCK.search(name):
            return None
        waits = name

    return None


_MOST_FUNCTION = 300
#: Functions of the interpreter that run Python code.
INTERPRETER = late_pattern(
    r"_?PyEval_(EvalFrame|EvalCode|Vector)|_PyFunction_Vectorcall"
    r"|py_trampoline_evaluator"
)
# What tools print for a function without a symbol.
_NO_SYMBOL = late_pattern(r"\?*|0x[0-9a-f]+|_start|clone3?", re.IGNORECASE)


def is_native(frame: StackFrame) -> bool:
    """
    Return whether a frame is native code; not every tool marks it.
    """
    return frame_layer(frame) is Layer.NATIVE


def function_name(name: str) -> str:
    """
    Return a function name without its class and symbol version.
    """
    return name[:_MOST_FUNCTION].partition("@")[0].rpartition(".")[2]


def callsite(frame: StackFrame) -> tuple[str, str]:
    """
    Return the end of the path with slashes, and the function of a frame.
    """
    path = frame.filename[-_MOST_FUNCTION:].replace("\\", "/")
    return path, function_name(frame.name)


def python_frames(frames: Iterable[StackFrame]) -> tuple[StackFrame, ...]:
    """
    Return the frames that are not native.
    """
    return tuple(f for f in frames if not is_native(f))


def native_callees(frames: Iterable[StackFrame]) -> Iterator[StackFrame]:
    """
    Yield the native frames that the innermost Python function called.

    Args:
        frames: Innermost first.
    """
    for frame in frames:
        if not is_native(frame) or INTERPRETER.match(frame.name):
            return
        yield frame


def innermost_native_name(frames: Iterable[StackFrame]) -> str:
    """
    Return the innermost native function below Python; ``""`` if unknown.

    Args:
        frames: Innermost first.
    """
    names = (f.name for f in native_callees(frames))
    return next((n for n in names if not _NO_SYMBOL.fullmatch(n)), "")
