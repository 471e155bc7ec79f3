"""
What does a person at the prompt of the debugger mean?

::

    command  = "quit" | "detach" | help | attach | cast | eval | extend
             | continue | stack | abort | others
    help     = "help" [ WS WORD ]
    attach   = "attach" WS ( [ GROUP WS ] INT | thread )
    cast     = "cast" WS ( who | thread ) LINE
    eval     = "eval" WS ( who [ "up" WS INT ":" ] | thread ) LINE
    extend   = "extend" WS [ who | thread ] MINUTES
    continue = "continue" [ WS ( one | thread ) ]
    stack    = "stack" [ WS ( one | thread | [ who ] "all" ) ]
    abort    = "abort" WS ( one | thread )
    others   = ( "list" | "interrupt" | "resume" ) [ WS one ]
    one      = who | [ GROUP WS ] INT
    who      = [ GROUP WS ] ranks
    thread   = "#" INT
    GROUP    = letters, digits, "-" and "_"

The selection *ranks* is what :func:`distdebug.ranks.parse_ranks` reads.
``a``, ``l``, ``h``, ``c``, and ``q`` are short for the words that begin so.
"""

from __future__ import annotations

import difflib
import re

from collections.abc import Iterable

import attrs

from ..._text import clean
from ...errors import DebuggerError
from ...ranks import RankSelection, parse_ranks


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


_BLANKS = " \t\r\n"
_ALONE = frozenset({"quit", "detach"})
_WITH_LINE = frozenset({"cast", "eval"})
_WITH_RANKS = frozenset(
    {"list", "continue", "stack", "interrupt", "resume", "abort"}
)
_OF_THREADS = frozenset(
    {"cast", "eval", "extend", "continue", "stack", "abort"}
)

SHORT = {
    "a": "attach",
    "l": "list",
    "h": "help",
    "c": "continue",
    "q": "quit",
}
"""What the short forms mean."""

WORDS = tuple(
    sorted({*_ALONE, *_WITH_LINE, *_WITH_RANKS, "attach", "extend", "help"})
)
"""All commands, as they are completed."""

_WORD = re.compile(r"[a-z]+(?=[ \t\r\n]|\Z)")
_ATTACH = re.compile(r"(?:([A-Za-z0-9_-]+)[ \t\r\n]+)?([0-9]+)")
_NUMBER = re.compile(r"#([0-9]{1,9})(?=[ \t\r\n]|\Z)")
_WHO = re.compile(r"(?:([A-Za-z0-9_-]+)[ \t\r\n]+)?(?=ranks\()")
_UP = re.compile(r"up[ \t]{1,9}([0-9]{1,4})[ \t]{0,9}:(?!=)")
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

        number: Or the number of a thread that is held, as it is listed.

        line: What to let the ranks do, to evaluate, or to explain.

        minutes: How long they may stay.

        up: How many callers further out to evaluate.

        is_full: Whether to tell of all threads.
    """

    word: str
    group: str | None = None
    ranks: RankSelection | None = None
    rank: int | None = None
    number: int | None = None
    line: str = ""
    minutes: float | None = None
    up: int = 0
    is_full: bool = False


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
    word = SHORT.get(match[0], match[0]) if match else ""
    rest = text[match.end() :].strip(_BLANKS) if match else ""
    if word in _ALONE:
        return _end(Command(word=word), rest)
    if word == "help":
        return _help(rest)
    if word == "attach":
        return _attach(rest)
    if word in _WITH_LINE:
        return _with_line(word, rest)
    if word in _WITH_RANKS:
        return _with_ranks(word, rest)
    if word == "extend":
        return _extend(rest)

    raise unknown_command(text, WORDS)


def _end(command: Command, rest: str) -> Command:
    if rest:
        msg = f"nothing may follow {command.word}: {shown(rest)}"
        raise DebuggerError(msg, remedy=f"see: help {command.word}")

    return command


def _help(rest: str) -> Command:
    if rest and SHORT.get(rest, rest) not in {*WORDS, "ranks"}:
        msg = f"there is no help on {shown(rest)}"
        raise DebuggerError(
            msg, remedy=f"help on one of: {', '.join(WORDS)}, ranks"
        )

    return Command(word="help", line=SHORT.get(rest, rest))


def _attach(rest: str) -> Command:
    if match := _NUMBER.fullmatch(rest):
        return Command(word="attach", number=int(match[1]))
    if match := _ATTACH.fullmatch(rest):
        # int() refuses thousands of digits.
        rank = int((match[2].lstrip("0") or "0")[:20])
        return Command(word="attach", group=match[1], rank=rank)

    msg = f"not a rank to attach to: {shown(rest)}"
    raise DebuggerError(
        msg, remedy="write attach 3, attach GROUP 3, or attach #2"
    )


def _with_line(word: str, rest: str) -> Command:
    command, line = _who(word, rest)
    if not _says_who(command):
        raise missing_ranks(word, rest)
    if word == "eval" and (up := _UP.match(line)):
        if command.number is not None:
            msg = "callers of one thread are looked at by commands of pdb"
            raise DebuggerError(msg, remedy=f"cast #{command.number} up")
        command = attrs.evolve(command, up=int(up[1]))
        line = line[up.end() :].strip(_BLANKS)
    if not line or "\n" in line or "\r" in line:
        msg = f"{word} needs one line of what to do: {shown(line)}"
        raise DebuggerError(msg, remedy=f"write {word} ranks(:) p x")

    return attrs.evolve(command, line=line)


def _with_ranks(word: str, rest: str) -> Command:
    command, end = _who(word, rest)
    if word == "abort" and not rest:
        msg = "abort needs ranks(...): it ends them"
        raise DebuggerError(msg, remedy="write abort ranks(:)")
    if word == "stack" and command.number is None and end == "all":
        return attrs.evolve(command, is_full=True)
    if match := _ATTACH.fullmatch(rest):
        # As of attach: nothing else can be meant by a number.
        ranks = parse_ranks(f"ranks({match[2][:20]})")
        return attrs.evolve(command, group=match[1], ranks=ranks)
    if rest and not _says_who(command):
        raise missing_ranks(word, rest)

    return _end(command, end)


def _extend(rest: str) -> Command:
    command, end = _who("extend", rest)
    if not _MINUTES.fullmatch(end):
        msg = f"not a number of minutes: {shown(end)}"
        raise DebuggerError(
            msg, remedy="write extend 30, or extend ranks(0) 30"
        )

    return attrs.evolve(command, minutes=float(end))


def _says_who(command: Command) -> bool:
    return command.ranks is not None or command.number is not None


def _who(word: str, rest: str) -> tuple[Command, str]:
    """
    The group and the ranks at the start, or one thread; and what follows.
    """
    if word in _OF_THREADS and (number := _NUMBER.match(rest)):
        command = Command(word=word, number=int(number[1]))
        return command, rest[number.end() :].strip(_BLANKS)

    match = _WHO.match(rest)
    if match is None:
        return Command(word=word), rest

    end = _closing(rest, match.end())
    ranks = parse_ranks(rest[match.end() : end])
    command = Command(word=word, group=match[1], ranks=ranks)
    return command, rest[end:].strip(_BLANKS)


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
