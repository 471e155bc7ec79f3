"""
What does the analysis say of ranks as a whole?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ..._text import clean
from ..analysis.report import FlightReport
from .arrivals import Arrivals
from .drawing import Drawing


__all__ = ["Absence", "Notes", "absences", "take_notes"]


@attrs.frozen(kw_only=True)
class Absence:
    """
    A rank that others wait for in vain.

    Attributes:
        rank: Global rank.

        ns: Until when it is known to be absent, by the common clock.

        args: In which call, and who waits.
    """

    rank: int
    ns: int
    args: Mapping[str, Any]


@attrs.frozen(kw_only=True, eq=False)
class Notes:
    """
    What is known beside the slices.

    Attributes:
        labels: What is said beside the names of ranks.

        arrivals: When the ranks arrived in collectives.
    """

    labels: Mapping[int, str]
    arrivals: Arrivals

    def lateness(self, drawing: Drawing, i: int) -> tuple[str, dict[str, Any]]:
        """
        What is said of a slice for which all others waited.

        Args:
            drawing: The slices of one rank.

            i: Which of them.

        Returns:
            The name of a mark, and its arguments.
        """
        a, call = self.arrivals, drawing.call[i]
        waited_ns = int(a.last_ns[call] - a.first_ns[call])
        args = {
            "ms after the first": waited_ns / 1e6,
            "ranks": int(a.count[call]),
        }
        return "arrived last", args


def take_notes(report: FlightReport, arrivals: Arrivals) -> Notes:
    """
    Note who is at fault, and who merely waits.

    Args:
        report: What is wrong with the job.

        arrivals: When the ranks arrived in collectives.
    """
    labels = dict.fromkeys(report.victims, "waits for others")
    verdict = report.verdict
    if not verdict.cause.is_fine:
        labels |= dict.fromkeys(verdict.ranks, str(verdict.cause))
    return Notes(labels=labels, arrivals=arrivals)


def absences(
    report: FlightReport, until: Mapping[int, int]
) -> Iterator[Absence]:
    """
    Who is waited for in vain, and in which call?

    Args:
        report: What is wrong with the job.

        until: Until when each rank that is drawn knows, by the common clock.
    """
    for wait in report.waits:
        args = {
            "call": clean(f"{wait.op} #{wait.seq}"),
            "group": clean(wait.desc or wait.group),
            "ranks that wait": len(wait.waiting),
        }
        for rank in wait.awaited:
            if rank in until:
                yield Absence(rank=rank, ns=until[rank], args=args)
