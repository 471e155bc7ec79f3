"""
What do the answers of ranks, and of relays, mean?

They may come from a process that is broken, or from a node that is not to be
trusted, so anything may be missing.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..._text import clean
from .answers import Output
from .model import Process, Session, plain_text


__all__ = [
    "Known",
    "outputs_of",
    "process_key",
    "process_of",
    "ranks_known",
    "read_output",
    "stack_text",
    "texts_told",
]

_MOST_NUMBER = 1 << 62

_OWN = "/distdebug/debugger/inside/"
# Where a package is installed tells nothing; which one it is does.
_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages)/")


# Where Python, Ray, and Monarch run the work of a process.
_WORK = frozenset(
    {
        "MainThread",
        "AsyncIO Thread: default",
        "monarch-actor-driver",
        "monarch-actor-event-loop",
    }
)


class Known(NamedTuple):
    """
    Whom a relay knows on its node.

    Attributes:
        folder: Where their sockets are.

        ranks: The process and the user of each, by the name of its socket.

        silent: Processes that do not answer it.
    """

    folder: str
    ranks: Mapping[str, tuple[int, int]]
    silent: tuple[int, ...]


def ranks_known(answer: Mapping[str, Any]) -> Known | None:
    """
    Whom does a relay know?

    Args:
        answer: What it said to ``who``.

    Returns:
        Them; ``None`` if it is no answer to that.
    """
    ranks, silent = answer.get("ranks"), answer.get("silent")
    if not isinstance(ranks, dict) or not isinstance(silent, list):
        return None

    known = {
        name: (told[0], told[1])
        for name, told in ranks.items()
        if name.isprintable()
        and isinstance(told, list)
        and list(map(type, told)) == [int, int]
    }
    return Known(
        folder=_text(answer, "folder"),
        ranks=known,
        silent=tuple(pid for pid in silent if type(pid) is int),
    )


def texts_told(answer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """
    What does a relay say of processes that do not answer?

    Args:
        answer: What it said to ``outside``, if anything.

    Returns:
        Some texts, of some lines each.
    """
    return tuple(map(plain_text, _list((answer or {}).get("told"))))


def outputs_of(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """
    What did a process say of one of its threads?

    Args:
        answer: What it said of several.

        key: Which thread is meant.

    Returns:
        That, or all that it said, if it tells nothing of this one.
    """
    told = _mapping(answer.get("stops")).get(key)
    return told if isinstance(told, dict) else answer


def process_key(process: Process, answer: Mapping[str, Any]) -> object:
    """
    What tells a process from all others?

    Args:
        process: The process.

        answer: What it said to ``list``.
    """
    start = _mapping(answer.get("process")).get("start")
    return process.host, process.pid, str(start)


def process_of(path: str, answer: Mapping[str, Any]) -> Process:
    """
    Which process answered?

    Args:
        path: Its socket.

        answer: What it said to ``list``.

    Returns:
        The process, with the threads that are held.
    """
    process = _mapping(answer.get("process"))
    return Process(
        path=path,
        **_labels(process),
        host=_text(process, "host"),
        pid=_number(process, "pid"),
        sessions=tuple(
            _session(_mapping(stop)) for stop in _list(answer.get("stops"))
        ),
        **_place(_mapping(answer.get("main"))),
    )


def _session(stop: Mapping[str, Any]) -> Session:
    return Session(
        key=str(stop.get("key")),
        number=_number(stop, "number"),
        thread=_text(stop, "thread"),
        reason=_text(stop, "reason"),
        state=_text(stop, "state"),
        left_s=_number(stop, "left_s"),
        patience_left_s=_known(stop, "patience_left_s"),
        labels=_labels(stop["labels"]) if stop.get("labels") else None,
        **_place(stop),
    )


def _labels(data: object) -> dict[str, Any]:
    labels = _mapping(data)
    coords = _mapping(labels.get("coords"))
    return {
        "group": _text(labels, "group") or "job",
        "rank": _rank(labels),
        "coords": {clean(str(k)): _number(coords, k) for k in coords},
    }


def _rank(data: Mapping[str, Any]) -> int | None:
    return _known({"rank": 0, **data}, "rank")


def _known(data: Mapping[str, Any], name: str) -> int | None:
    return None if data.get(name) is None else _number(data, name)


def _place(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "function": _text(data, "function"),
        "file": _text(data, "file"),
        "line": _number(data, "line"),
    }


def read_output(
    process: Process,
    answer: Mapping[str, Any],
    *,
    session: Session | None = None,
) -> Output:
    """
    What did a process, or one of its threads, answer?

    Args:
        process: Who.

        answer: What it said.

        session: Which thread was asked, if one was.

    Returns:
        Its output.
    """
    error = answer.get("error")
    if "threads" in answer:
        text = stack_text(answer["threads"])
    else:
        text = plain_text(error or answer.get("output") or "").rstrip("\n")
    # One rank may be held in several threads.
    is_main = session is None or session.thread in _WORK
    return Output(
        group=process.group,
        rank=process.rank,
        name=process.name if is_main or session is None else session.thread,
        text=text,
        state=_text(answer, "state"),
        is_error=error is not None,
        key="" if session is None else session.key,
    )


def stack_text(threads: object) -> str:
    """
    How do the stacks of one process read?

    Args:
        threads: What it said to ``stack``.

    Returns:
        The lines, as in a traceback: the innermost last.
    """
    parts = []
    for thread in map(_mapping, _list(threads)):
        parts.append(f"{_text(thread, 'thread')}:")
        frames = [*_of_the_job(reversed(_list(thread.get("frames"))))]
        parts += _frame_lines(frames) or ["  in the debugger; cast it: where"]
    return "\n".join(parts)


def _of_the_job(frames: Iterable[Any]) -> Iterable[Any]:
    """
    The frames, outermost first, up to where the debugger holds the thread.
    """
    for frame in frames:
        if _OWN in _text(_mapping(frame), "file"):
            return
        yield frame


def _frame_lines(frames: Iterable[Any]) -> list[str]:
    lines = []
    for frame in map(_mapping, frames):
        file = _LIBRARIES.sub("", _text(frame, "file"))
        place = f"{file}:{_number(frame, 'line')}"
        lines.append(f"  {place} in {_text(frame, 'function')}")
        if code := _text(frame, "code"):
            lines.append(f"    {code}")
    return lines


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(data: Mapping[str, Any], name: str) -> str:
    return clean(str(data.get(name) or ""), limit=1000)


def _number(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int | float):
        return 0

    # JSON, as Python reads it, knows infinite numbers and such that are none.
    return int(value) if abs(value) < _MOST_NUMBER else 0
