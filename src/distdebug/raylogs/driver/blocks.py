"""
Which lines of the output of a driver tell together of one failure?

The lines of several processes are mixed in it, so what belongs together is
gathered for each of them.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator

import attrs

from ..._lines import LogLine


__all__ = ["Block", "gather_blocks"]

_MOST_LINES = 200
_MOST_OPEN = 4096
_LONGEST = 4000

_BEGINS = re.compile(
    r"ray::(?:[^()\n:]{1,100}:)?[\w.<>]{1,200}\(\)[^(\n]{0,20}\(pid=\d"
    r"|\bThe actor died (?:unexpectedly before|because of an error)"
    r"|ActorUnavailableError: The actor [0-9a-f]{32}"
    r"|ActorUnavailableError: The actor is "
    r"|WorkerCrashedError: The worker died"
    r"|worker died or was killed while executing a task"
    r"|killed due to the node running low on memory"
    r"|NodeDiedError: "
    r"|has been marked dead because the detector"
    r"|OwnerDiedError: |RuntimeEnvSetupError: |UnschedulableError: "
    r"|have not registered within the timeout"
)
# Ends a traceback: a line at the margin with the name of an exception.
_ERROR = re.compile(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:\([\w.]{1,80}\))?"
    r"(?::|$)"
)
_CONTINUES = re.compile(
    r"^\s|^PID\t|^\d{1,10}\t|^(?:OOM kill|Object store|Ray killed|Considered|"
    r"Selected|Total non-|To see|Top \d|Memory on|Eviction|Refer to|The actor|"
    r"During handling|The above exception|Traceback|- \w|\]|\(global)"
)
_ONE_LINE = (
    "worker died or was killed",
    "not registered within",
    "marked dead",
)


@attrs.frozen(kw_only=True)
class Block:
    """
    Lines that tell of one failure.

    Attributes:
        number: The number of the first line.

        lines: The lines, without prefixes.

        is_own: Whether the driver printed them itself.
    """

    number: int
    lines: tuple[str, ...]
    is_own: bool = False


def gather_blocks(lines: Iterable[LogLine]) -> Iterator[Block]:
    """
    Gather the lines that tell of failures.

    Args:
        lines: All lines.

    Yields:
        Those of one failure each, in the order of their ends.
    """
    opened: dict[tuple[object, ...], tuple[int, list[str]]] = {}
    for line in lines:
        origin = line.origin
        key = (origin.name, origin.pid, origin.ip) if origin else ()
        held = opened.get(key)
        text = line.text[:_LONGEST]
        if _BEGINS.search(text):
            if held is not None and _is_nested(held[1], text):
                held[1].append(text)
                continue
            if held is not None:
                yield _closed(key, opened.pop(key))
            if len(opened) < _MOST_OPEN:
                opened[key] = (line.number, [text])
            continue
        if held is None:
            continue
        if _goes_on(held[1], text):
            held[1].append(text)
            continue
        is_end = _is_traceback(held[1]) and _ERROR.match(text)
        if is_end:
            held[1].append(text)
        yield _closed(key, opened.pop(key))
    for whose, rest in sorted(opened.items(), key=lambda pair: pair[1][0]):
        yield _closed(whose, rest)


def _closed(key: tuple[object, ...], held: tuple[int, list[str]]) -> Block:
    return Block(number=held[0], lines=tuple(held[1]), is_own=not key)


def _is_traceback(held: list[str]) -> bool:
    return any("ray::" in line for line in held)


def _is_nested(held: list[str], text: str) -> bool:
    """
    Whether an exception passed through several tasks.
    """
    is_inner = text.startswith(("ray.exceptions.", "ray::"))
    return is_inner and _is_traceback(held) and len(held) < _MOST_LINES


def _goes_on(held: list[str], text: str) -> bool:
    if len(held) >= _MOST_LINES or any(x in held[0] for x in _ONE_LINE):
        return False
    return _CONTINUES.match(text) is not None
