"""
What was drawn, and what was left out?
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from ..._showing import Block, Lines, Shown
from ..._text import clean, list_text, size_text
from ...findings import as_plain
from ...ranks import ranks_text


__all__ = ["HostClock", "Timeline"]


# So many characters of a sentence may name ranks.
_MOST_RANKS = 60


@attrs.frozen(kw_only=True)
class HostClock:
    """
    How is the clock of a host set, compared with that of the first rank?

    Attributes:
        host: The host; ``"rank 3"`` where a dump does not tell its host.

        ahead_ns: By how much it is ahead; ``None`` if no call tells.

        doubt_ns: How far off that may be; ``None`` likewise.

        corrected: Whether its times were shifted: only where it is ahead or
            behind by more than the doubt.
    """

    host: str
    ahead_ns: int | None
    doubt_ns: int | None
    corrected: bool


@attrs.frozen(kw_only=True)
class Timeline(Shown):
    """
    What is in a timeline that was written.

    Attributes:
        path: The file.

        size: Its size in bytes.

        ranks: The ranks that are in it, ascending.

        start_ns: The time that it calls zero, in nanoseconds since the epoch
            by the clock of the first rank.

        span_ns: From there to its end.

        slices: How many calls are in it, one slice each.

        tracks: How many tracks they lie on.

        open: How many of the calls were not complete when their dump was taken;
            a job that goes on has such calls, too.

        unended: How many ended when nobody recorded.

        late: How many times a last one to arrive is marked.

        arrows: How many arrows join slices of the same call.

        arrows_left_out: How many more there could be.

        records_left_out: How many records of these ranks were not asked for.

        clocks: How the clocks of the hosts are set, by their lowest rank.

        undated: Ranks of which it is not known when their dump was taken, so
            that their open calls reach to the newest record of the job.
    """

    path: str
    size: int
    ranks: tuple[int, ...]
    start_ns: int
    span_ns: int
    slices: int
    tracks: int
    open: int
    unended: int
    late: int
    arrows: int
    arrows_left_out: int
    records_left_out: int
    clocks: tuple[HostClock, ...]
    undated: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, for JSON.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterator[Block]:
        what = f"{self.slices:,} calls of {_ranks_text(self.ranks)}"
        span = f"{self.span_ns / 1e9:,.3f} s"
        counts = (
            f"{self.open:,} not complete when dumped",
            _count(self.late, "late arrival"),
            _count(self.arrows, "arrow"),
            _count(self.tracks, "track"),
        )
        path, size = clean(self.path, limit=1000), size_text(self.size)
        lines = [
            f"{path}: {what} in {span} ({size})",
            f"  {', '.join(counts)}",
            f"  clocks: {_clocks_text(self.clocks)}",
        ]
        if self.unended:
            lines.append(
                f"  no end on record of {self.unended:,} calls: they are "
                "drawn until the last rank arrived"
            )
        if self.undated:
            lines.append(
                "  when the dumps were taken is not known of "
                f"{_ranks_text(self.undated)}"
            )
        if self.records_left_out or self.arrows_left_out:
            lines.append(
                f"  left out: {self.records_left_out:,} records that were not "
                f"asked for, {self.arrows_left_out:,} arrows"
            )
        lines.append("  open it at https://ui.perfetto.dev")
        yield Lines(lines)


def _ranks_text(ranks: tuple[int, ...]) -> str:
    text = ranks_text(ranks)
    return text if len(text) <= _MOST_RANKS else f"{len(ranks):,} ranks"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _clocks_text(clocks: tuple[HostClock, ...]) -> str:
    if len(clocks) < 2:
        return "all ranks share one"

    shifted = [
        f"{clean(c.host)} {-c.ahead_ns / 1e6:+,.1f} ms "
        f"(± {(c.doubt_ns or 0) / 1e6:,.1f})"
        for c in clocks
        if c.corrected and c.ahead_ns is not None
    ]
    unknown = [clean(c.host) for c in clocks if c.ahead_ns is None]
    parts = [f"shifted {list_text(shifted)}"] if shifted else []
    if unknown:
        parts.append(f"not compared: {list_text(unknown)}")
    agree = len(clocks) - len(shifted) - len(unknown)
    # At least the one that the others are compared with.
    parts.append(f"{agree} taken as they are")
    return "; ".join(parts)
