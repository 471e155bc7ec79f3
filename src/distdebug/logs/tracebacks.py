"""
Parse Python tracebacks in logs: exceptions, frames, and chained errors.

Lines of several processes may be mixed: a line belongs to a traceback if it
has the same origin and prefix.  Boxes of rich and tracebacks inside a line of
JSON are read too.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence
from itertools import islice

import attrs

from .._text import clean
from ..findings import Location
from ..identity import TASK_LABEL
from ..usercode import code_layer
from .lines import LogLine


# Exceptions that pass on an exception of another process.
_WRAPPER_TYPES = re.compile(
    r"RayTaskError|RemoteTraceback|_?RemoteError|ChildFailedError"
    r"|ProcessRaisedException|WorkerCrashedError|_?ExceptionWithTraceback"
)


@attrs.frozen(kw_only=True)
class PyError:
    """
    One exception of a traceback.

    Attributes:
        type: The class, with its module if shown.

        message: The first line of the message.

        frames: The frames, the innermost last.
    """

    type: str
    message: str = ""
    frames: tuple[Location, ...] = ()

    @property
    def is_wrapper(self) -> bool:
        """
        Return whether it only passes on an exception of another process.
        """
        return bool(_WRAPPER_TYPES.search(self.type))

    @property
    def name(self) -> str:
        """
        Return the class without its module.
        """
        return self.type.partition("(")[0].rpartition(".")[2]

    @property
    def has_usual_name(self) -> bool:
        """
        Return whether its class is named as exceptions usually are.
        """
        return bool(_EXCEPTION_NAME.search(self.type))

    @property
    def place(self) -> Location | None:
        """
        Return the innermost frame of the user, else of a framework, else any.
        """
        return min(
            self.frames[::-1], key=lambda x: code_layer(x.file), default=None
        )

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


TRACEBACK_HEADER = "Traceback (most recent call last)"
# Also where few lines have it.
_TASK_LABEL = re.compile(TASK_LABEL)

_MOST_FRAMES = 200
_MOST_ERRORS = 12
_MOST_FOREIGN = 200
_MOST_BETWEEN = 40
# This many ranks may fail at once and mix their lines.
_MOST_HEADERS = 16
_LONGEST_TEXT = 500

_FRAME = re.compile(
    r'\s*File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,9})'
    r"(?:,? in (?P<function>[^\n]{1,200}))?"
)
_RICH_FRAME = re.compile(
    r"(?P<file>[^\s│:]{1,400}):(?P<line>\d{1,9}) in (?P<function>[^\s│]{1,200})"
)
_ERROR_LINE = re.compile(
    r"(?P<type>(?:(?:[A-Za-z_]\w{0,80}|<locals>)\.){0,12}[A-Za-z_]\w{0,80}"
    r"(?:\([A-Za-z_][\w.]{0,80}\))?)(?::(?:\s(?P<message>.{0,2000}).*)?)?$"
)
_CHAIN_MARKERS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION_NAME = re.compile(
    r"(?:[Ee]rror|Exception|Exit|Interrupt|Iteration|Warning|Failure|Group"
    r"|[Tt]imeout|Empty|Traceback|Cancelled)(?:\(|$)"
)
# The frame of a box of rich, and the head of an exception group.
_BOX_FRAME = re.compile(r"\s{0,9}(?:[╭┏─━ ]{2,200}|\+ Exception Group )$")
_LEVELS = frozenset(
    {"INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "FATAL", "NOTE"}
)


def parse_error_line(line: str) -> PyError | None:
    """
    Parse a line that may name an exception.

    Args:
        line: Such as ``"ValueError: shape mismatch"``, without blanks before.

    Returns:
        The exception, without frames; ``None`` if no class begins the line.
    """
    found = _ERROR_LINE.match(line)
    if found is None:
        return None
    message = clean(found["message"] or "", limit=_LONGEST_TEXT)
    return PyError(type=found["type"], message=message)


def parse_frames(text: str) -> list[Location]:
    """
    Parse the frames of a Python stack, in their order.

    Args:
        text: Lines of a traceback, or as faulthandler writes them.
    """
    found = filter(None, map(_FRAME.match, text.split("\n")))
    return [_make_location(x) for x in found if x["function"]]


def _make_location(frame: re.Match[str]) -> Location:
    return Location(
        function=clean(frame["function"] or "", limit=100),
        file=clean(frame["file"], limit=300),
        line=int(frame["line"]),
    )


class TracebackReader:
    """
    Read one traceback, line by line, from among the lines of its process.

    Args:
        head: What stands before the header of the traceback in its line.

    Attributes:
        errors: The exceptions so far, in the order in which they were raised.

        is_over: Whether no more lines can belong to it.
    """

    def __init__(self, head: str) -> None:
        self.errors: list[PyError] = []
        self.is_over = False
        self._head = _prefix_pattern(head)
        self._frames: list[Location] = []
        self._foreign = 0
        self._headers = 0
        self._is_marked = False
        self._step = self._read_frame_line

    def read(self, text: str) -> bool:
        """
        Read the next line; return whether it belongs to the traceback.
        """
        found = self._head and self._head.match(text)
        body = (text[found.end() :] if found else text).removeprefix("  | ")
        body = body.rstrip()
        is_part = self._step(body)
        self._foreign = 0 if is_part else self._foreign + 1
        is_header = TRACEBACK_HEADER in body
        self._headers += is_header
        most = _MOST_BETWEEN if self.errors else _MOST_FOREIGN
        self.is_over = (
            (is_header and bool(self._frames))
            or self._headers > _MOST_HEADERS
            or self._foreign > most
        )
        return is_part

    def _read_frame_line(self, body: str) -> bool:
        """
        Read a line of frames, up to the one that names the exception.
        """
        if body.startswith(("│", "┃", "╰", "└")):
            found = _RICH_FRAME.search(body)
        else:
            found = _FRAME.match(body)
        if found:
            self._add_frame(found)
            return True
        if not body or body[0] in " \t│┃╰└":
            return bool(self._frames)

        error = parse_error_line(body)
        if not (error and self._may_be_raised(error)):
            return False

        self.errors.append(attrs.evolve(error, frames=tuple(self._frames)))
        self._frames = []
        self._step = self._read_after_error
        return True

    def _read_after_error(self, body: str) -> bool:
        """
        Read a line after an exception, up to the next chained one.
        """
        if len(self.errors) >= _MOST_ERRORS:
            return False

        last = self.errors[-1]
        found = _FRAME.match(body)
        if found and last.is_wrapper:
            self._add_frame(found)
        elif f"Original {TRACEBACK_HEADER}" in body:
            # "Caught X in worker process 0" repeats the error that follows.
            wrapped = f"RemoteError({last.type})"
            self.errors[-1] = attrs.evolve(last, type=wrapped)
        elif body in _CHAIN_MARKERS:
            self._is_marked = True
            return True
        elif not (
            TRACEBACK_HEADER in body and (last.is_wrapper or self._is_marked)
        ):
            return False

        self._is_marked = False
        self._step = self._read_frame_line
        return True

    def _may_be_raised(self, error: PyError) -> bool:
        if error.has_usual_name:
            return True

        # Any class may be raised, but other lines may look like it.
        is_next = bool(self._frames) and not self._foreign
        name = error.name
        return is_next and name[0].isupper() and name not in _LEVELS

    def _add_frame(self, found: re.Match[str]) -> None:
        frame = _make_location(found)
        # Processes that fail in the same way print the same line twice.
        is_new = frame not in self._frames[-1:]
        if is_new and len(self._frames) < _MOST_FRAMES:
            self._frames.append(frame)


def _prefix_pattern(head: str) -> re.Pattern[str] | None:
    """
    Compile the prefix of the lines of a traceback, with any numbers in it.
    """
    plain = _BOX_FRAME.sub("", head)
    if not plain or len(plain) > _LONGEST_TEXT:
        return None

    if _TASK_LABEL.fullmatch(head):
        return re.compile(re.escape(plain))

    parts = re.split(r"\d+", plain)
    end = "" if plain == head else " ?"
    return re.compile(r"\d{1,20}".join(map(re.escape, parts)) + end)


_JSON_KEY = re.compile(
    r'"(?:exc_info|exc_text|exception|stack_trace|stack_info|traceback'
    r'|error|message|msg|log)"\s{0,3}:\s{0,3}"[^"]{0,400}$'
)
_LOW_LEVEL = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG)\b")
_IGNORED_BY_PYTHON = re.compile(r"Exception ignored (?:in|on|while)\b")


def find_root_error(errors: Sequence[PyError]) -> PyError | None:
    """
    Return the first exception that is no wrapper of another one.
    """
    own = (error for error in errors if not error.is_wrapper)
    return next(own, errors[-1] if errors else None)


@attrs.frozen(kw_only=True)
class Trace:
    """
    A traceback with its context.

    Attributes:
        errors: The exceptions, in the order in which they were raised; empty
            if the traceback is cut off.

        rank: The number of the task, if each line has that label.

        lines: The indices of its lines among those that were read.

        is_warning: Whether it was logged below the level of an error.

        is_ignored: Whether Python reports that it ignored the exception.
    """

    errors: tuple[PyError, ...]
    rank: int | None = None
    lines: tuple[int, ...] = ()
    is_warning: bool = False
    is_ignored: bool = False


def read_trace(lines: Iterable[LogLine], before: str = "") -> Trace | None:
    """
    Parse a traceback.

    Args:
        lines: The lines of a log, from the header of the traceback on.

        before: The line before the header.

    Returns:
        The traceback, or ``None`` if the header is only quoted.
    """
    numbered = enumerate(lines)
    first = next(numbered, None)
    if first is None or TRACEBACK_HEADER not in first[1].text:
        return None

    head, _, rest = first[1].text.partition(TRACEBACK_HEADER)
    if "\\n" in rest:
        return _read_json_traceback(first[1], head, rest)
    if rest.strip(" :─━-╮┐|│") not in {"", '"""'}:
        return None

    used = [0]
    label = _TASK_LABEL.fullmatch(head)
    reader = TracebackReader(head)
    for number, line in islice(numbered, 4 * _MOST_FOREIGN):
        if line.origin != first[1].origin:
            continue
        if reader.read(line.text):
            used.append(number)
        if reader.is_over:
            break
    return Trace(
        errors=tuple(reader.errors),
        rank=int(label["rank"]) if label and reader.errors else None,
        lines=tuple(used),
        is_warning=bool(_LOW_LEVEL.search(head)),
        is_ignored=bool(_IGNORED_BY_PYTHON.search(before)),
    )


def _read_json_traceback(line: LogLine, head: str, rest: str) -> Trace | None:
    """
    Parse a traceback inside one line of JSON, as structured logs have it.
    """
    if not (line.text.startswith("{") and _JSON_KEY.search(head)):
        return None

    text = rest.replace('\\"', '"').replace("\\t", " ")
    reader = TracebackReader("")
    for row in text.partition('\\n"')[0].split("\\n")[1:]:
        if reader.is_over:
            break
        reader.read(row)
    errors = tuple(
        attrs.evolve(x, message=x.message.partition('"')[0])
        for x in reader.errors
    )
    return Trace(errors=errors, lines=(0,))
