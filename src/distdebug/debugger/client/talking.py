"""
What does a person see who talks to one rank alone?

An empty line repeats the last command of pdb, which may be a step.  So it is not
given to a rank that runs, or was not told anything yet: there it looks where the
rank is.
"""

from __future__ import annotations

import re
import time

from collections.abc import Iterable

import attrs

from ..._text import time_text
from .answers import Output
from .attaching import Attached
from .commands import SHORT, WORDS, Command, parse_command
from .connecting import DebugClient
from .model import Process, Session, ranks_told
from .showing import place_text


__all__ = ["Talk", "follow", "greeting", "meant_for_all", "prompt_of", "say"]

_POLL_S = 0.1
_FOLLOW_S = 1.0
_LEAVING = frozenset({"q", "quit", "exit", "EOF", "detach"})
# These are no Python and no pdb, so nobody means the rank.
_WITH_RANKS = re.compile(r"([a-z]+)[ \t]+(?:[A-Za-z0-9_-]+[ \t]+)?ranks\(")
_OF_OURS = re.compile(
    r"(?:cast|attach|eval|extend)[ \t]+(?!(?:in|is|and|or|if|not)\b)(?:\w|#\d)"
    r"|(?:c|continue|stack|interrupt|resume|abort)[ \t]+#?\d"
    r"|(?:h|help)[ \t]+(?:cast|attach|detach|eval|stack|interrupt|resume"
    r"|extend|ranks)[ \t]*\Z"
)


@attrs.frozen(kw_only=True)
class Talk:
    """
    How far a conversation with a rank has come.

    Attributes:
        attached: The thread of the rank.

        is_fresh: Whether it was not told anything yet.

        is_running: Whether it still obeyed a command when we looked last.
    """

    attached: Attached
    is_fresh: bool = True
    is_running: bool = False


def prompt_of(talk: Talk, *, with_group: bool) -> str:
    """
    What stands before the line that is typed?

    Args:
        talk: The conversation.

        with_group: Whether there are several groups.

    Returns:
        Such as ``"(rank 3) "``.
    """
    process, session = talk.attached.process, talk.attached.session
    group = f"{process.group} " if with_group else ""
    thread = "" if session.thread == "MainThread" else f" {session.thread}"
    return f"({group}{ranks_told([process.rank])}{thread}) "


def greeting(talk: Talk) -> tuple[Talk, str]:
    """
    Where is the rank, and what did it say last?

    Args:
        talk: The conversation.

    Returns:
        The conversation, and some lines.

    Raises:
        DebuggerError: It does not answer.
    """
    session = talk.attached.session
    output = talk.attached.last()
    left = time_text(session.left_s)
    head = (
        f"{ranks_told([talk.attached.process.rank])}: {session.reason} at "
        f"{place_text(session)}; {left} left"
    )
    text = _text(output)
    if text and not re.search("^> ", text, re.MULTILINE):
        text = f"last output:\n{text}"
    now = attrs.evolve(talk, is_running=output.state == "running")
    return now, "\n".join(filter(None, [head, text]))


def say(talk: Talk, line: str, wait_s: float) -> tuple[Talk, Output]:
    """
    Let the rank obey a line, or look at it.

    Args:
        talk: The conversation.

        line: What was typed.

        wait_s: How long to wait until it stops again, in seconds.

    Returns:
        The conversation, and what the rank says.

    Raises:
        DebuggerError: It does not answer.
    """
    is_blank = not line.strip()
    if is_blank and (talk.is_fresh or talk.is_running):
        output = _look(talk.attached, wait_s)
        if output.state == "stopped" and not output.text:
            output = attrs.evolve(output, text="(waits for a command)")
        is_fresh = talk.is_fresh
    else:
        output = talk.attached.send(line, wait_s=wait_s)
        is_fresh = False
    is_running = output.state == "running"
    now = attrs.evolve(talk, is_fresh=is_fresh, is_running=is_running)
    return now, attrs.evolve(output, text=_text(output), is_error=False)


def _look(attached: Attached, wait_s: float) -> Output:
    end = time.monotonic() + wait_s
    output = attached.last()
    while output.state == "running" and time.monotonic() < end:
        time.sleep(_POLL_S)
        output = attached.last()
    return output


def _text(output: Output) -> str:
    if output.state == "running":
        return (
            f"{output.text if not output.is_error else ''}"
            "(still running; an empty line looks again, detach leaves it)"
        )
    return output.shown.removesuffix("(goes on)").rstrip("\n")


def follow(
    client: DebugClient, talk: Talk, line: str
) -> tuple[Talk | None, str]:
    """
    Where does a rank stop again that was told to go on?

    Args:
        client: Asks it.

        talk: The conversation that has ended.

        line: What ended it.

    Returns:
        The next conversation, if it comes to a breakpoint at once; and what
        to say.
    """
    process = talk.attached.process
    if line.strip() == "abort":
        return None, f"{ranks_told([process.rank])} is aborted"
    if talk.attached.session.reason == "post mortem":
        return None, f"{ranks_told([process.rank])} goes on, by its exception"

    end = time.monotonic() + _FOLLOW_S
    is_left = line.strip() in _LEAVING
    while True:
        listing = client.list()
        parts = [p for p in listing if p.path == process.path]
        if not (parts or listing.silent or listing.lost):
            return None, f"{ranks_told([process.rank])} has ended"
        again = _stop_after(parts, talk.attached.session)
        if again is not None and not is_left:
            return greeting(
                Talk(attached=Attached(talk.attached.ranks, *again))
            )
        if is_left or time.monotonic() > end:
            return None, f"{ranks_told([process.rank])} goes on"
        time.sleep(_POLL_S)


def _stop_after(
    parts: Iterable[Process], before: Session
) -> tuple[Process, Session] | None:
    return next(
        (
            (process, session)
            for process in parts
            for session in process.sessions
            if session.thread == before.thread and session.key != before.key
        ),
        None,
    )


def meant_for_all(line: str) -> Command | None:
    """
    Is a line for other ranks than the one that is talked to?

    Args:
        line: What was typed.

    Returns:
        The command, if no debugger of one rank could mean it.

    Raises:
        DebuggerError: It is meant so, but is not understood.

        RankSyntaxError: Its selection of ranks is none.
    """
    line = line.strip(" \t")
    match = _WITH_RANKS.match(line)
    is_ours = match and SHORT.get(match[1], match[1]) in WORDS
    if is_ours or _OF_OURS.match(line):
        return parse_command(line)

    return None
