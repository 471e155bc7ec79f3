"""
Which of these lines belong to one traceback, and what do they tell?
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from itertools import islice

import attrs

from .._lines import LogLine, Origin
from .._text import clean
from .pyerror import PyError, PyFrame


__all__ = ["HEADER", "LABEL", "ErrorReader"]

HEADER = "Traceback (most recent call last)"
# Of srun --label, where few lines of a file have one.
LABEL = re.compile(r" {0,6}(?P<rank>\d{1,7}): ")

_MOST_FRAMES = 200
_MOST_ERRORS = 12
_MOST_STRANGE = 200
_MOST_BETWEEN = 40
# As many ranks may fail alike at once, and print between each other.
_MOST_HEADERS = 16
_LONGEST = 500

_FRAME = re.compile(
    r'\s*File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,9})'
    r"(?:, in (?P<function>[^\n]{1,200}))?"
)
_RICH_FRAME = re.compile(
    r"(?P<file>[^\s│:]{1,400}):(?P<line>\d{1,9}) in (?P<function>[^\s│]{1,200})"
)
_ERROR = re.compile(
    r"(?P<type>(?:(?:[A-Za-z_]\w{0,80}|<locals>)\.){0,12}[A-Za-z_]\w{0,80}"
    r"(?:\([A-Za-z_][\w.]{0,80}\))?)(?::(?:\s(?P<message>.{0,2000}))?)?$"
)
_MARKERS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_ERRORS = re.compile(
    r"(?:[Ee]rror|Exception|Exit|Interrupt|Iteration|Warning|Failure|Group"
    r"|[Tt]imeout|Empty|Traceback|Cancelled)(?:\(|$)"
)
# The frame of a box, and what groups of exceptions begin with.
_DRAWN = re.compile(r"\s{0,9}(?:[╭┏─━ ]{2,200}|\+ Exception Group )$")
_LEVELS = frozenset(
    {"INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "FATAL", "NOTE"}
)


class ErrorReader:
    """
    Takes the lines of one traceback out of those of all.
    """

    def __init__(
        self, *, head: str, origin: Origin | None, used: list[int]
    ) -> None:
        self._origin = origin
        self._used = used
        self._head = _like(head)
        self._errors: list[PyError] = []
        self._frames: list[PyFrame] = []
        self._strange = 0
        self._headers = 0
        self._is_marked = False
        self._step = self._in_frames

    def read(
        self, numbered: Iterable[tuple[int, LogLine]]
    ) -> tuple[PyError, ...]:
        """
        The exceptions, as far as they are told.
        """
        for number, line in islice(numbered, 4 * _MOST_STRANGE):
            if line.origin != self._origin:
                continue
            found = self._head and self._head.match(line.text)
            text = line.text[found.end() :] if found else line.text
            body = text.removeprefix("  | ").rstrip()
            if self._step(body):
                self._used.append(number)
                self._strange = 0
            else:
                self._strange += 1
            self._headers += HEADER in body
            is_new = HEADER in body and bool(self._frames)
            most = _MOST_BETWEEN if self._errors else _MOST_STRANGE
            is_flood = self._headers > _MOST_HEADERS
            if is_new or is_flood or self._strange > most:
                break
        return tuple(self._errors)

    def _in_frames(self, body: str) -> bool:
        """
        Read up to the line that names the exception.
        """
        if body.startswith(("│", "┃", "╰", "└")):
            found = _RICH_FRAME.search(body)
        else:
            found = _FRAME.match(body)
        if found:
            self._add(found)
            return True
        if not body or body[0] in " \t│┃╰└":
            return bool(self._frames)

        found = _ERROR.match(body)
        if not (found and self._is_error(found["type"])):
            return False

        self._errors.append(
            PyError(
                type=found["type"],
                message=clean(found["message"] or "", limit=_LONGEST),
                frames=tuple(self._frames),
            )
        )
        self._frames = []
        self._step = self._behind
        return True

    def _behind(self, body: str) -> bool:
        """
        Read up to the next exception that belongs to it.
        """
        if len(self._errors) >= _MOST_ERRORS:
            return False

        last = self._errors[-1]
        found = _FRAME.match(body)
        if found and last.is_wrapper:
            self._add(found)
        elif f"Original {HEADER}" in body:
            # "Caught X in worker process 0" tells once more what follows.
            wrapped = f"RemoteError({last.type})"
            self._errors[-1] = attrs.evolve(last, type=wrapped)
        elif body in _MARKERS:
            self._is_marked = True
            return True
        elif not (HEADER in body and (last.is_wrapper or self._is_marked)):
            return False

        self._is_marked = False
        self._step = self._in_frames
        return True

    def _is_error(self, name: str) -> bool:
        if _ERRORS.search(name):
            return True

        # Any class may be raised, but lines of others look like that too.
        is_next = bool(self._frames) and not self._strange
        last = name.rpartition(".")[2]
        return is_next and last[0].isupper() and last not in _LEVELS

    def _add(self, found: re.Match[str]) -> None:
        frame = PyFrame(
            function=clean(found["function"] or "", limit=100),
            file=clean(found["file"], limit=300),
            line=int(found["line"]),
        )
        # Processes that fail alike print the same line twice.
        is_new = frame not in self._frames[-1:]
        if is_new and len(self._frames) < _MOST_FRAMES:
            self._frames.append(frame)


def _like(head: str) -> re.Pattern[str] | None:
    """
    What stands before each line, but for numbers.
    """
    plain = _DRAWN.sub("", head)
    if not plain or len(plain) > _LONGEST:
        return None

    if LABEL.fullmatch(head):
        return re.compile(re.escape(plain))

    parts = re.split(r"\d+", plain)
    end = "" if plain == head else " ?"
    return re.compile(r"\d{1,20}".join(map(re.escape, parts)) + end)
