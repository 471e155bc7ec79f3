"""
What do the logs say went wrong?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._text import clean, size_text
from ..diagnosis import LogEvidence, seen_by
from ..findings import Diagnosis
from ..logs import (
    CollectiveLogs,
    LogGroup,
    LogRecord,
    PyError,
    PyFrame,
    ScanReport,
    TraceGroup,
)
from ..ray import Death, Deaths, DriverLog
from .format import (
    RankLinks,
    Section,
    cause_words,
    moment_text,
    rank_links,
    short_path,
)


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


_EXCERPTS_MOST = 120
_MOST_LINE = 600
_MOST_FRAMES = 12
_MOST_ERRORS = 4


class Excerpt(NamedTuple):
    """
    Lines that tell of the same.

    Attributes:
        words: What is wrong.

        priority: From 1, what brings a job down, to 5.

        number: How many lines there are, such as ``"12"`` or ``"1,000+"``.

        where: The place of the first of them.

        when: Its time, or ``""``.

        who: Who printed it, or ``""``.

        ranks: Who it is about.

        text: What it says.

        trace: The traceback that ends in it, if there is one.

        is_survived: Whether the job went on afterwards.
    """

    words: str
    priority: int
    number: str
    where: str
    when: str
    who: str
    ranks: RankLinks
    text: str
    trace: tuple[str, ...]
    is_survived: bool


def excerpts_of(
    scan: ScanReport, given: Sequence[str]
) -> tuple[list[Excerpt], int]:
    """
    Which lines tell of something that went wrong?

    Args:
        scan: What was found in logs.

        given: The files and folders that were looked at.

    Returns:
        The most important ones, what brings a job down first; and how many
        others there are.
    """
    found: list[tuple[LogGroup, TraceGroup | None]] = [
        *((trace.group, trace) for trace in scan.tracebacks),
        *((group, None) for group in scan.groups),
    ]
    found.sort(key=lambda pair: (pair[0].priority, pair[0].first.time or 0.0))
    shown = [_excerpt(*pair, given) for pair in found[:_EXCERPTS_MOST]]
    return shown, len(found) - len(shown)


def _excerpt(
    group: LogGroup, trace: TraceGroup | None, given: Sequence[str]
) -> Excerpt:
    first = group.first
    source = short_path(first.source, given) if first.source else ""
    return Excerpt(
        words=cause_words(group.cause),
        priority=group.priority,
        number=f"{group.count:,}{'+' if group.is_more else ''}",
        where=f"{source}, {first.location}" if source else "",
        when=moment_text(first.time),
        who=clean(first.origin.name, limit=60) if first.origin else "",
        ranks=rank_links(group.ranks),
        text=clean(first.text, limit=_MOST_LINE),
        trace=tuple(_trace(trace.errors)) if trace else (),
        is_survived=group.is_survived,
    )


def _trace(errors: Iterable[PyError]) -> Iterable[str]:
    for error in list(errors)[:_MOST_ERRORS]:
        left = len(error.frames) - _MOST_FRAMES
        if left > 0:
            yield f"  … {left} more"
        yield from map(_frame, error.frames[-_MOST_FRAMES:])
        yield clean(str(error), limit=_MOST_LINE)


def _frame(frame: PyFrame) -> str:
    text = f"{frame.function} ({frame.file}:{frame.line})"
    return f"  {clean(text, limit=300)}"


_WATCHDOGS_MOST = 200
_MOST_QUOTED = 500
# In the order of what they tell, in words.
_KINDS = (
    ("timeouts", "calls that did not end in time"),
    ("desyncs", "who lags behind, as torch says"),
    ("mismatches", "calls that differ"),
    ("heartbeats", "watchdogs that did not move"),
    ("barriers", "barriers that failed"),
    ("gloo", "calls over Gloo that failed"),
    ("stores", "processes that did not find each other"),
    ("statuses", "how far ranks had come"),
    ("dump_signals", "who was told to leave a dump"),
    ("notes", "notes of NCCL"),
)


class Statement(NamedTuple):
    """
    What several ranks say of one group.

    Attributes:
        kind: What they speak of.

        group: The group.

        ranks: Who says so.

        number: How many lines there are.

        where: The place of the first of them.

        text: That line.
    """

    kind: str
    group: str
    ranks: RankLinks
    number: int
    where: str
    text: str


def statements_of(
    logs: CollectiveLogs, given: Sequence[str]
) -> tuple[list[Statement], int]:
    """
    What did watchdogs and NCCL print about collectives?

    Args:
        logs: What was read.

        given: The files and folders that were looked at.

    Returns:
        The first line of each kind and group, with all ranks that say so; and
        how many others there are.
    """
    alike: dict[tuple[str, str, str], list[LogRecord]] = defaultdict(list)
    for name, words in _KINDS:
        for record in getattr(logs, name):
            alike[words, str(record.group or ""), _call(record)].append(record)
    shown = [
        _statement(words, group, records, given)
        for (words, group, _), records in list(alike.items())[:_WATCHDOGS_MOST]
    ]
    return shown, len(alike) - len(shown)


def _call(record: LogRecord) -> str:
    """
    The call that a line names, if it does; or its beginning.
    """
    op, seq = getattr(record, "op", ""), getattr(record, "seq", None)
    return f"{op} {seq}" if op else type(record).__name__


def _statement(
    words: str,
    group: str,
    records: Sequence[LogRecord],
    given: Sequence[str],
) -> Statement:
    first = records[0]
    source = short_path(first.source, given) if first.source else ""
    return Statement(
        kind=words,
        group=clean(group, limit=60),
        ranks=rank_links(r.rank for r in records if r.rank is not None),
        number=sum(record.count for record in records),
        where=f"{source}, line {first.line}" if source else "",
        text=clean(first.quote, limit=_MOST_QUOTED),
    )


def logs_section(diagnosis: Diagnosis) -> Section | None:
    """
    What do the logs say went wrong?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        Errors, words of watchdogs, and deaths, each with its place.
    """
    seen = seen_by(diagnosis)
    logs, given = seen.logs, seen.paths
    values: dict[str, Any] = {}
    for name, (shown, more) in {
        "deaths": deaths_of(logs.deaths, given),
        "failures": failures_of(logs.drivers, given),
        "excerpts": excerpts_of(logs.scan, given),
        "statements": statements_of(logs.collectives, given),
    }.items():
        values |= {name: shown, f"more_{name}": more}
    if not any(values.values()):
        return None

    values["read"] = _read(logs)
    values["harmless"] = sum(logs.scan.harmless.values())
    return Section(
        name="logs", title="Logs", summary=_summary(values), values=values
    )


def _read(logs: LogEvidence) -> str:
    files = logs.scan.files
    if not files:
        return ""

    noun = "file" if files == 1 else "files"
    return f"{files:,} {noun}, {size_text(logs.scan.bytes_read)}"


def _summary(values: dict[str, Any]) -> str:
    counts = {
        "death": len(values["deaths"]) + values["more_deaths"],
        "failed call": len(values["failures"]) + values["more_failures"],
        "kind of error": len(values["excerpts"]) + values["more_excerpts"],
        "statement of watchdogs": len(values["statements"])
        + values["more_statements"],
    }
    told = [
        f"{n:,} {noun if n == 1 else _plural(noun)}"
        for noun, n in counts.items()
        if n
    ]
    return ", ".join(told)


def _plural(noun: str) -> str:
    first, of, rest = noun.partition(" of ")
    return f"{first}s{of}{rest}"
