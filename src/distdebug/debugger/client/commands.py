"""
Commands of the dbg prompt: their table, their help, and their parser.

The table is data, in ``commands.toml`` beside this file.  The grammar::

    command  = "quit" | "detach" | help | attach | cast | eval | extend
             | continue | stack | abort | others
    help     = "help" [ WS WORD ]
    attach   = "attach" WS ( [ GROUP WS ] INT | thread )
    cast     = "cast" WS ( select | thread ) LINE
    eval     = "eval" WS ( select [ "up" WS INT ":" ] | thread ) LINE
    extend   = "extend" WS [ select | thread ] MINUTES
    continue = "continue" [ WS ( one | thread ) ]
    stack    = "stack" [ WS ( one | thread | [ select ] "all" ) ]
    abort    = "abort" WS ( one | thread )
    others   = ( "list" | "interrupt" | "resume" ) [ WS one ]
    one      = select | [ GROUP WS ] INT
    select   = [ GROUP WS ] ranks
    thread   = "#" INT
    GROUP    = letters, digits, "-" and "_"

:func:`distdebug.ranks.parse_ranks` parses the selection *ranks*.
``a``, ``l``, ``h``, ``c``, and ``q`` abbreviate attach, list, help, continue,
and quit.
"""

from __future__ import annotations

import difflib
import re
import tomllib

from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from ..._text import clean
from ...errors import DebuggerError
from ...ranks import RankSelection, parse_rank_option, parse_ranks


# Common commands of pdb that the dbg prompt does not have.
_PDB_COMMANDS = re.compile(
    r"(?:args|b|break|bt|cl|clear|cont|d|display|down|interact|j|jump"
    r"|ll|longlist|n|next|p|pp|r|return|s|source|step|tbreak|u|unt"
    r"|until|up|w|whatis|where)"
)
_MAX_COMMAND_LENGTH = 20
_RANKS_TYPO = re.compile(r"ranks?[ \t]*[(\[{]", re.IGNORECASE)
_BARE_RANKS = re.compile(r"[0-9:,]{1,40}(?=[ \t]|\Z)")
_GROUP = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,99})(?:[ \t]+(.{1,200}))?")


def quote(text: str) -> str:
    """
    Quote typed text for an error: one line, without control characters.
    """
    return f"'{clean(text, limit=100)}'"


def unknown_command_error(text: str, commands: Iterable[str]) -> DebuggerError:
    """
    Return the error for a line that starts with no command.

    The remedy names the likely command.
    """
    names = list(commands)
    first = re.split(r"\W", text, maxsplit=1)[0][: _MAX_COMMAND_LENGTH + 1]
    likely = difflib.get_close_matches(first.lower(), names, n=1, cutoff=0.6)
    if first != first.lower() and first.lower() in {*names, *"alhcq"}:
        remedy = f"commands are in lower case: {first.lower()}"
    elif _PDB_COMMANDS.fullmatch(first) or text.startswith("!"):
        line = clean(text, limit=60)
        remedy = (
            "this is a command of pdb: attach to a rank first, or "
            f"cast ranks(:) {line}"
        )
    elif first == "exit":
        remedy = "to leave, say quit"
    elif likely and len(first) <= _MAX_COMMAND_LENGTH:
        remedy = f"did you mean {likely[0]}?  See: help {likely[0]}"
    else:
        remedy = f"one of {', '.join(names)}"
    return DebuggerError(f"not a command: {quote(text)}", remedy=remedy)


def missing_ranks_error(name: str, rest: str) -> DebuggerError:
    """
    Return the error for a command that lacks its ranks.

    Args:
        name: The command.

        rest: The text after the command.
    """
    line = {"cast": " p x", "eval": " x", "extend": " 30"}.get(name, "")
    group = _GROUP.fullmatch(rest)
    if _RANKS_TYPO.search(rest[:200]):
        remedy = (
            f"write {name} GROUP ranks(0){line}: a group is of letters, "
            "digits, - and _, and ranks( is one word in lower case"
        )
    elif found := _BARE_RANKS.match(rest):
        remedy = f"write {name} ranks({found[0]}){line}"
    elif group and not line:
        remedy = f"write {name} {group[1]} ranks(:)"
    elif group and group[2] and not _PDB_COMMANDS.fullmatch(group[1]):
        remedy = f"write {name} {group[1]} ranks(:) {clean(group[2])}"
    elif line and rest:
        remedy = f"write {name} ranks(:) {clean(rest)}"
    else:
        remedy = f"write {name} ranks(:){line}"
    return DebuggerError(
        f"{name} needs ranks(...), found {quote(rest)}", remedy=remedy
    )


_BLANKS = " \t\r\n"


@attrs.frozen(kw_only=True)
class CommandEntry:
    """
    An entry of ``commands.toml``: a command of the prompt.

    Attributes:
        usage: How it is written.

        summary: What it does, in one line.

        details: Further lines of its help.

        abbreviation: A letter that stands for it, or ``""``.

        syntax: What may follow its name.

        takes_thread: Whether ``#N`` may name one thread.

        thread_line: The pdb command that replaces it for one thread, with
            ``{line}`` for the typed line.
    """

    usage: str
    summary: str
    details: str = ""
    abbreviation: str = ""
    syntax: str
    takes_thread: bool = False
    thread_line: str = ""

    def __str__(self) -> str:
        return f"{self.usage:36}{self.summary}"


_TABLE = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text("utf-8")
)

ENTRIES = {k: CommandEntry(**entry) for k, entry in _TABLE["command"].items()}
"""All commands by name, in the order of the help."""

COMMANDS = tuple(sorted(ENTRIES))
"""The names of all commands, sorted."""

ABBREVIATIONS = {
    entry.abbreviation: name
    for name, entry in ENTRIES.items()
    if entry.abbreviation
}
"""The command that each letter stands for."""


def help_text(topic: str = "") -> str:
    """
    Return the help text.

    Args:
        topic: The full name of a command, or ``"ranks"``; ``""`` for the
            overview.
    """
    if topic == "ranks":
        return str(_TABLE["ranks_details"])
    if entry := ENTRIES.get(topic):
        return f"{entry}\n{entry.details}".strip()

    return "\n".join(
        [*map(str, ENTRIES.values()), "", _TABLE["ranks_examples"]]
    )


_COMMAND = re.compile(r"[a-z]+(?=[ \t\r\n]|\Z)")
_ATTACH = re.compile(r"(?:([A-Za-z0-9_-]+)[ \t\r\n]+)?([0-9]+)")
_NUMBER = re.compile(r"#([0-9]{1,9})(?=[ \t\r\n]|\Z)")
# As ranks are written in answers, and on the command line; a single number may be
# meant as a group, or as minutes.
_FOLDED_RANKS = re.compile(
    r"([0-9]{1,20}(?:[-,][0-9]{1,20}){1,99})(?=[ \t]|\Z)(?![ \t]+ranks\()"
)
# An expression may look the same; what ends ranks is to be written in full.
_IN_FULL = frozenset({"abort", "eval"})
_GROUP_AND_RANKS = re.compile(r"(?:([A-Za-z0-9_-]+)[ \t\r\n]+)?(?=ranks\()")
_UP = re.compile(r"up[ \t]{1,9}([0-9]{1,4})[ \t]{0,9}:(?!=)")
_MINUTES = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")


@attrs.frozen(kw_only=True)
class Command:
    """
    A parsed command.

    Attributes:
        name: In full, even if it was abbreviated.

        group: The group of the ranks; ``None`` if not typed.

        ranks: The selected ranks; ``None`` if not typed.

        rank: The rank to attach to.

        number: The number of a stopped thread in the listing.

        line: The pdb command to run, the expression, or the help topic.

        minutes: How long the ranks may stay stopped.

        up: How many frames above the user's innermost line to evaluate.

        is_full: Whether to show the stacks of all threads.
    """

    name: str
    group: str | None = None
    ranks: RankSelection | None = None
    rank: int | None = None
    number: int | None = None
    line: str = ""
    minutes: float | None = None
    up: int = 0
    is_full: bool = False

    @property
    def seconds(self) -> float:
        """
        Return how long the ranks may stay stopped, in seconds.
        """
        return 60 * (self.minutes or 0)


def parse_command(text: str) -> Command:
    """
    Parse a line typed at the prompt.

    Raises:
        DebuggerError: The line is no command.

        RankSyntaxError: Its selection of ranks is invalid.
    """
    text = text.strip(_BLANKS)
    match = _COMMAND.match(text)
    name = ABBREVIATIONS.get(match[0], match[0]) if match else ""
    rest = text[match.end() :].strip(_BLANKS) if match else ""
    if name in ENTRIES:
        return _PARSERS[ENTRIES[name].syntax](name, rest)

    raise unknown_command_error(text, COMMANDS)


def _parse_nothing(name: str, rest: str) -> Command:
    return _expect_end(Command(name=name), rest)


def _expect_end(command: Command, rest: str) -> Command:
    if rest:
        msg = f"nothing may follow {command.name}: {quote(rest)}"
        raise DebuggerError(msg, remedy=f"see: help {command.name}")

    return command


def _parse_help(name: str, rest: str) -> Command:
    if rest and ABBREVIATIONS.get(rest, rest) not in {*COMMANDS, "ranks"}:
        msg = f"there is no help on {quote(rest)}"
        raise DebuggerError(
            msg, remedy=f"help on one of: {', '.join(COMMANDS)}, ranks"
        )

    return Command(name=name, line=ABBREVIATIONS.get(rest, rest))


def _parse_attach(name: str, rest: str) -> Command:
    if match := _NUMBER.fullmatch(rest):
        return Command(name=name, number=int(match[1]))
    if match := _ATTACH.fullmatch(rest):
        # int() refuses thousands of digits.
        rank = int((match[2].lstrip("0") or "0")[:20])
        return Command(name=name, group=match[1], rank=rank)

    msg = f"not a rank to attach to: {quote(rest)}"
    raise DebuggerError(
        msg, remedy="write attach 3, attach GROUP 3, or attach #2"
    )


def _parse_with_line(name: str, rest: str) -> Command:
    command, line = _parse_selection(name, rest)
    if not _has_selection(command):
        raise missing_ranks_error(name, rest)
    if name == "eval" and (up := _UP.match(line)):
        if command.number is not None:
            msg = "use pdb commands for the callers of one thread"
            raise DebuggerError(msg, remedy=f"cast #{command.number} up")
        command = attrs.evolve(command, up=int(up[1]))
        line = line[up.end() :].strip(_BLANKS)
    if not line or "\n" in line or "\r" in line:
        msg = f"{name} needs one line of what to do: {quote(line)}"
        raise DebuggerError(msg, remedy=f"write {name} ranks(:) p x")

    return attrs.evolve(command, line=line)


def _parse_with_ranks(name: str, rest: str) -> Command:
    command, end = _parse_selection(name, rest)
    if name == "abort" and not rest:
        msg = "abort needs ranks(...): it ends them"
        raise DebuggerError(msg, remedy="write abort ranks(:)")
    if name == "stack" and command.number is None and end == "all":
        return attrs.evolve(command, is_full=True)
    if match := _ATTACH.fullmatch(rest):
        # A plain number is a rank, as in attach.
        ranks = parse_ranks(f"ranks({match[2][:20]})")
        return attrs.evolve(command, group=match[1], ranks=ranks)
    if rest and not _has_selection(command):
        raise missing_ranks_error(name, rest)

    return _expect_end(command, end)


def _parse_extend(name: str, rest: str) -> Command:
    command, end = _parse_selection(name, rest)
    if not _MINUTES.fullmatch(end):
        msg = f"not a number of minutes: {quote(end)}"
        raise DebuggerError(
            msg, remedy="write extend 30, or extend ranks(0) 30"
        )

    return attrs.evolve(command, minutes=float(end))


_PARSERS: dict[str, Callable[[str, str], Command]] = {
    "nothing": _parse_nothing,
    "line": _parse_with_line,
    "ranks": _parse_with_ranks,
    "attach": _parse_attach,
    "extend": _parse_extend,
    "help": _parse_help,
}


def _has_selection(command: Command) -> bool:
    return command.ranks is not None or command.number is not None


def _parse_selection(name: str, rest: str) -> tuple[Command, str]:
    """
    Parse the group and ranks, or the thread, at the start; return the rest.
    """
    if ENTRIES[name].takes_thread and (number := _NUMBER.match(rest)):
        command = Command(name=name, number=int(number[1]))
        return command, rest[number.end() :].strip(_BLANKS)

    if name not in _IN_FULL and (folded := _FOLDED_RANKS.match(rest)):
        command = Command(name=name, ranks=parse_rank_option(folded[1]))
        return command, rest[folded.end() :].strip(_BLANKS)

    match = _GROUP_AND_RANKS.match(rest)
    if match is None:
        return Command(name=name), rest

    end = _find_closing(rest, match.end())
    ranks = parse_ranks(rest[match.end() : end])
    command = Command(name=name, group=match[1], ranks=ranks)
    return command, rest[end:].strip(_BLANKS)


def _find_closing(text: str, start: int) -> int:
    """
    Return the index after the parenthesis that closes the first one.

    Return the end of the text if none does.
    """
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0 and text[position] == ")":
            return position + 1

    return len(text)
