"""
Does a rank stop at this line?

A rank that nobody can reach must not hold the others, so a breakpoint stops
only where the debugger is armed, or where a person sits at the terminal.
"""

from __future__ import annotations

import sys
import threading

from collections.abc import Iterable
from functools import partial
from types import FrameType
from typing import Any

from ..._rank_syntax import read_selection
from ...identity import current_identity
from ..selecting import is_selected
from .arming import ready_to_stop
from .crashes import examine_crashes
from .labels import describe_process
from .looking import place_of
from .prompt import current_prompt
from .settings import is_off, say
from .stops import open_stop


__all__ = ["set_trace"]

_passed: dict[tuple[str, int, str], int] = {}
_lock = threading.Lock()


def set_trace(  # noqa: PLR0913 each can be left out
    frame: Any = None,
    *,
    ranks: str | int | Iterable[int] | None = None,
    cond: object = True,
    skip: int = 0,
    once: bool = False,
    limit: float | None = None,
    header: str | None = None,
) -> None:
    """
    Stop this rank at this line, and wait for a client.

    ``PYTHONBREAKPOINT=distdebug.debugger.set_trace`` makes every
    ``breakpoint()`` do so.  Where the debugger is not armed and there is no terminal, or this rank
    cannot be stopped, it says in the log where it was, and goes on.  If a client
    says ``abort``, ``bdb.BdbQuit`` is raised at the line.

    Args:
        frame: Where to stop; by default the line that calls this.

        ranks: Which ranks are to stop, as ``"ranks(dp=0, tp=1:)"``, a rank, or
            several; by default all that come here.

        cond: Stop only if this is true; or a function that tells.

        skip: How often to pass this line before it stops.

        once: Whether to stop at this line once at most.

        limit: How long to wait for a client, in seconds; by default
            ``DISTDEBUG_LIMIT``, or 30 minutes.

        header: What to say to whoever attaches.

    Raises:
        distdebug.errors.RankSyntaxError: *ranks* is no selection.
    """
    if is_off():
        return

    here: FrameType = frame or sys._getframe(1)  # noqa: SLF001 as breakpoint() does
    if not (cond() if callable(cond) else cond):
        return
    if ranks is not None and not _is_meant(ranks):
        return
    if not _has_its_turn(here, skip, once=once):
        return

    _stop(here, limit, header)


def _stop(here: FrameType, limit: float | None, header: str | None) -> None:
    if not ready_to_stop():
        if _has_terminal():
            import pdb  # noqa: T100 somebody sits there

            pdb.Pdb().set_trace(here)
        else:
            where = place_of(here)
            say(
                "passed a breakpoint at %s:%s in %s; DISTDEBUG=1 stops there",
                where["file"],
                where["line"],
                where["function"],
            )
        return

    examine_crashes()
    current_prompt().halt(
        here, partial(open_stop, "breakpoint", limit, header)
    )


def _is_meant(ranks: str | int | Iterable[int]) -> bool:
    labels = describe_process()
    if isinstance(ranks, str):
        by_rank, by_dimension = read_selection(ranks)
    else:
        several = [ranks] if isinstance(ranks, int) else ranks
        by_rank = tuple(range(rank, rank + 1) for rank in several)
        by_dimension = ()
    return is_selected(by_rank, by_dimension, labels["rank"], labels["coords"])


def _has_its_turn(here: FrameType, skip: int, *, once: bool) -> bool:
    """
    Count how often each line was passed, each line by itself.
    """
    if not (skip or once):
        return True

    code = here.f_code
    line = (code.co_filename, here.f_lineno, code.co_qualname)
    with _lock:
        passed = _passed[line] = _passed.get(line, 0) + 1
    return passed == skip + 1 if once else passed > skip


def _has_terminal() -> bool:
    """
    Whether one process alone has a person in front of it.
    """
    try:
        is_tty = sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False

    return is_tty and (current_identity().world_size or 1) == 1
