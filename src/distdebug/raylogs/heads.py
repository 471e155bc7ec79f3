"""
Whose is this log, as the lines at its beginning tell?

Ray has each worker write ``:job_id:``, ``:actor_name:``, and ``:task_name:``
to both its streams.  They stand at the beginning, so that rotation takes them
away first, but not from both streams at once; what an actor's ``__repr__``
returns follows when it is initialized.  Records of ``ray.LoggingConfig`` with
the encoding JSON tell the name that the actor was given.
"""

from __future__ import annotations

import json
import os
import re

from collections.abc import Iterator, Sequence
from contextlib import suppress

import attrs

from .._lines import BROKEN, PACKED, open_log
from .._text import clean
from ..findings import Missing
from .model import LogPart, WorkerLog


__all__ = ["MAGIC", "is_whole", "read_head", "with_heads"]

# How each of Ray's lines begins that nobody printed.
MAGIC = (":job_id:", ":actor_name:", ":task_name:")

_KINDS = ("job_id", "actor_name", "task_name")
_HEAD = 1 << 13
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MARK = re.compile(rb"\n:(job_id|actor_name|task_name):([^\r\n]{1,400})")
_JOB = re.compile(r"[0-9a-f]{8,32}")
_CLASS = re.compile(r"[\w.<>]+")
_RECORD = re.compile(rb'^\{"asctime": [^\n]{0,4000}', re.MULTILINE)
_NAME = re.compile(rb'"actor_name": "((?:[^"\\\n]|\\.){1,200})"')
_ACTOR = re.compile(rb'"actor_id": "([0-9a-f]{32})"')
_MOST_TASKS = 100


def with_heads(log: WorkerLog) -> WorkerLog:
    """
    Read what the beginnings of its parts tell of a worker.

    Args:
        log: The log of a worker, of which only the files are known.

    Returns:
        The same with job, class, and tasks, as far as they tell.
    """
    missing: list[Missing] = []
    marks: dict[str, dict[str, None]] = {kind: {} for kind in _KINDS}
    name = actor = None
    # What logging writes, and so a record with a name, is in the second.
    for parts in (log.err, log.out):
        for head in _heads(parts, missing):
            _add_marks(head, marks)
            if name is None:
                name, actor = _recorded(head)
        # The class comes first if it is there, and has no brackets.
        names = marks["actor_name"]
        name_of_class = next(filter(_CLASS.fullmatch, names), None)
        if marks["job_id"] and name_of_class and is_whole(parts):
            break
    texts = [x for x in names if x != name_of_class]
    return attrs.evolve(
        log,
        job_id=next(filter(_JOB.fullmatch, marks["job_id"]), None),
        actor_class=name_of_class,
        actor_repr=next(iter(texts), None),
        actor_name=name,
        actor_id=actor,
        task_names=tuple(marks["task_name"])[:_MOST_TASKS],
        missing=(*log.missing, *missing),
    )


def is_whole(parts: Sequence[LogPart]) -> bool:
    """
    Tell whether the beginning of a stream is all of it.

    Args:
        parts: Its parts, oldest first.

    Returns:
        Whether nothing else of it may hold another of Ray's lines.
    """
    return (
        [part.index for part in parts] == [0]
        and 0 < parts[0].size < _HEAD
        and parts[0].path.suffix not in PACKED
    )


def read_head(path: str, most: int = _HEAD) -> bytes:
    """
    Read the beginning of a file, unpacked if it is packed.

    Args:
        path: The file, which is no link.

        most: How many bytes to read.

    Returns:
        At most so many.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file, or damaged.
    """
    if path.endswith(tuple(PACKED)):
        with open_log(path) as file:
            return file.read(most)

    # There are tens of thousands: this is half of what a file object costs.
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def _heads(
    parts: Sequence[LogPart], missing: list[Missing]
) -> Iterator[bytes]:
    for part in parts:
        if not part.size:
            continue
        path = str(part.path)
        try:
            yield read_head(path)
        except FileNotFoundError:  # rotated or deleted meanwhile
            continue
        except BROKEN as exc:
            missing.append(Missing.log(path, exc))


def _add_marks(head: bytes, marks: dict[str, dict[str, None]]) -> None:
    for match in _MARK.finditer(b"\n" + head):
        # Where the head ends, the line may go on.
        if match.end() <= _HEAD:
            # A process may call itself anything.
            value = clean(match[2].decode("utf-8", "replace"))
            marks[match[1].decode()][value] = None


def _recorded(head: bytes) -> tuple[str | None, str | None]:
    """
    The name and the id of the actor, as records in JSON tell.
    """
    if b'"actor_name": "' in head:
        for record in _RECORD.finditer(head):
            name, actor = _NAME.search(record[0]), _ACTOR.search(record[0])
            if name:
                return _unquoted(name[1]), actor and actor[1].decode()
    return None, None


def _unquoted(text: bytes) -> str | None:
    with suppress(ValueError):
        return str(json.loads(b'"' + text + b'"'))
    return None
