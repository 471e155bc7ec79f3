"""
What does a person at the prompt of the debugger mean?

::

    command  = "list" | "help" | "quit" | "detach" | attach | cast | eval
             | extend | others
    attach   = "attach" WS ( [ GROUP WS ] INT | "#" INT )
    cast     = "cast" WS who LINE
    eval     = "eval" WS who LINE
    extend   = "extend" WS [ who ] MINUTES
    others   = ( "continue" | "stack" | "interrupt" | "resume" ) [ WS who ]
             | "abort" WS who
    who      = [ GROUP WS ] ranks

The selection *ranks* is what :func:`distdebug.ranks.parse_ranks` reads.
``a``, ``l``, ``h``, ``c``, and ``q`` are short for the words that begin so.
"""

from __future__ import annotations

import re

import attrs

from ...errors import DebuggerError
from ...ranks import RankSelection, parse_ranks


__all__ = ["WORDS", "Command", "parse_command"]

_BLANKS = " \t\r\n"
_SHORT = {
    "a": "attach",
    "l": "list",
    "h": "help",
    "c": "continue",
    "q": "quit",
}
_ALONE = frozenset({"list", "help", "quit", "detach"})
_WITH_LINE = frozenset({"cast", "eval"})
_WITH_RANKS = frozenset({"continue", "stack", "interrupt", "resume", "abort"})

WORDS = tuple(sorted({*_ALONE, *_WITH_LINE, *_WITH_RANKS, "attach", "extend"}))
"""All commands, as they are completed."""

_WORD = re.compile(r"[a-z]+(?=[ \t\r\n]|\Z)")
_ATTACH = re.compile(r"(?:([A-Za-z0-9_-]+)[ \t\r\n]+)?([0-9]+)")
_NUMBER = re.compile(r"#([0-9]{1,9})")
_WHO = re.compile(r"(?:([A-Za-z0-9_-]+)[ \t\r\n]+)?(?=ranks\()")
_MINUTES = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")


@attrs.frozen(kw_only=True)
class Command:
    """
    One command that was understood.

    Attributes:
        word: What to do, in full.

        group: Whose ranks are meant; ``None`` if it was left out.

        ranks: Which ranks; ``None`` if it was left out.

        rank: The rank to attach to.

        number: Or the number of a session, as it is listed.

        line: What to let the ranks do, or evaluate.

        minutes: How long they may stay.
    """

    word: str
    group: str | None = None
    ranks: RankSelection | None = None
    rank: int | None = None
    number: int | None = None
    line: str = ""
    minutes: float | None = None


def parse_command(text: str) -> Command:
    """
    What does a line mean?

    Args:
        text: What was typed.

    Returns:
        The command.

    Raises:
        DebuggerError: It is none.

        RankSyntaxError: Its selection of ranks is none.
    """
    text = text.strip(_BLANKS)
    match = _WORD.match(text)
    word = _SHORT.get(match[0], match[0]) if match else ""
    rest = text[match.end() :].strip(_BLANKS) if match else ""
    if word in _ALONE:
        return _end(Command(word=word), rest)
    if word == "attach":
        return _attach(rest)
    if word in _WITH_LINE:
        return _with_line(word, rest)
    if word in _WITH_RANKS:
        return _with_ranks(word, rest)
    if word == "extend":
        return _extend(rest)

    msg = f"not a command: {text!r:.200}"
    raise DebuggerError(msg, remedy=f"one of {', '.join(WORDS)}")


def _end(command: Command, rest: str) -> Command:
    if rest:
        msg = f"nothing may follow {command.word}: {rest!r:.200}"
        raise DebuggerError(msg)

    return command


def _attach(rest: str) -> Command:
    if match := _NUMBER.fullmatch(rest):
        return Command(word="attach", number=int(match[1]))
    if match := _ATTACH.fullmatch(rest):
        # int() refuses thousands of digits.
        rank = int((match[2].lstrip("0") or "0")[:20])
        return Command(word="attach", group=match[1], rank=rank)

    msg = f"not a rank to attach to: {rest!r:.200}"
    raise DebuggerError(
        msg, remedy="write attach 3, attach GROUP 3, or attach #2"
    )


def _with_line(word: str, rest: str) -> Command:
    group, ranks, line = _who(rest)
    if ranks is None:
        msg = f"{word} needs ranks(...): {rest!r:.200}"
        raise DebuggerError(msg, remedy=f"write {word} ranks(:) p x")
    if not line or "\n" in line or "\r" in line:
        msg = f"{word} needs one line of what to do: {line!r:.200}"
        raise DebuggerError(msg, remedy=f"write {word} {ranks} p x")

    return Command(word=word, group=group, ranks=ranks, line=line)


def _with_ranks(word: str, rest: str) -> Command:
    group, ranks, rest = _who(rest)
    if word == "abort" and ranks is None:
        msg = "abort needs ranks(...): it ends them"
        raise DebuggerError(msg, remedy="write abort ranks(:)")

    return _end(Command(word=word, group=group, ranks=ranks), rest)


def _extend(rest: str) -> Command:
    group, ranks, rest = _who(rest)
    if not _MINUTES.fullmatch(rest):
        msg = f"not a number of minutes: {rest!r:.200}"
        raise DebuggerError(msg, remedy="write extend 30")

    return Command(
        word="extend", group=group, ranks=ranks, minutes=float(rest)
    )


def _who(rest: str) -> tuple[str | None, RankSelection | None, str]:
    """
    The group and the ranks at the start, and what follows them.
    """
    match = _WHO.match(rest)
    if match is None:
        return None, None, rest

    end = _closing(rest, match.end())
    ranks = parse_ranks(rest[match.end() : end])
    return match[1], ranks, rest[end:].strip(_BLANKS)


def _closing(text: str, start: int) -> int:
    """
    Behind the parenthesis that closes the first one; the end if none does.
    """
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0 and text[position] == ")":
            return position + 1

    return len(text)
