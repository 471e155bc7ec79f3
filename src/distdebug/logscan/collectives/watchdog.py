"""
What does torch's watchdog say in this line?

The forms changed with nearly every release: numbers of elements came in 2.2,
the rank before the line in 2.3, times and groups in 2.4, names of groups in
2.5, one sentence instead of two in 2.6, and what had started in 2.13.  Other
accelerators print the same about ``WorkXCCL`` and the like.  The words are
those of ``ProcessGroupNCCL.cpp`` and ``TraceUtils.h``.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from typing import Any

from .desync import read_desync
from .model import (
    DumpSignal,
    GroupMember,
    Heartbeat,
    LogRecord,
    WorkStatus,
    WorkTimeout,
)
from .speaker import Speaker
from .words import Number, op_name, spaced, to_number


__all__ = ["read_watchdog"]

_WORK = re.compile(
    spaced(
        rf"Work\w{{1,12}}\( SeqNum=(?P<seq>{Number}), OpType=(?P<op>\w{{1,60}})"
        rf"(?:, NumelIn=(?P<numel_in>{Number}))?"
        rf"(?:, NumelOut=(?P<numel_out>{Number}))?"
        rf"(?:, Timeout\(ms\)=(?P<timeout>{Number}))?\)"
        rf"(?: ran for (?P<ran>{Number}) milliseconds)?"
        r"(?P<blocking> timed out in blocking wait)?"
    )
)
_ENQUEUED = spaced(
    rf"ast enqueued (?:\w{{1,8}} )?work:? (?P<enqueued>{Number})"
    r"(?: \([^)\n]{0,80}\))?"
    rf"(?:, last started (?:\w{{1,8}} )?work:? (?P<started>{Number})"
    r"(?: \([^)\n]{0,80}\))?)?"
    rf", last completed (?:\w{{1,8}} )?work:? (?P<completed>{Number})"
)
_STATUS = re.compile(
    spaced(
        r"(?:detected by watchdog at work|Timeout at \w{1,8} work)"
        rf"(?: sequence id)?: (?P<failed>{Number})"
        r"(?:(?:,| PG status:|\.)? [Ll]" + _ENQUEUED + r")?"
    )
)
_PG_STATUS = re.compile(spaced(r"PG status: l" + _ENQUEUED))
_SIGNAL = re.compile(
    spaced(
        r"dump signal due to a collective timeout from "
        r"(?:(?P<own>this local rank)|rank (?P<sender>\d{1,7}))"
        r"[^\n]{0,200}?[Ll]" + _ENQUEUED
    )
)
_HEARTBEAT = re.compile(
    spaced(r"watchdog got stuck for (?P<seconds>\d{1,9}) seconds")
)
_MONITOR = re.compile(spaced(r"Heartbeat monitor timed out"))
_MADE = re.compile(
    spaced(
        r"ProcessGroup\w{2,12} initialization options: size: (?P<size>\d{1,7}),"
        r" global rank: (?P<rank>\d{1,7})"
    )
)


def read_watchdog(speaker: Speaker, text: str) -> Iterator[LogRecord]:
    """
    Read what the watchdog, or the thread that watches it, says.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Time-outs, how far ranks had come, and what else there is.
    """
    for found in _WORK.finditer(text):
        yield WorkTimeout(
            **speaker.at(text, found.start()),
            seq=_seq(found["seq"]),
            op=op_name(found["op"]),
            numel_in=to_number(found["numel_in"]),
            numel_out=to_number(found["numel_out"]),
            timeout=_seconds(found["timeout"]),
            ran=_seconds(found["ran"]),
            blocking=found["blocking"] is not None,
        )
    yield from _progress(speaker, text)
    yield from _stuck(speaker, text)
    yield from read_desync(speaker, text)
    if made := _MADE.search(text):
        told = speaker.at(text, made.start())
        yield GroupMember(
            **told | {"rank": int(made["rank"])}, size=int(made["size"])
        )


def _progress(speaker: Speaker, text: str) -> Iterator[WorkStatus]:
    """
    How far a rank had come, once for each place that tells it.
    """
    seen = set()
    for found in _SIGNAL.finditer(text):
        seen.add(found.end())
        sender = to_number(found["sender"])
        yield DumpSignal(
            **speaker.at(text, found.start()), sender=sender, **_reach(found)
        )
    for pattern in (_STATUS, _PG_STATUS):
        for found in pattern.finditer(text):
            if found.end() not in seen:
                seen.add(found.end())
                failed = found.groupdict().get("failed")
                yield WorkStatus(
                    **speaker.at(text, found.start()),
                    failed=_seq(failed),
                    **_reach(found),
                )


def _stuck(speaker: Speaker, text: str) -> Iterator[Heartbeat]:
    found = _HEARTBEAT.search(text)
    if found:
        seconds = float(found["seconds"])
        yield Heartbeat(**speaker.at(text, found.start()), seconds=seconds)
    elif found := _MONITOR.search(text):
        yield Heartbeat(**speaker.at(text, found.start()))


def _reach(found: re.Match[str]) -> dict[str, Any]:
    """
    How far a rank had come, as far as the numbers can be true.
    """
    enqueued = to_number(found["enqueued"])
    completed = to_number(found["completed"])
    started = to_number(found["started"])
    if enqueued is None or (completed or 0) > enqueued:
        completed = None
    if started is not None and started < max(completed or 0, 1):
        # Where calls are not timed, nothing ever seems to start.
        started = None
    return {
        # -1 is before the first call.
        "enqueued": None if enqueued is None else max(enqueued, 0),
        "started": started,
        "completed": None if completed is None else max(completed, 0),
    }


def _seq(text: str | None) -> int | None:
    seq = to_number(text)
    return seq if seq is not None and seq >= 0 else None


def _seconds(text: str | None) -> float | None:
    number = to_number(text)
    return None if number is None else number / 1000
