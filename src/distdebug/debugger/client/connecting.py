"""
How are the ranks of a job on this node asked, and steered?
"""

from __future__ import annotations

import os

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from ...errors import DebuggerError
from ...ranks import RankSelection
from ..folders import base_folder, check_folder, job_folders, socket_paths
from .asking import Ranks
from .attaching import Attached
from .calls import open_line
from .choosing import choose_session
from .model import Answers, Listing
from .outside import stack_from_outside


__all__ = ["DebugClient", "connect"]

_Ranks = RankSelection | str | None


def connect(
    folder: str | os.PathLike[str] | None = None, *, timeout_s: float = 2.0
) -> DebugClient:
    """
    Ask the ranks of a job on this node.

    Ranks that begin to listen later are found as well.

    Args:
        folder: The folder of their sockets; by default ``DISTDEBUG_DIR``, or
            that of the only job of this user that listens here.

        timeout_s: How long a rank may take to answer, in seconds.

    Returns:
        The client.  It holds no rank; if it ends, all stay as they are.

    Raises:
        DebuggerError: The folder is not ours alone, or several jobs listen.

        OSError: It cannot be read.
    """
    chosen = folder or os.environ.get("DISTDEBUG_DIR")
    path = Path(chosen).absolute() if chosen else _only_job(timeout_s)
    check_folder(path)
    return DebugClient(Ranks(path, timeout_s))


def _only_job(timeout_s: float) -> Path:
    alive = [f for f in job_folders() if _listens(f, timeout_s)]
    if len(alive) == 1:
        return alive[0]
    if alive:
        msg = f"{len(alive)} jobs listen on this node"
        names = ", ".join(str(path) for path in alive)
        raise DebuggerError(msg, remedy=f"choose a folder: {names}")

    msg = f"no job of yours listens on this node, below {base_folder()}"
    raise DebuggerError(
        msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
    )


def _listens(folder: Path, timeout_s: float) -> bool:
    check_folder(folder)
    for path, _ in socket_paths(folder):
        with suppress(OSError):
            open_line(path, timeout_s).close()
            return True

    return False


@attrs.frozen
class DebugClient:
    """
    Asks the ranks whose sockets are in one folder: see :func:`connect`.

    Selections are written as ``"ranks(dp=1)"``; `None` means every rank.  The
    group may be left out if there is only one.

    Args:
        ranks: The connections to them.
    """

    ranks: Ranks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """
        Hang up.  Ranks that are stopped stay so, until their limit.
        """
        self.ranks.close()

    # -- questions that stop nobody

    def list(self) -> Listing:
        """
        Find out which ranks listen, and which of them are stopped.

        Returns:
            All of them, also those that run.
        """
        return self.ranks.listing()

    def eval(  # noqa: PLR0913 most can be left out
        self,
        ranks: _Ranks,
        expression: str,
        *,
        group: str | None = None,
        wait_s: float = 5.0,
        copy: bool = False,
        up: int = 0,
    ) -> Answers:
        """
        Evaluate an expression in ranks, whatever they are doing.

        It sees the variables of the innermost line of the user's own code, and
        runs beside the main thread.  So it works in a rank that is blocked.

        Args:
            ranks: Which ranks.

            expression: A Python expression.

            group: Their group.

            wait_s: How long it may take, in seconds.

            copy: Whether to copy tensors from a device to show them, which
                may wait for the collective that hangs.

            up: How many callers further out to look.

        Returns:
            The values as text.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {
            "op": "eval",
            "expression": expression,
            "wait": wait_s,
            "copy": copy,
            "up": up,
        }
        return self.ranks.ask_processes(ranks, group, request, wait_s=wait_s)

    def stack(
        self,
        ranks: _Ranks = None,
        *,
        group: str | None = None,
        all_threads: bool = False,
    ) -> Answers:
        """
        Ask where ranks are, whatever they are doing.

        Of a rank that does not answer, because native code holds its
        interpreter, py-spy tells the stack, if it may.

        Args:
            ranks: Which ranks.

            group: Their group.

            all_threads: Whether to tell of other threads than the main one.

        Returns:
            Their stacks.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "stack", "all": all_threads}
        answers = self.ranks.ask_processes(ranks, group, request)
        notes = tuple(map(stack_from_outside, answers.silent))
        return attrs.evolve(answers, notes=notes)

    # -- what stops ranks, or lets them go on

    def cast(
        self,
        ranks: _Ranks,
        line: str,
        *,
        group: str | None = None,
        wait_s: float = 5.0,
    ) -> Answers:
        """
        Let all stopped threads of some ranks obey one command of pdb.

        Each obeys once, however often the selection names it.

        Args:
            ranks: Which ranks.

            line: The command, such as ``"p loss"`` or ``"next"``.

            group: Their group.

            wait_s: How long to wait until all stop again, in seconds.

        Returns:
            What each printed.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "command", "line": line, "wait": wait_s}
        return self.ranks.ask_stopped(ranks, group, request)

    def attach(
        self,
        rank: int | None = None,
        *,
        group: str | None = None,
        number: int | None = None,
    ) -> Attached:
        """
        Talk to one stopped thread alone.

        Args:
            rank: Its rank.

            group: The group of that.

            number: Or its number in the listing, counted from 1.

        Returns:
            The thread.  To let go of it, do nothing.

        Raises:
            DebuggerError: It is not stopped, or more than one of that rank is.
        """
        found = choose_session(
            self.list(), rank=rank, group=group, number=number
        )
        return Attached(self.ranks, *found)

    def interrupt(
        self,
        ranks: _Ranks = None,
        *,
        group: str | None = None,
        wait_s: float = 1.0,
    ) -> Answers:
        """
        Stop the main thread of ranks at the next line they come to.

        No signal is sent.  A rank that is blocked in native code stops when
        that returns.

        Args:
            ranks: Which ranks.

            group: Their group.

            wait_s: How long to wait for them, in seconds.

        Returns:
            Who stopped, and who is blocked where.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "interrupt", "wait": wait_s}
        return self.ranks.ask_processes(ranks, group, request, wait_s=wait_s)

    def resume(
        self, ranks: _Ranks = None, *, group: str | None = None
    ) -> Answers:
        """
        Let ranks go on, without breakpoints, and stop none that was to be.

        Args:
            ranks: Which ranks.

            group: Their group.

        Returns:
            Who goes on.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "command", "line": "detach", "wait": 1.0}
        stopped = self.ranks.ask_stopped(ranks, group, request)
        waiting = self.ranks.ask_processes(
            ranks, group, {"op": "resume"}, among=stopped.not_stopped
        )
        return Answers(
            outputs=(*stopped.outputs, *waiting.outputs),
            silent=tuple(dict.fromkeys((*stopped.silent, *waiting.silent))),
        )

    def extend(
        self, seconds: float, ranks: _Ranks = None, *, group: str | None = None
    ) -> Answers:
        """
        Let ranks wait longer for the next command.

        Args:
            seconds: For how long from now on.

            ranks: Which ranks.

            group: Their group.

        Returns:
            Who does so.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "extend", "seconds": seconds}
        return self.ranks.ask_stopped(ranks, group, request)

    def abort(
        self, ranks: RankSelection | str, *, group: str | None = None
    ) -> Answers:
        """
        End ranks that are stopped, by an exception at the line where they are.

        Args:
            ranks: Which ranks.

            group: Their group.

        Returns:
            Who ends.

        Raises:
            DebuggerError: Nobody is selected.
        """
        request = {"op": "command", "line": "abort", "wait": 1.0}
        return self.ranks.ask_stopped(ranks, group, request)
