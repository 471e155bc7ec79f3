"""
Format workers of Ray, their deaths, and the ends of their logs as text.
"""

from __future__ import annotations

import time

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._render import Block, Entries, Lines, Table
from .._text import clean
from ..findings import Finding, finding_entry
from ..ray import read_tail, split_log_name


if TYPE_CHECKING:
    from ..ray import Activity, Deaths, LogPart, RaySession, WorkerLog


_MOST_WORKERS = 40
_MOST_TAILS = 50
_MOST_FINDINGS = 8


def overview_blocks(
    sessions: Sequence[RaySession],
    workers: Sequence[WorkerLog],
    deaths: Deaths,
    findings: Sequence[Finding],
    activity: Iterable[Activity],
) -> Iterator[Block]:
    """
    Yield blocks with the workers, deaths, and last activity of a Ray cluster.

    Args:
        sessions: The nodes.

        workers: Their workers; of many, those that printed last are shown.

        deaths: Their deaths.

        findings: The findings about these deaths.

        activity: When the components of Ray last wrote.
    """
    yield Lines([clean(str(session), limit=400) for session in sessions])
    yield Entries([finding_entry(f) for f in findings[:1]])
    others = [clean(f.summary, limit=400) for f in findings[1:]]
    yield Lines(others, _MOST_FINDINGS - 1, "findings")
    yield _worker_table(workers, deaths)
    alarms = [str(x) for x in activity if x.is_alarming]
    if alarms:
        yield Lines(["silent for long, or stopped:", *alarms])


def _worker_table(workers: Sequence[WorkerLog], deaths: Deaths) -> Block:
    if not workers:
        return "no worker has printed anything"

    ends = {death.worker_id: death for death in deaths.deaths}
    now = time.time()
    latest = sorted(workers, key=lambda log: -log.mtime)
    # Dead workers first: they matter more than busy ones.
    latest.sort(key=lambda log: log.worker_id not in ends)
    rows = [
        (
            _called(log),
            log.pid,
            log.session.host or "-",
            str(ends[log.worker_id]).rpartition(": ")[2]
            if log.worker_id in ends
            else "",
            f"{max(now - log.mtime, 0):,.0f} s ago" if log.mtime else "-",
            _newest(log.err) or _newest(log.out),
        )
        for log in latest
    ]
    headers = ("who", "pid", "node", "end", "printed", "log")
    return Table(headers, rows, _MOST_WORKERS, "workers")


def _called(log: WorkerLog) -> str:
    name = log.actor_name
    is_more = name is not None and name != log.label
    return f"{log.label} {name!r}" if is_more else log.label


def _newest(parts: Sequence[LogPart]) -> str:
    return parts[-1].path.name if parts else ""


def tail_text(
    workers: Sequence[WorkerLog], lines: int, *, full: bool = False
) -> str:
    """
    Return the ends of logs, each below the name of its file.

    Args:
        workers: The workers.

        lines: How many lines of each stream.

        full: Whether to include all workers, however many.
    """
    most = len(workers) if full else _MOST_TAILS
    parts = []
    for log in workers[:most]:
        for stream, told in _tails(log, lines):
            path = clean(str(told[-1].source), limit=400)
            head = f"==> {clean(str(log))}, {stream}: {path} <=="
            shown = [clean(line.text, limit=2000) for line in told]
            parts.append("\n".join([head, *shown]))
    hidden = len(workers) - most
    if hidden > 0:
        parts.append(f"… and {hidden} more workers")
    return "\n\n".join(parts) or "they have printed nothing"


def tail_records(
    workers: Iterable[WorkerLog], lines: int
) -> list[dict[str, Any]]:
    """
    Return the ends of the logs of all workers as plain data.

    Args:
        workers: The workers.

        lines: How many lines of each stream.
    """
    return [
        {
            **log.to_dict(),
            "tail": {
                stream: [line.text for line in told]
                for stream, told in _tails(log, lines)
            },
        }
        for log in workers
    ]


def _tails(log: WorkerLog, lines: int) -> Iterable[tuple[str, Any]]:
    for stream in ("out", "err"):
        told = read_tail(log, lines=lines, stream=stream)
        if told:
            yield stream, told


def who_prints(workers: Iterable[WorkerLog]) -> Callable[[str], str]:
    """
    Return a function that names the worker of a log file, also after rotation.
    """
    names = {
        (split_log_name(part.path.name)[0], str(part.path.parent)): log
        for log in workers
        for part in (*log.out, *log.err)
    }

    def who(source: str) -> str:
        folder, _, name = source.rpartition("/")
        log = names.get((split_log_name(name)[0], folder.removesuffix("/old")))
        return clean(str(log)) if log else name

    return who
