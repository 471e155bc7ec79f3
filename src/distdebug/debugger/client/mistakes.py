"""
What did a person probably mean, whose line is no command?
"""

from __future__ import annotations

import difflib
import re

from collections.abc import Iterable

from ..._text import clean
from ...errors import DebuggerError


__all__ = ["missing_ranks", "shown", "unknown_command"]

# The usual commands of pdb that are none of ours.
_OF_PDB = re.compile(
    r"(?:args|b|break|bt|cl|clear|cont|d|display|down|interact|j|j"
    r"ump|ll|longlist|n|next|p|pp|r|return|s|source|step|tbreak|u|"
    r"unt|until|up|w|whatis|where)"
)
_LONGEST_WORD = 20
_NEARLY_RANKS = re.compile(r"ranks?[ \t]*[(\[{]", re.IGNORECASE)
_ONLY_RANKS = re.compile(r"[0-9:,]{1,40}(?=[ \t]|\Z)")
_GROUP = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,99})(?:[ \t]+(.{1,200}))?")


def shown(text: str) -> str:
    """
    How is a part of what was typed quoted in an error?

    Args:
        text: The part.

    Returns:
        One line, without what a terminal would obey.
    """
    return f"'{clean(text, limit=100)}'"


def unknown_command(text: str, words: Iterable[str]) -> DebuggerError:
    """
    What is to be said of a line that begins with no command?

    Args:
        text: The line.

        words: All commands.

    Returns:
        The error, to be raised.
    """
    names = list(words)
    first = re.split(r"\W", text, maxsplit=1)[0][: _LONGEST_WORD + 1]
    likely = difflib.get_close_matches(first.lower(), names, n=1, cutoff=0.6)
    if first != first.lower() and first.lower() in {*names, *"alhcq"}:
        remedy = f"commands are in lower case: {first.lower()}"
    elif _OF_PDB.fullmatch(first) or text.startswith("!"):
        line = clean(text, limit=60)
        remedy = (
            "this is a command of pdb: attach to a rank first, or "
            f"cast ranks(:) {line}"
        )
    elif first == "exit":
        remedy = "to leave, say quit"
    elif likely and len(first) <= _LONGEST_WORD:
        remedy = f"did you mean {likely[0]}?  See: help {likely[0]}"
    else:
        remedy = f"one of {', '.join(names)}"
    return DebuggerError(f"not a command: {shown(text)}", remedy=remedy)


def missing_ranks(word: str, rest: str) -> DebuggerError:
    """
    What is to be said of a command that lacks its ranks?

    Args:
        word: The command.

        rest: What follows it.

    Returns:
        The error, to be raised.
    """
    line = {"cast": " p x", "eval": " x", "extend": " 30"}.get(word, "")
    group = _GROUP.fullmatch(rest)
    if _NEARLY_RANKS.search(rest[:200]):
        remedy = (
            f"write {word} GROUP ranks(0){line}: a group is of letters, "
            "digits, - and _, and ranks( is one word in lower case"
        )
    elif found := _ONLY_RANKS.match(rest):
        remedy = f"write {word} ranks({found[0]}){line}"
    elif group and not line:
        remedy = f"write {word} {group[1]} ranks(:)"
    elif group and group[2] and not _OF_PDB.fullmatch(group[1]):
        remedy = f"write {word} {group[1]} ranks(:) {clean(group[2])}"
    elif line and rest:
        remedy = f"write {word} ranks(:) {clean(rest)}"
    else:
        remedy = f"write {word} ranks(:){line}"
    return DebuggerError(
        f"{word} needs ranks(...), found {shown(rest)}", remedy=remedy
    )
