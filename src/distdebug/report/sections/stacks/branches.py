"""
Which branches of a tree does a page show?

The ones of the culprits, and the largest.  Of the others it is told how many
there are, so that a tree of any size and depth makes a page that opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import attrs

from ...._text import clean
from ....stacks.merge import StackTree
from .cuts import Cut, choose_cuts
from .ends import notes_on
from .lines import Run, line_of, runs_of
from .who import who_text


__all__ = ["Branch", "Picture", "cut_tree"]

# A tree of so few branches is open as a whole.
_MOST_OPEN = 8
_MOST_WHO = 60
_MOST_RANKS = 16
_MOST_WHOLE = 1_000


@attrs.frozen(kw_only=True)
class Branch:
    """
    Frames that nobody parts from, and what comes below them.

    Attributes:
        number: Its position among all that are shown.

        who: The processes that took it, in few words.

        whole: The same in more words, if they were too many.

        count: How many they are.

        role: What they do in their job, if they are no ranks, or ``""``.

        runs: Its frames.

        leads: Where it leads to, for those who see it folded.

        here: Who stays at its end while others go on, or ``""``.

        ranks: Who is at its end, if they are few.

        notes: What those at its end do.

        is_culprit: Whether the verdict blames all of them.

        culprits: Which of them it blames, if not all, or ``""``.

        is_open: Whether it is unfolded at first.

        below: The branches that follow.

        rest: Who takes branches that are not shown, or ``""``.
    """

    number: int
    who: str
    whole: str
    count: int
    role: str
    runs: tuple[Run, ...]
    leads: str
    here: str
    ranks: tuple[int, ...]
    notes: tuple[str, ...]
    is_culprit: bool
    culprits: str
    is_open: bool
    below: tuple[Branch, ...]
    rest: str


@attrs.frozen(kw_only=True)
class Picture:
    """
    What is shown of a tree.

    Attributes:
        branches: The outermost branches.

        rest: Who takes outermost branches that are not shown, or ``""``.

        branch_of: The number of the branch in which each process is; -1 if
            it is not shown.
    """

    branches: tuple[Branch, ...]
    rest: str
    branch_of: tuple[int, ...]


def cut_tree(tree: StackTree, culprits: AbstractSet[int]) -> Picture:
    """
    Which branches does a page show, and what stands in them?

    Args:
        tree: The merged stacks.

        culprits: Who is to blame, as positions in the tree's *processes*.

    Returns:
        At most some hundred branches; those of culprits first, then the
        largest.
    """
    cuts, roots, rest = choose_cuts(tree, culprits)
    notes = notes_on(tree, [cut.chain[-1] for cut in cuts], culprits)
    made: dict[int, Branch] = {}
    # What is below a branch was found after it.
    for number in range(len(cuts) - 1, -1, -1):
        cut = cuts[number]
        made[number] = _branch(
            tree,
            cut,
            number=number,
            below=tuple(made.pop(child) for child in cut.below),
            notes=tuple(notes.get(cut.chain[-1], ())),
            is_open=bool(cut.culprits)
            or not cut.depth
            or len(cuts) <= _MOST_OPEN,
        )
    return Picture(
        branches=tuple(made[number] for number in roots),
        rest=_rest(tree, rest),
        branch_of=_branch_of(tree, cuts),
    )


def _branch_of(tree: StackTree, cuts: Sequence[Cut]) -> tuple[int, ...]:
    found = [-1] * len(tree.processes)
    for number, cut in enumerate(cuts):
        for node in cut.rest:
            for member in tree.members[node]:
                found[member] = number
        for member in tree.ends[cut.chain[-1]]:
            found[member] = number
    return tuple(found)


def _branch(
    tree: StackTree, cut: Cut, *, below: tuple[Branch, ...], **values: Any
) -> Branch:
    members = tree.members[cut.chain[0]]
    ends = tree.ends[cut.chain[-1]]
    goes_on = bool(below or cut.rest)
    is_culprit = len(cut.culprits) == len(members)
    whole = who_text(tree, members, limit=_MOST_WHOLE)
    who = clean(whole, limit=_MOST_WHO)
    return Branch(
        who=who,
        whole="" if who == whole else whole,
        count=len(members),
        role=_role(tree, members),
        runs=runs_of(tree, cut.chain),
        leads=_leads(tree, cut),
        here=who_text(tree, ends) if ends and goes_on else "",
        ranks=_ranks(tree, ends),
        is_culprit=is_culprit,
        culprits="" if is_culprit else who_text(tree, cut.culprits),
        below=below,
        rest=_rest(tree, cut.rest),
        **values,
    )


def _leads(tree: StackTree, cut: Cut) -> str:
    """
    The innermost line of the user in a branch, and its innermost line.
    """
    own = next((n for n in reversed(cut.chain) if tree.own[n]), None)
    nodes = dict.fromkeys(
        (cut.chain[-1] if own is None else own, cut.chain[-1])
    )
    lines = [line_of(tree.frames[node]) for node in nodes]
    said = " → ".join(
        f"{line.name} ({line.place})" if line.place else line.name
        for line in lines
    )
    places = len(cut.below) + len(cut.rest)
    if places:
        said += f" → {_count(places, 'branch')}"
    return clean(said)


def _role(tree: StackTree, members: Sequence[int]) -> str:
    roles = {tree.processes[member].role for member in members}
    role = roles.pop() if len(roles) == 1 else ""
    return "" if role == "rank" else clean(role)


def _ranks(tree: StackTree, ends: Sequence[int]) -> tuple[int, ...]:
    # In several jobs, a number does not tell who is meant.
    if len(ends) > _MOST_RANKS or tree.has_jobs:
        return ()

    found = {tree.processes[member].rank for member in ends}
    return tuple(sorted(rank for rank in found if rank is not None))


def _rest(tree: StackTree, heads: Sequence[int]) -> str:
    if not heads:
        return ""

    members = sorted({m for head in heads for m in tree.members[head]})
    number = _count(len(heads), "more branch")
    return f"{number}: {who_text(tree, members)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 'es'}"
