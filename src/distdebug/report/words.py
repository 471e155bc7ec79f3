"""
How is what a finding says put into words for a page?
"""

from __future__ import annotations

import re

import attrs

from .._text import clean
from ..findings import Cause


__all__ = [
    "Piece",
    "as_sentence",
    "cause_words",
    "pieces_of",
    "tone_of",
    "unbroken",
]

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
