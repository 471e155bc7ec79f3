"""
What is told when a job makes no progress?
"""

from __future__ import annotations

import logging
import socket
import threading

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs

from .._in_time import in_time
from .._showing import Block, Lines, Shown
from .._text import clean
from ..bundle.options import Wanted
from ..findings import Cause


@attrs.frozen(kw_only=True)
class HangReason:
    """
    Why somebody is called.

    Attributes:
        kind: ``"wait"`` if a fixed wait is over, whether or not anything is
            wrong, ``"no progress"`` otherwise.

        elapsed_s: How long the watch has lasted, in seconds.

        pids: The processes that are watched.

        stalled: What does not move any more and was not told before, and for
            how many seconds; longest first.
    """

    kind: Literal["wait", "no progress"]
    elapsed_s: float
    pids: tuple[int, ...]
    stalled: tuple[tuple[str, float], ...] = ()

    @property
    def stalled_s(self) -> float:
        """
        For how many seconds nothing moved; 0 if everything does.
        """
        return max((seconds for _, seconds in self.stalled), default=0.0)

    def __str__(self) -> str:
        text = f"{self.elapsed_s:,.0f} s are over"
        if self.stalled:
            name, seconds = self.stalled[0]
            stuck = f"no progress for {seconds:,.0f} s"
            # The one that stands still is seldom to blame.
            if others := len(self.stalled) - 1:
                stuck += f" ({clean(name)} and {others:,} more)"
            text = f"{text}; {stuck}" if self.kind == "wait" else stuck
        return text


class NotYet(NamedTuple):
    """
    There is nothing to tell, or somebody else is about to.

    Attributes:
        seconds: After how many seconds to ask again.

        is_free: Whether this does not count as one more snapshot.
    """

    seconds: float
    is_free: bool = True


@attrs.frozen(kw_only=True)
class Hang(Shown):
    """
    What was found out about a job that makes no progress.

    Attributes:
        reason: Why it was looked at.

        folder: The snapshot.

        data: What it tells, in the layout of the command line's ``--json``.

        report: The same as text.
    """

    reason: HangReason
    folder: Path
    data: Mapping[str, Any]
    report: str = ""

    @property
    def cause(self) -> Cause:
        """
        Why it hangs.
        """
        return Cause(self.data["verdict"]["cause"])

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing was wrong after all, as far as anybody can see.
        """
        return self.cause.is_fine

    @property
    def summary(self) -> str:
        """
        One line, fit for a ticket.
        """
        return clean(self.data["verdict"]["summary"], limit=1000)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, to be sent as JSON.
        """
        return {
            "schema": 1,
            "tool": "distdebug",
            "summary": self.summary,
            "host": socket.gethostname(),
            "folder": str(self.folder),
            "reason": attrs.asdict(self.reason),
            "diagnosis": dict(self.data),
        }

    def _blocks_(self) -> Iterable[Block]:
        verdict = self.data["verdict"]
        sure = verdict.get("confidence")
        lines = [
            f"{self.reason}: {self.summary}",
            f"  cause: {self.cause.value}" + (f" ({sure})" if sure else ""),
        ]
        if verdict.get("remedy"):
            lines.append(f"  next: {clean(verdict['remedy'], limit=1000)}")
        where = clean(str(self.folder / "REPORT.txt"), limit=1000)
        yield Lines([*lines, f"  see {where}"])


Hook = Callable[[Hang], object]


Outcome = Literal["explained", "taken", "elsewhere", "busy", "fine"]


@attrs.frozen(kw_only=True)
class Order:
    """
    What to take when a job makes no progress, and where to.

    Attributes:
        output_dir: The folder; the same on all nodes if they share it.

        wanted: What to take.  Without processes, the workers of the job that
            *inside* belongs to are taken.

        inside: The rank that asks for it; ``None`` if nobody of the job does.

        but: Snapshots that had part in before.

        patience_s: For how many seconds a job may write a checkpoint or
            compile.

        running_s: For how many seconds a rank may compute while the others
            wait for it.
    """

    output_dir: Path
    wanted: Wanted
    inside: int | None = None
    but: frozenset[Path] = frozenset()
    patience_s: float = 1800.0
    running_s: float = 300.0


class Response(NamedTuple):
    """
    What was done.

    Attributes:
        outcome: ``"explained"``; ``"taken"`` if another node explains it;
            ``"elsewhere"`` if another watcher of this node took it already;
            ``"busy"`` if one does so now; ``"fine"`` if nothing hangs.

        summary: Why, in one line.

        bundle: The folder of all nodes, if there is one.

        hang: What was found, if it was explained here.
    """

    outcome: Outcome
    summary: str
    bundle: Path | None = None
    hang: Hang | None = None


_logger = logging.getLogger("distdebug")
_PATIENCE_S = 2.0


def say(
    level: int, text: str, *args: object, error: BaseException | None = None
) -> None:
    """
    Log something; on a thread that is not the main one, in bounded time.

    Args:
        level: How bad it is, as *logging* counts.

        text: What to say, with a ``%s`` for each of *args*.

        args: What to fill in.

        error: Of what to show the traceback.
    """
    log = partial(_logger.log, level, text, *args, exc_info=error)
    if threading.current_thread() is threading.main_thread():
        with suppress(Exception):
            log()
    elif _logger.isEnabledFor(level):
        with suppress(BaseException):
            in_time(log, _PATIENCE_S)


def is_the_end(error: BaseException) -> bool:
    """
    Tell whether an exception is meant to end the program.

    Args:
        error: What was caught.

    Returns:
        Whether it is Ctrl-C, or a wish to exit, on the main thread.  On any
        other, it is a mistake like others, and ends nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)
