"""
What is told when a job makes no progress?
"""

from __future__ import annotations

import socket

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs

from .._showing import Block, Lines, Shown
from .._text import clean
from ..findings import Cause


__all__ = ["Hang", "HangReason", "Hook", "NotYet"]


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
