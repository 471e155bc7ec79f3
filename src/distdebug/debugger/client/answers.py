"""
What did the ranks answer?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ..._showing import Block, Lines, Shown
from ..._text import clean, list_text
from .model import (
    LostNode,
    Process,
    Silent,
    loss_lines,
    ranks_shown,
    ranks_told,
    silence_lines,
)


__all__ = ["Answers", "Output", "merge_outputs"]

_MOST_LINES = 10_000


@attrs.frozen(kw_only=True)
class Output:
    """
    What one rank answered.

    Attributes:
        group: Its group.

        rank: Its rank; None where no launcher tells.

        name: What else tells it from others of this rank; mostly empty.

        text: What it printed, or why it could not.

        state: ``"stopped"``, ``"running"``, ``"ended"`` if it goes on without
            us, or ``""`` for a question that stops nobody.

        is_error: Whether it could not do what was asked.

        key: Which thread; ``""`` for the whole process.
    """

    group: str
    rank: int | None
    name: str = ""
    text: str = ""
    state: str = ""
    is_error: bool = False
    key: str = ""

    @property
    def shown(self) -> str:
        """
        The text, and what cannot be told from it.
        """
        note = {"running": "(still running)", "ended": "(goes on)"}
        parts = [self.text.rstrip("\n")]
        if not self.is_error:
            parts.append(note.get(self.state, ""))
        text = "\n".join(part for part in parts if part)
        return f"*** {text}" if self.is_error else text


@attrs.frozen(kw_only=True)
class Answers(Shown):
    """
    What many ranks answered to one question.

    Attributes:
        outputs: What each said, by group and rank.

        not_stopped: Ranks that were selected, but are not stopped.

        silent: The processes that did not answer in time.

        lost: The nodes that could not be asked.

        notes: What else there is to say.
    """

    outputs: tuple[Output, ...] = ()
    not_stopped: tuple[Process, ...] = ()
    silent: tuple[Silent, ...] = ()
    lost: tuple[LostNode, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return attrs.asdict(self)

    def _blocks_(self) -> Iterable[Block]:
        groups = {o.group for o in self.outputs}
        several = len(groups | {p.group for p in self.not_stopped}) > 1
        parts = [
            _merged(who, text)
            for who, text in merge_outputs(self.outputs, groups=several)
        ]
        if self.not_stopped:
            parts.append(_not_stopped(self.not_stopped, groups=several))
            parts.append(_how_to_stop(self.not_stopped[0], groups=several))
        lines = [
            *parts,
            *silence_lines(self.silent),
            *loss_lines(self.lost),
            *self.notes,
        ]
        yield Lines("\n".join(lines).split("\n"), most=_MOST_LINES)


def _not_stopped(processes: Iterable[Process], *, groups: bool) -> str:
    """
    Most of them wait at the same line for the others.
    """
    by_place: dict[tuple[str, str], list[int | None]] = {}
    for p in processes:
        group = f"{p.group} " if groups else ""
        place = clean(f"at {p.file}:{p.line} in {p.function}")
        by_place.setdefault((group, place), []).append(p.rank)
    where = [
        f"{group}{ranks_told(ranks)} ({place})"
        for (group, place), ranks in by_place.items()
    ]
    return f"selected but not stopped: {list_text(where, most=8)}"


def _how_to_stop(process: Process, *, groups: bool) -> str:
    group = f"{process.group} " if groups else ""
    rank = ":" if process.rank is None else process.rank
    return f"to stop one that runs: interrupt {group}ranks({rank})"


def merge_outputs(
    outputs: Iterable[Output], *, groups: bool = False
) -> tuple[tuple[str, str], ...]:
    """
    Who said the same?

    Args:
        outputs: What each rank said.

        groups: Whether to name the group of each rank.

    Returns:
        Who, as folded ranks, and what they said.  What few said comes first,
        because that is the odd one.
    """
    same: dict[str, list[Output]] = {}
    for output in outputs:
        same.setdefault(output.shown, []).append(output)
    return tuple(
        (_who(group, groups=groups), text)
        for text, group in sorted(same.items(), key=_oddness)
    )


def _oddness(item: tuple[str, list[Output]]) -> tuple[int, int]:
    _, outputs = item
    rank = outputs[0].rank
    return len(outputs), -1 if rank is None else rank


def _who(outputs: Iterable[Output], *, groups: bool) -> str:
    plain: dict[str, list[int | None]] = {}
    for output in outputs:
        name = output.name and f" {output.name}"
        group = f"{output.group} " if groups else ""
        plain.setdefault(f"{group}%s{name}", []).append(output.rank)
    return ", ".join(
        name % ranks_shown(ranks) for name, ranks in plain.items()
    )


def _merged(who: str, text: str) -> str:
    if "\n" not in text:
        return f"[{who}] {text}".rstrip()

    lines = "\n".join(f"  {line}" for line in text.split("\n"))
    return f"[{who}]\n{lines}"
