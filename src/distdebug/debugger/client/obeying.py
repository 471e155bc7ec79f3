"""
What happens on a command that was understood?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from ..._text import clean
from ...ranks import RankSelection, ranks_text
from .answers import Answers
from .choosing import choose, choose_session
from .commands import Command
from .connecting import DebugClient
from .model import Listing


__all__ = ["obey"]


_TO_HELD = frozenset({"continue", "extend"})

# What one thread obeys, where ranks are asked otherwise.
_OF_THREAD = {
    "cast": "{line}",
    "eval": "p {line}",
    "continue": "detach",
    "stack": "where",
    "abort": "abort",
}


def obey(
    client: DebugClient,
    command: Command,
    *,
    wait_s: float = 5.0,
    seen: Listing | None = None,
) -> Answers | Listing:
    """
    Do what a command says, if it concerns ranks.

    Args:
        client: Who asks them.

        command: What to do.

        wait_s: How long to wait for ranks that run, in seconds.

        seen: The listing that numbers of threads are of; a new one if it is
            left out.

    Returns:
        What they answered.

    Raises:
        DebuggerError: Nobody is selected.
    """
    if command.number is not None:
        return _obey_one(client, command, wait_s, seen or client.list())

    ranks, group = command.ranks, command.group
    does: dict[str, Callable[[], Answers | Listing]] = {
        "list": lambda: _listing(client, command),
        "cast": lambda: client.cast(
            ranks, command.line, group=group, wait_s=wait_s
        ),
        "continue": lambda: client.cast(ranks, "detach", group=group),
        "eval": lambda: client.eval(
            ranks, command.line, group=group, wait_s=wait_s, up=command.up
        ),
        "stack": lambda: client.stack(
            ranks, group=group, all_threads=command.is_full
        ),
        "interrupt": lambda: client.interrupt(ranks, group=group),
        "resume": lambda: client.resume(ranks, group=group),
        "extend": lambda: client.extend(
            (command.minutes or 0) * 60, ranks, group=group
        ),
        "abort": lambda: client.abort(ranks or "ranks(:)", group=group),
    }
    answers = does[command.word]()
    if isinstance(answers, Listing):
        return answers
    if ranks is None:
        return _unasked(answers) if command.word in _TO_HELD else answers

    return attrs.evolve(
        answers, notes=(*answers.notes, *_absent(ranks, answers))
    )


def _obey_one(
    client: DebugClient, command: Command, wait_s: float, seen: Listing
) -> Answers:
    """
    Let one thread obey.
    """
    held = choose_session(seen, number=command.number)
    if command.word == "extend":
        seconds = (command.minutes or 0) * 60
        request = {"op": "extend", "seconds": seconds}
    else:
        line = _OF_THREAD[command.word].format(line=command.line)
        request = {"op": "command", "line": line, "wait": wait_s}
    return client.ranks.ask_sessions([held], request)


def _unasked(answers: Answers) -> Answers:
    """
    Blame nobody for not being stopped who was not named.
    """
    notes = answers.notes
    if answers.not_stopped and not answers.outputs:
        notes = (*notes, "nobody is stopped")
    return attrs.evolve(answers, not_stopped=(), notes=notes)


def _absent(ranks: RankSelection, answers: Answers) -> Iterable[str]:
    """
    Which ranks were named, but are not there?
    """
    named = {r.start for r in ranks.by_rank if len(r) == 1}
    there = {o.rank for o in answers.outputs}
    there.update(p.rank for p in answers.not_stopped)
    # Who does not answer, or is told of in a note, may be one of them.
    is_certain = not (answers.silent or answers.lost or answers.notes)
    if (absent := named - there) and is_certain:
        yield clean(f"not there: {ranks_text(absent)}")


def _listing(client: DebugClient, command: Command) -> Listing:
    listing = client.list()
    if command.ranks is None:
        return listing

    chosen = choose(listing, command.ranks, command.group)
    return attrs.evolve(listing, processes=chosen)
