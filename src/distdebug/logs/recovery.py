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
# The names of values that are not finite; the finite ones of such a name.
_NOT_FINITE = re.compile(
    r"([A-Za-z][\w/.-]{0,60})[\"']?\s{0,8}[:=|]{0,2}\s{0,8}[\"']?(?:tensor\(|[(\[])?[-+]?"
    r"(?:nan|inf)\b",
    re.IGNORECASE,
)
_FINITE = r"[\"']?\s{0,8}[:=|]{0,2}\s{0,8}[\"']?(?:tensor\(|[(\[])?-?\d"
# A loss that is not finite more often has not recovered.
_MOST_PASSING = 3
# So many good values show that a loss, or a GPU, recovered.
_MANY_GOOD = 5
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
    if event_group.rule.cause is Cause.IO_WAIT and _is_answered(
        path, event_group
    ):
        return Recovery.CERTAIN
    steps = {step for at, step in end.steps if at > offset}
    # A script may print that it completed after a failure, too.
    is_done = end.completed > offset and len(steps) >= _SOME_STEPS
    if is_done or end.surely_completed > offset:
        return Recovery.CERTAIN
    has_many = len(steps) >= _MANY_STEPS
    if has_many and _end_texts("restarted").search(_read_piece(path, offset)):
        return Recovery.CERTAIN
    is_usual = bool(steps) and _is_usual(path, event_group)
    # Whatever ends the job later, it is not what it survived so often.
    if is_usual and len(steps) >= _SOME_STEPS:
        return Recovery.CERTAIN
    is_later = has_many and end.size - offset > _STDOUT_BUFFER
    return Recovery.PROGRESSING if is_later or is_usual else Recovery.NONE


def _has_passed(event_group: EventGroup) -> bool:
    """
    Return whether good values follow the last one that was not.
    """
    rule, last = event_group.rule, event_group.last
    good: Iterable[str] = ()
    if rule.ratio:  # the same line, to which the rule does not apply
        good = map(re.escape, rule.words)
    elif event_group.count <= _MOST_PASSING:
        names = {x.lower() for x in _NOT_FINITE.findall(last.text)}
        good = (rf"(?<![\w/.-]){re.escape(x)}{_FINITE}" for x in names)
    patterns = [re.compile(x.encode()) for x in good]
    with suppress(OSError, ValueError):
        return bool(patterns) and all(
            len(pattern.findall(_rest_of_file(path, offset))) >= _MANY_GOOD
            for path, offset in event_group.files.items()
            for pattern in patterns
        )
    return False


def _rest_of_file(path: str, offset: int) -> bytes:
    return _read_piece(path, offset).partition(b"\n")[2]


_FILE_SERVER = re.compile(rb"nfs: server (\S{1,200}) (ok|not responding)")


def _is_answered(path: str, event_group: EventGroup) -> bool:
    """
    Return whether all file servers that did not respond answered again.
    """
    hits = event_group.first, event_group.last
    if not all("nfs: server " in hit.text for hit in hits):
        return False
    piece = _read_piece(path, event_group.begins[path])
    states = dict(_FILE_SERVER.findall(piece))
    return bool(states) and {*states.values()} == {b"ok"}


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
        if _has_passed(t)
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
