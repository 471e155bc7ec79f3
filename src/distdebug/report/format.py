"""
How is what a finding says put into words for a page?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from .._text import clean
from ..findings import Cause
from ..ranks import fold_ranks


_MOST = 1000
_ENDS = (".", "…", "!", "?", ":")
# No line of a heading ends within these.
_WHOLE = re.compile(r"(\([^()\n]{1,24}\))")
# Commands stand between backticks, or are our own.
_COMMAND = re.compile(r"`([^`\n]{1,200})`|(?<=\()(distdebug [^()\n]{1,200})")


@attrs.frozen
class Piece:
    """
    A piece of a sentence.

    Attributes:
        text: What it says.

        is_command: Whether it can be typed into a shell.
    """

    text: str
    is_command: bool = False


def as_sentence(text: str) -> str:
    """
    How is a part of a sentence written that stands alone?

    Args:
        text: Any text.

    Returns:
        One line that begins with a capital letter and ends in a full stop;
        ``""`` if there is nothing.
    """
    line = clean(text, limit=_MOST)
    end = "" if not line or line.endswith(_ENDS) else "."
    # What begins with a name, of code or of a node, keeps its letter.
    is_name = re.match(r"[a-z][\w.-]{0,80}[_./\d(:]", line)
    return f"{line if is_name else line[:1].upper() + line[1:]}{end}"


def cause_words(cause: Cause) -> str:
    """
    How is a cause called in a heading?

    Args:
        cause: Any cause.

    Returns:
        Such as ``"Rank not arrived"``.
    """
    words = cause.value.replace("_", " ")
    for name in ("gpu", "gil", "io", "p2p", "nsight"):
        big = name.upper() if name != "nsight" else "Nsight"
        words = re.sub(rf"\b{name}\b", big, words)
    return words[:1].upper() + words[1:]


def pieces_of(text: str) -> tuple[Piece, ...]:
    """
    Which parts of a sentence are commands?

    Args:
        text: The sentence; commands stand between backticks.

    Returns:
        All of it, piece by piece.
    """
    pieces, at = [], 0
    for found in _COMMAND.finditer(text):
        pieces += [
            Piece(text[at : found.start()]),
            Piece(found[1] or found[2], is_command=True),
        ]
        at = found.end()
    return tuple(p for p in (*pieces, Piece(text[at:])) if p.text)


def unbroken(text: str) -> tuple[str, ...]:
    """
    Which parts of a heading does no line end in?

    Args:
        text: The heading.

    Returns:
        All of it in parts; each second one is in short brackets.
    """
    return tuple(_WHOLE.split(text))


def tone_of(cause: Cause) -> str:
    """
    Which color does a cause have?

    Args:
        cause: Any cause.

    Returns:
        ``"culprit"``, ``"fine"``, or ``"unknown"``.
    """
    if cause is Cause.UNKNOWN:
        return "unknown"

    return "fine" if cause.is_fine else "culprit"


_HOME = re.compile(r"^(?:/home/|/Users/|/root(?=/))[^/]{0,64}(?=/)")


def given_name(path: str) -> str:
    """
    How is a file or folder called that somebody gave?

    Args:
        path: As it was given.

    Returns:
        The same if it lies below the current folder; else its last part.
    """
    plain = os.path.normpath(path)
    is_elsewhere = plain.startswith(("/", ".."))
    inside = plain.rpartition("/")[2] if is_elsewhere else plain
    return clean(inside or plain, limit=400)


def short_path(path: str, given: Iterable[str]) -> str:
    """
    How is a file called, seen from what was given?

    Nobody else needs to know the folders above it, such as whose home it is.

    Args:
        path: The file.

        given: The files and folders that were looked at.

    Returns:
        Its path from there; or all of it if it lies elsewhere, without home.
    """
    plain = os.path.normpath(path)
    for base in given:
        top = os.path.normpath(base)
        for start in (top, os.path.abspath(top)):  # noqa: PTH100 of text
            if plain == start:
                return given_name(base)
            if plain.startswith(f"{start.rstrip('/')}/"):
                rest = plain[len(start.rstrip("/")) :].lstrip("/")
                return clean(f"{given_name(base)}/{rest}", limit=400)

    return clean(_HOME.sub("~", plain), limit=400)


# Every second one of 16,384 ranks would fill a page.
_MOST_FOLDED = 300


@attrs.frozen(kw_only=True)
class RankLinks:
    """
    Some ranks.

    Attributes:
        count: How many there are.

        folded: All of them in few characters.

        first: Those that are shown one by one; empty if there are too many.
    """

    count: int = 0
    folded: str = ""
    first: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.count)


def rank_links(ranks: Iterable[int], *, most: int = 8) -> RankLinks:
    """
    How are many ranks shown?

    Args:
        ranks: Any ranks.

        most: How many are shown one by one.

    Returns:
        What templates show.
    """
    # Damaged files may tell of ranks below none.
    known = sorted({rank for rank in ranks if rank >= 0})
    return RankLinks(
        count=len(known),
        folded=_cut(fold_ranks(known)),
        first=tuple(known) if len(known) <= most else (),
    )


def _cut(folded: str) -> str:
    if len(folded) <= _MOST_FOLDED:
        return folded

    return f"{folded[:_MOST_FOLDED].rpartition(',')[0]},…"


# What is beyond is no time, but damage.
_MOST_S = 1 << 33


def moment_text(seconds: float | None) -> str:
    """
    How is a moment written?

    Args:
        seconds: Since the epoch; ``None`` if it is not known.

    Returns:
        Such as ``"2026-07-17 10:12:13 UTC"``, or ``""``.
    """
    if seconds is None or not 0 < seconds < _MOST_S:
        return ""

    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def span_text(first: float, last: float) -> str:
    """
    How is the time between two moments written?

    Args:
        first: The first one, in seconds since the epoch.

        last: The last one.

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
    One part of the page.

    Attributes:
        name: Its anchor; also the name of its template, its style, and its
            script, as far as it has them.

        title: Its heading.

        summary: What it shows, in a few words that are seen while it is
            folded.

        values: What its template shows.

        data: What its script draws: plain data that JSON knows; None if it
            has no script.

        is_open: Whether it is unfolded at first.
    """

    name: str
    title: str
    summary: str = ""
    values: Mapping[str, Any] = attrs.field(factory=dict)
    data: Any = None
    is_open: bool = True
