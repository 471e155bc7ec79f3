"""
Who died in a Ray cluster, and what failed for its driver?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...._text import clean
from ....raylogs.deaths.model import Death, Deaths
from ....raylogs.driver.model import DriverLog
from ...paths import short_path
from ...ranks import RankLinks, rank_links
from ...times import moment_text


__all__ = ["Ended", "deaths_of", "failures_of"]

_MOST = 100
_MOST_LINES = 12


class Ended(NamedTuple):
    """
    How one worker ended, or one call failed.

    Attributes:
        mark: ``"first"``, ``"follows"``, or ``""``.

        when: When, or ``""``.

        who: Who it was.

        ranks: Its rank.

        how: How it ended.

        where: The log that tells.

        lines: What it printed last.
    """

    mark: str
    when: str
    who: str
    ranks: RankLinks
    how: str
    where: str
    lines: tuple[str, ...]


def deaths_of(deaths: Deaths, given: Sequence[str]) -> tuple[list[Ended], int]:
    """
    Who died in a Ray cluster?

    Args:
        deaths: All ends that are told.

        given: The files and folders that were looked at.

    Returns:
        Those that nobody wanted, in the order of time; and how many more.
    """
    # The cause of all others is shown however many there are before it.
    ordered = sorted(deaths.unintended, key=lambda death: not death.is_first)
    shown = sorted(ordered[:_MOST], key=lambda death: death.time or 0.0)
    return [_ended(death, given) for death in shown], len(ordered) - len(shown)


def failures_of(
    drivers: Iterable[DriverLog], given: Sequence[str]
) -> tuple[list[Ended], int]:
    """
    What failed elsewhere, as drivers were told?

    Args:
        drivers: Their outputs.

        given: The files and folders that were looked at.

    Returns:
        What failed, in the order of the lines; and how much more.
    """
    found = [
        Ended(
            mark="ended the driver" if failure.ended_driver else "",
            when="",
            who=clean(failure.label, limit=100),
            ranks=rank_links(() if failure.rank is None else [failure.rank]),
            how=clean(
                f"{failure.error} {failure.message}".strip() or failure.kind
            ),
            where=f"{short_path(driver.path, given)}, line {failure.line}",
            lines=(clean(failure.quote, limit=400),) if failure.quote else (),
        )
        for driver in drivers
        for failure in driver.failures
        if not failure.is_intended
    ]
    return found[:_MOST], max(len(found) - _MOST, 0)


def _ended(death: Death, given: Sequence[str]) -> Ended:
    mark = "first" if death.is_first else ""
    return Ended(
        mark="follows" if death.is_collateral else mark,
        when=moment_text(death.time),
        who=clean(death.label, limit=100),
        ranks=rank_links(() if death.rank is None else [death.rank]),
        how=_how(death),
        where=short_path(str(death.log), given) if death.log else "",
        lines=tuple(
            clean(line, limit=400) for line in death.last_lines[-_MOST_LINES:]
        ),
    )


def _how(death: Death) -> str:
    ended = str(death).removeprefix(f"{death.label}: ")
    told = [ended, death.signal or "", death.error or ""]
    return clean(", ".join(filter(None, told)))
