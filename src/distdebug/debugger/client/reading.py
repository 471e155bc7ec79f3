"""
What do the answers of ranks mean?

They may come from a process that is broken, so anything may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..._text import clean
from .model import Output, Process, Session, plain_text


__all__ = ["process_of", "read_output", "stack_text"]


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
    coords = _mapping(process.get("coords"))
    return Process(
        path=path,
        group=_text(process, "group") or "job",
        rank=_number(process, "rank"),
        coords={clean(str(k)): _number(coords, k) for k in coords},
        host=_text(process, "host"),
        pid=_number(process, "pid"),
        sessions=tuple(
            _session(_mapping(stop)) for stop in answer.get("stops") or ()
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
        **_place(stop),
    )


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
        text = plain_text(error or answer.get("output") or "")
    # One rank may be held in several threads.
    is_main = session is None or session.thread == "MainThread"
    return Output(
        group=process.group,
        rank=process.rank,
        name="" if is_main or session is None else session.thread,
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
    for thread in map(_mapping, threads if isinstance(threads, list) else ()):
        parts.append(f"{_text(thread, 'thread')}:")
        parts += _frame_lines(reversed(thread.get("frames") or ()))
    return "\n".join(parts)


def _frame_lines(frames: Iterable[Any]) -> Iterable[str]:
    for frame in map(_mapping, frames):
        place = f"{_text(frame, 'file')}:{_number(frame, 'line')}"
        yield f"  {place} in {_text(frame, 'function')}"
        if code := _text(frame, "code"):
            yield f"    {code}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(data: Mapping[str, Any], name: str) -> str:
    return clean(str(data.get(name) or ""), limit=1000)


def _number(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    return int(value) if isinstance(value, int | float) else 0
