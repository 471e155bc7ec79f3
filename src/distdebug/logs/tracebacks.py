"""
Which of these lines belong to one traceback, and what do they tell?
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from itertools import islice

import attrs

from .._text import clean
from .lines import LogLine, Origin


# They tell only of what went wrong elsewhere.
_WRAPPERS = re.compile(
    r"RayTaskError|RemoteTraceback|_?RemoteError|ChildFailedError"
    r"|ProcessRaisedException|WorkerCrashedError|_?ExceptionWithTraceback"
)
_LIBRARIES = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[.\d]{0,4})/|^<"
)


@attrs.frozen(kw_only=True)
class PyFrame:
    """
    One line of a traceback.
    """

    function: str
    file: str
    line: int


@attrs.frozen(kw_only=True)
class PyError:
    """
    One exception of a traceback.

    Attributes:
        type: Its class, with its module if that is told.

        message: The first line of what it says.

        frames: Where it came through, the innermost last.
    """

    type: str
    message: str = ""
    frames: tuple[PyFrame, ...] = ()

    @property
    def is_wrapper(self) -> bool:
        """
        Whether it only passes on what went wrong elsewhere.
        """
        return bool(_WRAPPERS.search(self.type))

    @property
    def place(self) -> PyFrame | None:
        """
        The innermost line that belongs to no library, else the innermost.
        """
        own = (x for x in self.frames[::-1] if not _LIBRARIES.search(x.file))
        return next(own, self.frames[-1] if self.frames else None)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


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


_JSON_KEY = re.compile(
    r'"(?:exc_info|exc_text|exception|stack_trace|stack_info|traceback'
    r'|error|message|msg|log)"\s{0,3}:\s{0,3}"[^"]{0,400}$'
)
_SOFT = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b")
_IGNORED = re.compile(r"Exception ignored (?:in|on|while)\b")


@attrs.frozen(kw_only=True)
class Trace:
    """
    A traceback with what led to it.

    Attributes:
        errors: The exceptions, in the order in which they were raised; none
            if the traceback is cut off before it tells.

        origin: Who printed it, if a prefix tells.

        rank: The number of the task, if each of its lines has that label.

        lines: The numbers of its lines among those that were given.

        is_soft: Whether somebody logged it as no error.

        is_ignored: Whether Python says that it ignored it.
    """

    errors: tuple[PyError, ...]
    origin: Origin | None = None
    rank: int | None = None
    lines: tuple[int, ...] = ()
    is_soft: bool = False
    is_ignored: bool = False

    @property
    def root(self) -> PyError | None:
        """
        The first exception that is not about another one.
        """
        own = (error for error in self.errors if not error.is_wrapper)
        return next(own, self.errors[-1] if self.errors else None)


def read_trace(lines: Iterable[LogLine], before: str = "") -> Trace | None:
    """
    Read a traceback.

    Args:
        lines: Those of a log, from its header on.

        before: The line before.

    Returns:
        The traceback, or ``None`` if the header is only quoted.
    """
    numbered = enumerate(lines)
    first = next(numbered, None)
    if first is None or HEADER not in first[1].text:
        return None

    head, _, rest = first[1].text.partition(HEADER)
    if "\\n" in rest:
        return _quoted(first[1], head, rest)
    if rest.strip(" :─━-╮┐|│") not in {"", '"""'}:
        return None

    used = [0]
    label = LABEL.fullmatch(head)
    reader = ErrorReader(head=head, origin=first[1].origin, used=used)
    errors = reader.read(numbered)
    return Trace(
        errors=errors,
        origin=first[1].origin,
        rank=int(label["rank"]) if label and errors else None,
        lines=tuple(used),
        is_soft=bool(_SOFT.search(head)),
        is_ignored=bool(_IGNORED.search(before)),
    )


def _quoted(line: LogLine, head: str, rest: str) -> Trace | None:
    """
    A traceback within one line of JSON, as structured logs have it.
    """
    if not (line.text.startswith("{") and _JSON_KEY.search(head)):
        return None

    text = rest.replace('\\"', '"').replace("\\t", " ")
    lines = [LogLine(text=x) for x in text.partition('\\n"')[0].split("\\n")]
    reader = ErrorReader(head="", origin=None, used=[])
    errors = reader.read(enumerate(lines[1:]))
    cut = [
        attrs.evolve(e, message=e.message.partition('"')[0]) for e in errors
    ]
    return Trace(errors=tuple(cut), origin=line.origin, lines=(0,))
