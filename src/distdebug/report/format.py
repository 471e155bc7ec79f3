"""
Format causes, sentences, ranks, paths, and times for the report.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from .._text import clean
from ..causes import Cause
from ..ranks import fold_ranks


_MAX_SENTENCE = 1000
_SENTENCE_ENDS = (".", "…", "!", "?", ":")
# Short brackets in a heading, which must not be wrapped.
_UNBREAKABLE = re.compile(r"(\([^()\n]{1,24}\))")
# Commands in backticks, and commands of distdebug in brackets.
_COMMAND = re.compile(r"`([^`\n]{1,200})`|(?<=\()(distdebug [^()\n]{1,200})")


@attrs.frozen
class TextPiece:
    """
    Piece of a sentence: plain text, or a command.

    Attributes:
        is_command: Whether *text* is a shell command.
    """

    text: str
    is_command: bool = False


def as_sentence(text: str) -> str:
    """
    Format a text as a sentence.

    Returns:
        One line that begins with a capital letter and ends with a full stop;
        ``""`` for an empty text.
    """
    line = clean(text, limit=_MAX_SENTENCE)
    end = "" if not line or line.endswith(_SENTENCE_ENDS) else "."
    # A name of code or of a node keeps its first letter.
    is_name = re.match(r"[a-z][\w.-]{0,80}[_./\d(:]", line)
    return f"{line if is_name else line[:1].upper() + line[1:]}{end}"


def cause_title(cause: Cause) -> str:
    """
    Return a cause as a heading, such as ``"Rank not arrived"``.
    """
    words = cause.value.replace("_", " ")
    for name in ("gpu", "gil", "io", "p2p", "nsight"):
        written = name.upper() if name != "nsight" else "Nsight"
        words = re.sub(rf"\b{name}\b", written, words)
    return words[:1].upper() + words[1:]


def split_commands(text: str) -> tuple[TextPiece, ...]:
    """
    Split a sentence into plain text and commands.

    Args:
        text: The sentence; commands stand in backticks.
    """
    pieces, start = [], 0
    for found in _COMMAND.finditer(text):
        pieces += [
            TextPiece(text[start : found.start()]),
            TextPiece(found[1] or found[2], is_command=True),
        ]
        start = found.end()
    return tuple(p for p in (*pieces, TextPiece(text[start:])) if p.text)


def split_unbreakable(text: str) -> tuple[str, ...]:
    """
    Split a heading at short brackets, which must not be wrapped.

    Returns:
        The parts; each second one is in brackets.
    """
    return tuple(_UNBREAKABLE.split(text))


def cause_tone(cause: Cause) -> str:
    """
    Return the color class of a cause.

    Returns:
        ``"culprit"``, ``"fine"``, or ``"unknown"``.
    """
    if cause is Cause.UNKNOWN:
        return "unknown"

    return "fine" if cause.is_fine else "culprit"


_HOME = re.compile(r"^(?:/home/|/Users/|/root(?=/))[^/]{0,64}(?=/)")


def input_name(path: str) -> str:
    """
    Return the display name of an input path.

    Returns:
        The path if it lies below the current folder; else its last part.
    """
    normal_path = os.path.normpath(path)
    is_elsewhere = normal_path.startswith(("/", ".."))
    name = normal_path.rpartition("/")[2] if is_elsewhere else normal_path
    return clean(name or normal_path, limit=400)


def short_path(path: str, input_paths: Iterable[str]) -> str:
    """
    Return the display path of a file, relative to the inputs.

    Hides the folders above them, such as the name of a home folder.

    Args:
        path: The file.

        input_paths: The files and folders of the diagnosis.

    Returns:
        The relative path; the full one without home if it lies elsewhere.
    """
    normal_path = os.path.normpath(path)
    for base in input_paths:
        top = os.path.normpath(base)
        for start in (top, os.path.abspath(top)):  # noqa: PTH100 of text
            if normal_path == start:
                return input_name(base)
            if normal_path.startswith(f"{start.rstrip('/')}/"):
                relative = normal_path[len(start.rstrip("/")) :].lstrip("/")
                return clean(f"{input_name(base)}/{relative}", limit=400)

    return clean(_HOME.sub("~", normal_path), limit=400)


# Every second of 16,384 ranks would fill a page.
_MAX_FOLDED = 300


@attrs.frozen(kw_only=True)
class RankLinks:
    """
    Ranks to show as links.

    Attributes:
        count: Number of ranks.

        folded: All of them as ranges, possibly cut.

        first: Ranks to list one by one; empty if there are too many.
    """

    count: int = 0
    folded: str = ""
    first: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.count)


def rank_links(ranks: Iterable[int], *, max_listed: int = 8) -> RankLinks:
    """
    Return ranks for the templates.

    Args:
        ranks: Any ranks.

        max_listed: List ranks one by one only up to this number.
    """
    # Damaged files may hold negative ranks.
    known = sorted({rank for rank in ranks if rank >= 0})
    return RankLinks(
        count=len(known),
        folded=shorten_ranks(fold_ranks(known)),
        first=tuple(known) if len(known) <= max_listed else (),
    )


def shorten_ranks(folded: str, most: int = _MAX_FOLDED) -> str:
    """
    Cut folded ranks at a comma if they are longer than *most* characters.
    """
    if len(folded) <= most:
        return folded

    return f"{folded[:most].rpartition(',')[0]},…"


# Later times come from damaged files.
_MAX_TIME_S = 1 << 33


def moment_text(seconds: float | None) -> str:
    """
    Format a point in time.

    Args:
        seconds: Since the epoch; ``None`` if it is not known.

    Returns:
        Such as ``"2026-07-17 10:12:13 UTC"``, or ``""``.
    """
    if seconds is None or not 0 < seconds < _MAX_TIME_S:
        return ""

    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def span_text(first: float, last: float) -> str:
    """
    Format a time span.

    Args:
        first: In seconds since the epoch.

        last: Likewise.

    Returns:
        Such as ``"2026-07-17 10:12:13 to 10:12:15 UTC"``.
    """
    begin, end = moment_text(first), moment_text(last)
    if begin == end or not (begin and end):
        return begin or end

    day = begin[:11]
    return f"{begin.removesuffix(' UTC')} to {end.removeprefix(day)}"


@attrs.frozen(kw_only=True)
class Section:
    """
    One section of the page.

    Attributes:
        name: Its anchor, and the name of its template, style, and script.

        title: Its heading.

        summary: A few words that stay visible while it is folded.

        values: Variables of its template.

        data: JSON data for its script; None if it has no script.

        is_open: Whether it is unfolded at first.
    """

    name: str
    title: str
    summary: str = ""
    values: Mapping[str, Any] = attrs.field(factory=dict)
    data: Any = None
    is_open: bool = True
