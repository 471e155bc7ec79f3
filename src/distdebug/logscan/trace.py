"""
Which exceptions does a traceback in a log tell of?

Lines of other processes may stand between its own, each of its lines may have
the prefix of a launcher or of a logger, and one exception may lead to another.
"""

from __future__ import annotations

import re

from collections.abc import Iterable

import attrs

from .._lines import LogLine, Origin
from .pyerror import PyError, PyFrame
from .reader import HEADER, LABEL, ErrorReader


__all__ = ["HEADER", "PyError", "PyFrame", "Trace", "read_trace"]

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
