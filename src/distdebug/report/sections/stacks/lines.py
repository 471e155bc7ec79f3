"""
How are the frames of one branch written, however many there are?

Lines of the user stay as they are.  Those of libraries are folded, but for the
last one, and what a recursion repeats is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import attrs

from ...._text import clean, list_text
from ....stacks.merge import StackTree
from ....stacks.model import StackFrame


__all__ = ["Line", "Run", "line_of", "runs_of"]

_MOST_NAME = 160
_MOST_FILE = 300
# Runs at the beginning, and at the end, of one branch.
_MOST_RUNS = 40
_LONGEST_PERIOD = 8
_FEWEST_TURNS = 3
# So many lines of libraries take no more room than a word about them.
_MOST_PLAIN = 2


@attrs.frozen(kw_only=True)
class Line:
    """
    One frame.

    Attributes:
        name: The function.

        folder: Where its file is, with a slash at the end, or ``""``.

        place: The file, with the line if it is known.

        is_own: Whether it is a line of the user.
    """

    name: str
    folder: str
    place: str
    is_own: bool = False


@attrs.frozen(kw_only=True)
class Run:
    """
    Frames that follow each other and are shown alike.

    Attributes:
        lines: The frames, outermost first.

        is_folded: Whether only *label* is seen at first.

        label: What they are, in a few words.

        times: How often they follow each other.

        left_out: How many frames there are for which there is no room; such
            a run has no lines.
    """

    lines: tuple[Line, ...] = ()
    is_folded: bool = False
    label: str = ""
    times: int = 1
    left_out: int = 0


def line_of(frame: StackFrame, *, is_own: bool = False) -> Line:
    """
    How is a frame written?

    Args:
        frame: A frame, of any length.

        is_own: Whether it is a line of the user.
    """
    file = frame.filename.replace("\\", "/")
    folder, slash, name = file.rpartition("/")
    place = f"{name}:{frame.line}" if frame.line else name
    return Line(
        name=clean(frame.name, limit=_MOST_NAME) or "?",
        folder=clean(folder, limit=_MOST_FILE) + slash,
        place=clean(place, limit=_MOST_FILE),
        is_own=is_own,
    )


def runs_of(tree: StackTree, chain: Sequence[int]) -> tuple[Run, ...]:
    """
    How are the frames of one branch written?

    Args:
        tree: The merged stacks.

        chain: Nodes of it, each below the one before.

    Returns:
        All frames in few runs; if they do not fit into few, the first and the
        last ones.
    """
    runs = list(_runs(tree, chain))
    if len(runs) > 2 * _MOST_RUNS:
        middle = runs[_MOST_RUNS:-_MOST_RUNS]
        left_out = sum(len(run.lines) * run.times for run in middle)
        gap = Run(left_out=left_out)
        runs = [*runs[:_MOST_RUNS], gap, *runs[-_MOST_RUNS:]]
    return tuple(_joined(runs))


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """
    Join plain lines that follow each other.
    """
    for is_plain, group in groupby(runs, _is_plain):
        if is_plain:
            yield Run(lines=tuple(line for run in group for line in run.lines))
        else:
            yield from group


def _is_plain(run: Run) -> bool:
    return bool(run.lines) and not run.is_folded and run.times == 1


def _runs(tree: StackTree, chain: Sequence[int]) -> Iterator[Run]:
    foreign: list[int] = []
    for nodes, times in _turns([tree.frames[n] for n in chain], chain):
        (first, *_) = nodes
        if times == 1 and not tree.own[first]:
            foreign.append(first)
            continue

        yield from _foreign(tree, foreign)
        foreign = []
        lines = _lines(tree, nodes)
        is_own = any(line.is_own for line in lines)
        label = "" if times == 1 else _label(tree, nodes)
        yield Run(lines=lines, label=label, is_folded=not is_own, times=times)
    yield from _foreign(tree, foreign)


def _foreign(tree: StackTree, nodes: Sequence[int]) -> Iterator[Run]:
    if len(nodes) > _MOST_PLAIN:
        *folded, last = nodes
        yield Run(
            lines=_lines(tree, folded),
            label=_label(tree, folded),
            is_folded=True,
        )
        nodes = [last]
    if nodes:
        yield Run(lines=_lines(tree, nodes))


def _lines(tree: StackTree, nodes: Sequence[int]) -> tuple[Line, ...]:
    return tuple(
        line_of(tree.frames[node], is_own=tree.own[node]) for node in nodes
    )


def _label(tree: StackTree, nodes: Sequence[int]) -> str:
    packages = dict.fromkeys(_package(tree.frames[node]) for node in nodes)
    known = list_text((clean(p, limit=40) for p in packages if p), most=3)
    count = f"{len(nodes):,} frame{'' if len(nodes) == 1 else 's'}"
    return f"{count} of {known}" if known else count


def _package(frame: StackFrame) -> str:
    if frame.filename.startswith("<"):
        return "python"
    top = frame.filename.lstrip("/").partition("/")[0]
    return top.removesuffix(".py")


def _turns(
    frames: Sequence[StackFrame], nodes: Sequence[int]
) -> Iterator[tuple[Sequence[int], int]]:
    """
    Fold what follows itself several times, as in a recursion.
    """
    numbers: dict[StackFrame, int] = {}
    found = [numbers.setdefault(f, len(numbers)) for f in frames]
    start = 0
    while start < len(found):
        period, times = _turn(found, start)
        yield nodes[start : start + period], times
        start += period * times


def _turn(found: Sequence[int], start: int) -> tuple[int, int]:
    for period in range(1, _LONGEST_PERIOD + 1):
        end = start + period
        while end < len(found) and found[end] == found[end - period]:
            end += 1
        times = (end - start) // period
        if times >= _FEWEST_TURNS:
            return period, times
    return 1, 1
