"""
What is the stack of a process, whichever tool took it?
"""

from __future__ import annotations

import attrs


__all__ = ["ProcessStacks", "StackFrame", "ThreadStack"]


@attrs.frozen
class StackFrame:
    """
    One line of a stack.

    Attributes:
        name: The function, with its class where the tool knows it.

        filename: The file; the library for a native function.

        line: The line that runs, counted from 1; 0 if unknown.
    """

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        where = f"{self.filename}:{self.line}" if self.line else self.filename
        return f"{self.name} ({where})"


@attrs.frozen(kw_only=True)
class ThreadStack:
    """
    One thread.

    Attributes:
        name: Its name in Python; ``""`` if unknown.

        frames: Innermost first.

        thread_id: Its number in the operating system, or else in Python;
            ``None`` if unknown.

        is_main: Whether it is the main thread of its process.

        active: Whether it was running on a processor; ``None`` if unknown.

        owns_gil: Whether it held the interpreter lock; ``None`` if unknown.
    """

    name: str
    frames: tuple[StackFrame, ...]
    thread_id: int | None = None
    is_main: bool = False
    active: bool | None = None
    owns_gil: bool | None = None


@attrs.frozen(kw_only=True)
class ProcessStacks:
    """
    All threads of one process at one moment.

    Attributes:
        pid: Number of the process on its node.

        source: The file it was read from, or the tool that took it.

        threads: Its threads, in the order of the tool.

        rank: Global rank, if it is known, and the process is the rank itself
            and not, say, a worker of its data loader.

        host: Name of the node, if known.

        command: Its command line, or ``""``.

        parent_pid: The process that started it, if known.
    """

    pid: int
    source: str
    threads: tuple[ThreadStack, ...]
    rank: int | None = None
    host: str | None = None
    command: str = ""
    parent_pid: int | None = None

    @property
    def main_thread(self) -> ThreadStack | None:
        """
        The main thread; the first one if none is marked.
        """
        marked = (t for t in self.threads if t.is_main)
        return next(marked, next(iter(self.threads), None))
