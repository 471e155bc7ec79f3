"""
Who says this: which rank, in which group?

``[rank3]:`` before a line is the global rank.  ``[Rank 1]`` and ``[PG … Rank
1]`` inside of it count within the group.  Both are the same only in the
default group.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from ..._lines import LogLine, Origin, parse_time
from ..._showing import Block, Table
from ..._text import clean
from ...findings import Cause, CollectiveRef, Confidence, Evidence, Finding
from ...ranks import ranks_text
from .model import CollectiveLogs, GlooError, LogGroup, LogRecord, StoreTimeout


# Unsigned numbers that were never set are printed as the largest there is.
_MOST = 1 << 62
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_GLUED = re.compile(r"all(?=reduce|gather|to_?all)")

Number = r"-?\d{1,20}"


def spaced(pattern: str) -> str:
    """
    Let a pattern match however many blanks stand where it has one, or none.

    >>> from distdebug.logscan.collectives.context import spaced
    >>> spaced("ran for")
    'ran\\\\s{0,9}for'
    """
    return pattern.replace(" ", r"\s{0,9}")


def to_number(text: str | None) -> int | None:
    """
    Read a number; ``None`` if there is none, or if it never was set.
    """
    if text is None:
        return None

    number = int(text)
    return number if -1 <= number < _MOST else None


def op_name(text: str) -> str:
    """
    What is an operation of torch or NCCL called in dumps?

    >>> from distdebug.logscan.collectives.context import op_name
    >>> op_name("_ALLGATHER_BASE"), op_name("ReduceScatter")
    ('_all_gather_base', 'reduce_scatter')
    """
    if not text.isupper():
        text = _CAMEL.sub("_", text)
    name = _GLUED.sub("all_", text.lower())
    return {
        "all_toall": "all_to_all",
        "all_toall_base": "all_to_all",
        "all_to_all_base": "all_to_all",
        "all_to_all_v": "all_to_all",
    }.get(name, name)


_PREFIX = re.compile(r"\[rank(\d{1,7})\]:?")
_GROUP = re.compile(
    spaced(
        r"\[PG ID (?P<id>\d{1,9}) PG GUID (?P<uid>[^\s(\]]{1,80}?)"
        r"(?: \((?P<desc>[^)\]]{0,200})\))? Rank (?P<rank>\d{1,7})\]"
        r"|\[PG (?P<old>[^\s(\]]{1,80}?)(?: \((?P<old_desc>[^)\]]{0,200})\))?"
        r" Rank (?P<old_rank>\d{1,7})\]"
    )
)
_RANK = re.compile(spaced(r"\[Rank (\d{1,7})\]"))
_QUOTE = 400
# So near before what they say, ranks are named.
_NEAR = 2000


@attrs.frozen
class Speaker:
    """
    Who prints a line, as far as it is the same for all of it.

    Attributes:
        line: The line.

        rank: The global rank, if it is told.

        text: The part of the line that is this rank's.

        attempt: How often the job had been restarted.
    """

    line: LogLine
    rank: int | None
    text: str
    attempt: int = 0

    def at(self, text: str, position: int) -> dict[str, Any]:
        """
        What a record has to know that is told at this position of the text.
        """
        group, member = _named(text[max(0, position - _NEAR) : position])
        rank = self.rank
        if rank is None and group is not None and group.is_default:
            rank = member
        return {
            "rank": rank,
            "group_rank": member,
            "group": group,
            "origin": self.line.origin,
            "source": self.line.source,
            "line": self.line.number,
            "time": parse_time(text),
            "quote": clean(text[: 2 * _QUOTE], limit=_QUOTE),
            "count": self.line.count,
            "attempt": self.attempt,
        }


def speakers(
    line: LogLine, *, rank: int | None, attempt: int
) -> Iterator[Speaker]:
    """
    Who speaks in this line?

    Several ranks do where lines were written at once, or behind a progress
    bar.

    Args:
        line: The line.

        rank: Whose file it is, if its name tells.

        attempt: How often the job had been restarted.

    Yields:
        Each of them, with what it says.
    """
    origin: Origin | None = line.origin
    first = rank if origin is None or origin.rank is None else origin.rank
    head, *others = _PREFIX.split(line.text)
    if head.strip():
        yield Speaker(line, first, head, attempt)
    for number, text in zip(others[::2], others[1::2], strict=True):
        yield Speaker(line, int(number), text, attempt)


def _named(before: str) -> tuple[LogGroup | None, int | None]:
    """
    The group and the rank in it that were named last.
    """
    group = member = None
    for found in _GROUP.finditer(before):
        uid = found["uid"] or found["old"]
        group = LogGroup(uid, found["desc"] or found["old_desc"] or "")
        member = int(found["rank"] or found["old_rank"])
    for found in _RANK.finditer(before):
        member = int(found[1])
    return group, member


_MOST_EVIDENCE = 6


def evidence_of(records: Iterable[LogRecord]) -> tuple[Evidence, ...]:
    """
    Quote lines.

    Args:
        records: What stands in them.
    """
    found = dict.fromkeys(
        Evidence(
            kind="log",
            source=record.source,
            location=f"line {record.line}",
            quote=record.quote,
        )
        for record in records
    )
    return tuple(found)[:_MOST_EVIDENCE]


def nccl_finding(  # noqa: PLR0913 all of a finding
    cause: Cause,
    summary: str,
    evidence: Iterable[LogRecord],
    remedy: str,
    *,
    ranks: Iterable[int] = (),
    confidence: Confidence = "likely",
    collective: CollectiveRef | None = None,
) -> Finding:
    """
    Put what NCCL says into a finding.

    Args:
        cause: What is wrong.

        summary: The same as a sentence.

        evidence: The lines that show it.

        remedy: What to do about it.

        ranks: Those at fault.

        confidence: How sure that is.

        collective: The call for which others wait.
    """
    return Finding(
        cause=cause,
        ranks=tuple(sorted(set(ranks))),
        summary=summary,
        confidence=confidence,
        remedy=remedy,
        collective=collective,
        evidence=evidence_of(evidence),
    )


def ranks_of(records: Iterable[LogRecord]) -> tuple[int, ...]:
    """
    Which global ranks say this?

    Args:
        records: What they say.
    """
    return tuple(sorted({x.rank for x in records if x.rank is not None}))


def who_waited(records: Iterable[LogRecord]) -> str:
    """
    Name those who say this.

    Args:
        records: What they say.
    """
    ranks = ranks_of(records)
    return ranks_text(ranks) if ranks else "a process"


def within(records: Iterable[StoreTimeout | GlooError]) -> str:
    """
    Tell for how long they waited, such as ``" within 30 s"``.

    Args:
        records: What they say.

    Returns:
        The text; empty if no line tells.
    """
    spent = next((x.timeout for x in records if x.timeout), None)
    return f" within {spent:.0f} s" if spent else ""


_MOST_ROWS = 200


@attrs.frozen(kw_only=True)
class RankOrigin:
    """
    Where does a rank run?

    Attributes:
        rank: Global rank.

        pid: Its process, if a line tells.

        ip: Address of its node, if a line tells.

        host: Name of its node, if NCCL tells.

        source: The file that it writes to.
    """

    rank: int
    pid: int | None = None
    ip: str | None = None
    host: str | None = None
    source: str = ""


def rank_origins(logs: CollectiveLogs) -> dict[int, RankOrigin]:
    """
    Where do the ranks run that wrote something?

    Args:
        logs: What was read.

    Returns:
        By global rank, as much as prefixes of Ray and lines of NCCL tell.
    """
    found: dict[int, RankOrigin] = {}
    for record in logs.records:
        rank = record.rank
        if rank is None:
            continue
        known = found.get(rank, RankOrigin(rank=rank, source=record.source))
        origin = record.origin
        if origin is not None:
            known = attrs.evolve(
                known,
                pid=origin.pid if known.pid is None else known.pid,
                ip=known.ip or origin.ip,
            )
        found[rank] = known
    for init in logs.inits:
        if init.size == logs.world_size:
            known = found.get(
                init.member,
                RankOrigin(rank=init.member, source=init.source),
            )
            found[init.member] = attrs.evolve(
                known,
                host=init.host,
                pid=init.pid if known.pid is None else known.pid,
            )
    return dict(sorted(found.items()))


def logs_blocks(logs: CollectiveLogs) -> Iterator[Block]:
    """
    What is there to show of what was read?

    Args:
        logs: What was read.

    Returns:
        A table.
    """
    rows = [
        (
            type(record).__name__,
            "?" if record.rank is None else record.rank,
            record.group or "",
            f"{record.source}:{record.line}".lstrip(":"),
            record.quote,
        )
        for record in logs.records
    ]
    if rows:
        headers = ("what", "rank", "group", "where", "line")
        yield Table(headers, rows, _MOST_ROWS, more="")
    else:
        yield "no line about a collective"
