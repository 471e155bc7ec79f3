"""
Decide which errors in logs a job survived.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import NamedTuple

from ..causes import Cause
from .engine import is_packed
from .events import EventGroup
from .lines import open_log
from .signatures import read_signatures, text_pattern


_PIECE_BYTES = 1 << 16
_MOST_FILES = 20
# This many different step numbers show that a job goes on.
_MANY_STEPS, _SOME_STEPS = 20, 3
# An error that occurs so often while a job goes on does not end it.
_LEAST_USUAL = 3
# Buffered output of a process may follow its fatal error.
_STDOUT_BUFFER = 1 << 13
# The text is in small letters, which is faster than to ignore case.  A request
# that a server answered is a step, too, by the port of its client, and so is the
# time of its statistics.
_STEP_NUMBER = re.compile(
    rb"(?:step|iteration|iter|epoch|batch)[\"']?[ :=\[(]{1,12}"
    rb"(\d{1,9}(?:\.\d{1,6})?)|\b(\d{1,9})/\d{1,9} \[\d"
    rb"|:(\d{1,5}) - \"post /[^\"\n]{1,200}\" 200\b"
    rb"|(\d\d:\d\d:\d\d)[^\n]{1,60}(?:decode batch|avg prompt throughput)"
)
_OF_NODE = re.compile(r"(?:raylet|gcs_server)[^/\\]{0,80}$")
_FINITE_LOSS = re.compile(
    rb"(?:loss|norm)[\w/]{0,40}[\"']?\s{0,3}[:=|]\s{0,3}[\"']?-?\d"
)
# So many finite values show that a loss recovered.
_MANY_FINITE = 5
_BLANK_START = re.compile(r"\.\{0,\d{1,4}\}")


@cache
def _end_texts(name: str) -> re.Pattern[bytes]:
    """
    Return a pattern for the ends of files: one of ``[text]``, or ``"sure"``.
    """
    if name != "sure":
        return re.compile(text_pattern(name).encode())
    patterns = chain.from_iterable(
        row["patterns"]
        for row in read_signatures()["ending"]
        if row.get("is_sure")
    )
    # They are searched for, and need no part that skips what stands before.
    parts = (_BLANK_START.sub("", x, count=1) for x in patterns)
    return re.compile("|".join(parts).encode(), re.IGNORECASE)


class Recovery(IntEnum):
    """
    Whether a job recovered from an error, as the log shows.
    """

    NONE = 0
    #: The job made steps, which other ranks may do for a while after one has
    #: died.
    PROGRESSING = 1
    #: The job was started again, or completed.
    CERTAIN = 2


def read_recoveries(
    event_groups: Iterable[EventGroup],
) -> dict[EventGroup, Recovery]:
    """
    Check what logs show after the last occurrence of each error.

    Returns:
        For each error in logs of the job, what holds for all of these.
    """
    read_end = cache(_read_file_end)
    recoveries = {}
    for event_group in event_groups:
        # What Ray's node logs, its driver prints, too, and goes on.
        of_job = [x for x in event_group.files if not _OF_NODE.search(x)]
        if not of_job:
            continue
        found = [Recovery.NONE]
        if len(of_job) <= _MOST_FILES and not any(map(is_packed, of_job)):
            with suppress(OSError, ValueError):  # rotated away meanwhile
                found = [
                    _recovery_after(path, event_group, read_end(path))
                    for path in of_job
                ]
        recoveries[event_group] = min(found)
    return recoveries


class _FileEnd(NamedTuple):
    """
    The offsets of what the end of a file shows; -1 for nothing.
    """

    size: int
    steps: list[tuple[int, bytes]]
    completed: int
    surely_completed: int


def _read_file_end(path: str) -> _FileEnd:
    with open_log(path) as file:
        size = file.seek(0, 2)
        start = max(size - _PIECE_BYTES, 0)
        file.seek(start)
        text = file.read(_PIECE_BYTES).lower()
    steps = [(start + at, step) for at, step in _find_steps(text)]
    completed, surely_completed = (
        max((start + x.start() for x in pattern.finditer(text)), default=-1)
        for pattern in map(_end_texts, ("says_completed", "sure"))
    )
    return _FileEnd(size, steps, completed, surely_completed)


def _recovery_after(
    path: str, event_group: EventGroup, end: _FileEnd
) -> Recovery:
    offset = event_group.files[path]
    if event_group.rule.cause is Cause.IO_WAIT and _end_texts(
        "restored"
    ).search(_read_piece(path, offset)):
        return Recovery.CERTAIN
    steps = {step for at, step in end.steps if at > offset}
    # A script may print that it completed after a failure, too.
    is_done = end.completed > offset and len(steps) >= _SOME_STEPS
    if is_done or end.surely_completed > offset:
        return Recovery.CERTAIN
    has_many = len(steps) >= _MANY_STEPS
    if has_many and _end_texts("restarted").search(_read_piece(path, offset)):
        return Recovery.CERTAIN
    is_later = has_many and end.size - offset > _STDOUT_BUFFER
    is_progressing = is_later or (bool(steps) and _is_usual(path, event_group))
    return Recovery.PROGRESSING if is_progressing else Recovery.NONE


def _is_finite_again(event_group: EventGroup) -> bool:
    """
    Return whether finite values follow the last one that was not.
    """
    pieces = []
    with suppress(OSError, ValueError):
        for path, offset in event_group.files.items():
            piece = _read_piece(path, offset).partition(b"\n")[2]
            pieces.append(len(_FINITE_LOSS.findall(piece)) >= _MANY_FINITE)
    return len(pieces) == len(event_group.files) and all(pieces)


def _is_usual(path: str, event_group: EventGroup) -> bool:
    """
    Return whether a job makes steps from one occurrence to the next.

    A reward that runs programs of a model may log tracebacks all the time.
    """
    begin, end = event_group.begins[path], event_group.files[path]
    if event_group.count < _LEAST_USUAL:
        return False
    text = _read_piece(path, begin)[: max(end - begin, 0)]
    return len({step for _, step in _find_steps(text)}) >= _SOME_STEPS


def _find_steps(text: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Yield the offset and the number of each step in a text in small letters.
    """
    for found in _STEP_NUMBER.finditer(text):
        yield found.start(), next(filter(None, found.groups()))


def _read_piece(path: str, offset: int) -> bytes:
    with open_log(path) as file:
        file.seek(offset)
        return file.read(_PIECE_BYTES).lower()


_HANDLED_BY_PROGRAM = re.compile(
    # Except the messages of a watchdog, a crash, or a data loader worker.
    r"\b(?:(?<!watchdog )caught(?! signal| .{1,80} in \w)|skipp(?:ed|ing)(?! iterations)"
    r"|ignor(?:ed|ing)|recovered|retry(?:ing)?(?! count| limit|[ -]exceeded)|fall(?:ing)? ?back)\b",
    re.IGNORECASE,
)
# The priority of rules about what follows when another process is gone.
_CONSEQUENCE = 4
# At most this many groups are checked for recovery.
_MOST_RECOVERIES = 50


def find_survived(harmful: Sequence[EventGroup]) -> set[EventGroup]:
    """
    Return the groups that the job survived.
    """
    # A loss that is not finite stays so, whatever the job does afterwards,
    # unless it shows that it does not.
    lasting = [t for t in harmful if t.rule.cause.is_lasting]
    passing = [t for t in harmful if not t.rule.cause.is_lasting]
    known = read_recoveries(passing[:_MOST_RECOVERIES])
    known |= {
        t: Recovery.CERTAIN
        for t in lasting[:_MOST_RECOVERIES]
        if t.rule.cause is Cause.LOSS_NOT_FINITE and _is_finite_again(t)
    }
    # Other ranks may go on for a while after one has died.
    all_recover = all(
        x or _is_handled(t) for t, x in known.items() if t.rule.cause.ends_job
    )
    least = Recovery.PROGRESSING if all_recover else Recovery.CERTAIN
    # A node that sees how a process goes, which the job survives.
    known |= (
        {
            t: least
            for t in passing[:_MOST_RECOVERIES]
            if t not in known and t.rule.priority == _CONSEQUENCE
        }
        if any(known.values()) and all_recover
        else {}
    )
    return {
        event_group
        for event_group in harmful
        if known.get(event_group, Recovery.NONE) >= least
        or _is_handled(event_group)
    }


def _is_handled(event_group: EventGroup) -> bool:
    """
    Return whether the program itself logs that it handled the error.
    """
    lines = (event_group.first.text, event_group.last.text)
    return not event_group.shape and all(
        map(_HANDLED_BY_PROGRAM.search, lines)
    )
