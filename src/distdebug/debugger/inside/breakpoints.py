"""
Does a rank stop at this line?

A rank that nobody can reach must not hold the others, so a breakpoint stops
only where the debugger is armed, or where a person sits at the terminal.
"""

from __future__ import annotations

import itertools
import sys
import threading

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

from ..._rank_syntax import read_selection
from ...identity import current_identity
from ..selecting import is_selected
from .arming import is_to_stop, ready_to_stop
from .crashes import examine_crashes
from .labels import describe_process
from .looking import place_of, place_text
from .prompt import current_prompt
from .settings import is_off, pause_limit_s, say, say_once
from .stops import open_stop
from .unanswered import is_unanswered


__all__ = ["set_trace"]

_passed: dict[tuple[str, int, str], Iterator[int]] = {}


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

    # An expression or a handler of logs that runs for us is not held.
    if threading.current_thread().name.startswith("distdebug"):
        return
    try:
        here: FrameType = frame or sys._getframe(1)  # noqa: SLF001 as breakpoint() does
    except ValueError:  # it was called by no code, as atexit does
        say_once("passed a breakpoint that is in no line")
        return
    if not (cond() if callable(cond) else cond):
        return
    if ranks is not None and not _is_meant(ranks):
        return
    if not _has_its_turn(here, skip, once=once):
        return

    _stop(here, limit, header)


def _stop(here: FrameType, limit: float | None, header: str | None) -> None:
    place = place_of(here)
    if pause_limit_s(limit) == 0:
        say_once(f"passed a breakpoint at {place_text(place)}; the limit is 0")
        return
    if not ready_to_stop():
        if _has_terminal():
            import pdb  # noqa: T100 somebody sits there

            pdb.Pdb().set_trace(here)
        else:
            _pass(place)
        return
    if is_unanswered(place["file"], place["line"]):
        return

    examine_crashes()
    current_prompt().halt(
        here, partial(open_stop, "breakpoint", limit, header)
    )


def _pass(place: Mapping[str, Any]) -> None:
    text = f"passed a breakpoint at {place_text(place)}"
    if is_to_stop():  # and said why that cannot be
        say_once(f"{text}; this rank cannot be debugged")
    else:
        say("%s; DISTDEBUG=1 stops there", text)


def _is_meant(ranks: str | int | Iterable[int]) -> bool:
    labels = describe_process()
    if isinstance(ranks, str):
        by_rank, by_dimension = read_selection(ranks)
    else:
        several = [ranks] if isinstance(ranks, int) else ranks
        by_rank = tuple(range(rank, rank + 1) for rank in several)
        by_dimension = ()
    # A program that nobody launched runs as its own rank 0.
    rank = labels["rank"] or 0
    return is_selected(by_rank, by_dimension, rank, labels["coords"])


def _has_its_turn(here: FrameType, skip: int, *, once: bool) -> bool:
    """
    Count how often each line was passed, each line by itself.
    """
    if not (skip or once):
        return True

    code = here.f_code
    line = (code.co_filename, here.f_lineno, code.co_qualname)
    # No lock: a process that is forked would wait for it for ever.
    passed = next(_passed.setdefault(line, itertools.count(1)))
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
