"""
What does a person type, and what is shown?

The prompt never waits for a rank longer than a few seconds, and Ctrl-C reaches
no rank: it only ends the waiting.
"""

from __future__ import annotations

import shutil
import sys

from collections.abc import Callable
from contextlib import suppress

import attrs

from ..._text import clean
from ...errors import DebuggerError, DistdebugError
from .attaching import Attached
from .choosing import choose, choose_session
from .commands import Command, parse_command
from .connecting import DebugClient
from .helping import help_text
from .model import Listing, ranks_told
from .obeying import obey
from .showing import first_lines, held_text, listing_text, news_text
from .talking import Talk, follow, greeting, meant_for_all, prompt_of, say


__all__ = ["run_shell"]

_PROMPT = "distdebug> "
_MORE_HELP = (
    "detach comes back from this rank, and leaves it stopped; q lets it go on.\n"
    "Commands with ranks(...) reach others from here, too: help cast"
)


@attrs.frozen(kw_only=True)
class _State:
    """
    What a person knows.

    Attributes:
        table: What was listed last, with the numbers that may be typed.

        told: What has been told of since, too.

        talk: The conversation with one rank, if there is one.
    """

    table: Listing
    told: Listing
    talk: Talk | None = None


@attrs.frozen(kw_only=True)
class _Desk:
    """
    Where a person sits; see :func:`run_shell`.
    """

    client: DebugClient
    ask: Callable[[str], str]
    show: Callable[[str], object]
    wait_s: float


class _QuitError(Exception):
    """
    The person wants to leave.
    """


def run_shell(
    client: DebugClient,
    *,
    ask: Callable[[str], str] | None = None,
    show: Callable[[str], object] = print,
    wait_s: float = 5.0,
) -> None:
    """
    Obey lines until one says quit, or there are no more.

    Args:
        client: Who asks the ranks.

        ask: Shows a prompt and returns a line; raises `EOFError` at the end.
            By default the terminal, or lines from a pipe.

        show: Shows some text.

        wait_s: How long to wait for ranks that run, in seconds.
    """
    listing = client.list()
    show(f"{_shown(listing)}\nfor help, type help")
    desk = _Desk(client=client, ask=ask or _ask, show=show, wait_s=wait_s)
    state: _State | None = _State(table=listing, told=listing)
    while state is not None:
        state = _next(desk, state)
    with suppress(DistdebugError, OSError):
        if text := held_text(client.list()):
            show(text)


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        return input()

    try:
        return input(prompt)
    except EOFError:
        sys.stdout.write("\n")  # which Ctrl-D leaves out
        raise


def _next(desk: _Desk, state: _State) -> _State | None:
    try:
        line = desk.ask(_prompt(state))
    except (KeyboardInterrupt, UnicodeDecodeError):
        desk.show("")
        return state
    except EOFError:
        return attrs.evolve(state, talk=None) if state.talk else None

    try:
        return _obey(desk, state, line)
    except _QuitError:
        return None
    except KeyboardInterrupt:
        desk.show("\nnot waiting any more; no rank was interrupted")
        talk = state.talk and attrs.evolve(state.talk, is_running=True)
        return attrs.evolve(state, talk=talk)
    except (DistdebugError, OSError) as exc:
        lines = [str(exc), *getattr(exc, "__notes__", ())]
        desk.show("\n".join(clean(text, limit=1000) for text in lines))
        return state


def _prompt(state: _State) -> str:
    if state.talk is None:
        return _PROMPT

    groups = {p.group for p in state.told.processes}
    return prompt_of(state.talk, with_group=len(groups) > 1)


def _obey(desk: _Desk, state: _State, line: str) -> _State:
    if state.talk is not None:
        command = meant_for_all(line)
        if command is None:
            talk = _talk(desk, state.talk, line)
            return attrs.evolve(state, talk=talk)
    elif not line.strip():
        return _news(desk, state)
    else:
        command = parse_command(line)
    return _do(desk, state, command)


def _news(desk: _Desk, state: _State) -> _State:
    listing = desk.client.list()
    if text := news_text(state.told, listing):
        desk.show(text)
    return attrs.evolve(state, told=listing)


def _do(desk: _Desk, state: _State, command: Command) -> _State:
    if command.word == "quit":
        raise _QuitError
    if command.word == "list":
        listing = desk.client.list()
        desk.show(_shown(listing, command))
        return attrs.evolve(state, table=listing, told=listing)
    if command.word == "attach":
        talk, text = greeting(_attach(desk.client, state, command))
        desk.show(text)
        return attrs.evolve(state, talk=talk)
    if command.word == "help":
        desk.show(help_text(command.line))
    elif command.word == "detach":
        desk.show("not attached to a rank")
    else:
        seen = state.table
        text = str(obey(desk.client, command, wait_s=desk.wait_s, seen=seen))
        desk.show(first_lines(text) if sys.stdout.isatty() else text)
    return state


def _shown(listing: Listing, command: Command | None = None) -> str:
    chosen = None
    if command is not None and command.ranks is not None:
        chosen = choose(listing, command.ranks, command.group)
    columns = shutil.get_terminal_size().columns
    width = columns if sys.stdout.isatty() else None
    return listing_text(listing, chosen=chosen, width=width)


def _attach(client: DebugClient, state: _State, command: Command) -> Talk:
    if command.number is None:
        attached = client.attach(command.rank, group=command.group)
    else:
        # Numbers are those that the person saw.
        seen = choose_session(state.table, number=command.number)
        attached = Attached(client.ranks, *seen)
        if attached.last().state == "ended":
            who = ranks_told([attached.process.rank])
            msg = f"#{command.number} was {who}, which went on since"
            raise DebuggerError(msg, remedy="see: list")
    return Talk(attached=attached)


def _talk(desk: _Desk, talk: Talk, line: str) -> Talk | None:
    if line.strip() == "detach":
        return None

    try:
        now, output = say(talk, line, desk.wait_s)
    except DebuggerError:
        again, text = follow(desk.client, talk, "detach")
        if text.endswith("has ended"):
            desk.show(text)
            return again
        raise
    if output.text:
        desk.show(output.text)
    if line.strip() in {"h", "help", "?"}:
        desk.show(_MORE_HELP)
    if output.state != "ended":
        return now

    again, text = follow(desk.client, talk, line)
    desk.show(text)
    return again
