"""
What is written into the boxes, and what does the picture say in sentences?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...._text import clean
from ....findings import Cause, Finding
from ....ranks import ranks_text
from ....waits import Wait
from .boxes import Box, Graph


__all__ = [
    "box_name",
    "box_note",
    "few_ranks",
    "many_ranks",
    "sentences",
    "shortened",
]

_LONGEST_RANKS = 48
_MOST_SENTENCES = 12

# What is wrong with those at fault, where the call itself does not tell.
_FAULTS = {
    Cause.RANK_NOT_ARRIVED: "did not arrive",
    Cause.RANK_CRASHED: "crashed",
    Cause.RANK_NOT_STARTED: "GPU has not started it",
    Cause.RANK_BLOCKED_IN_LAUNCH: "stuck inside the launch",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "stuck inside the call",
    Cause.TYPE_MISMATCH: "called something else",
    Cause.SIZE_MISMATCH: "passed another size",
    Cause.DTYPE_MISMATCH: "passed another dtype",
    Cause.SKIPPED_COLLECTIVE: "skipped a call",
    Cause.EXTRA_COLLECTIVE: "made one call too many",
    Cause.GROUP_ORDER_DEADLOCK: "left the order of calls",
    Cause.P2P_DEADLOCK: "in a circle of waits",
    Cause.STRAGGLER: "late again and again",
}


def box_name(box: Box) -> str:
    """
    What is the first line of a box?

    Args:
        box: Any box.
    """
    if not box.waits:
        return ranks_text(box.ranks)

    ops = sorted({wait.op for wait in box.waits})
    seqs = sorted({wait.seq for wait in box.waits})
    op = ops[0] if len(ops) == 1 else ops[0].partition(" ")[0]
    if not seqs[-1]:
        return clean(op) or "calls"

    span = f"#{seqs[0]}" + (f" to #{seqs[-1]}" if len(seqs) > 1 else "")
    return f"{clean(op)} {span}".strip()


def box_note(box: Box, findings: Sequence[Finding]) -> str:
    """
    What is the second line of a box?

    Args:
        box: Any box.

        findings: Those of the diagnosis, the verdict first.
    """
    if box.waits:
        return _groups(box.waits)
    if box.role in {"culprit", "suspect"}:
        return _fault(box, findings)
    if box.is_lost:
        return "left no dump"

    count = len(box.ranks)
    return f"{count:,} ranks wait" if count > 1 else "waits"


def _fault(box: Box, findings: Sequence[Finding]) -> str:
    if box.is_lost:
        return "left no dump"

    first = {r: f.cause for f in reversed(findings) for r in f.ranks}
    causes = {first[r] for r in box.ranks if r in first}
    if len(causes) != 1:
        return "several findings" if causes else "at fault"

    (cause,) = causes
    return _FAULTS.get(cause, str(cause).replace("_", " "))


def _groups(waits: Sequence[Wait]) -> str:
    names = sorted({_group(wait) for wait in waits})
    if len(waits) == 1:
        return _pair(waits[0]) or (f"group {names[0]}" if names[0] else "")

    what = "transfers" if waits[0].p2p else "groups"
    name = names[0] if len(names) == 1 else ""
    return f"{len(waits):,} {what} {f'of {name}' if name else ''}".strip()


def _pair(wait: Wait) -> str:
    """
    Who sends to whom in a transfer, if only one of them is in it.
    """
    if not wait.p2p or len(wait.waiting) != 1 or len(wait.awaited) != 1:
        return ""

    one, other = wait.waiting[0], wait.awaited[0]
    a, b = (one, other) if wait.op.startswith("send") else (other, one)
    return f"rank {a} to rank {b}"


def _group(wait: Wait) -> str:
    return clean(
        wait.desc if wait.desc not in {"", "undefined"} else wait.group
    )


def many_ranks(ranks: Sequence[int]) -> str:
    """
    How are ranks named where a thousand of them must not fill the page?

    Args:
        ranks: Any ranks, ascending.

    Returns:
        Such as ``"ranks 0-3,8"``, or ``"889 ranks (0-3,5-11,…)"``.
    """
    text = ranks_text(ranks)
    if len(text) <= _LONGEST_RANKS:
        return text

    first = text[len("ranks ") : _LONGEST_RANKS].rpartition(",")[0]
    return f"{len(ranks):,} ranks ({first},…)"


def few_ranks(text: str, longest: int) -> str:
    """
    How are ranks named where there is room for a few?

    Args:
        text: All of them, such as ``"ranks 0-3,8"``.

        longest: How many characters it may have.

    Returns:
        The first ones; no number is cut in two, for that would be another.
    """
    first = text[: longest - 1].rpartition(",")[0]
    return (
        f"{first},…"
        if first and len(text) > longest
        else shortened(text, longest)
    )


def shortened(text: str, longest: int) -> str:
    """
    What is left of a text that is too long?

    The number of a call, at its end, stays.

    Args:
        text: Any text.

        longest: How many characters it may have.
    """
    if len(text) <= longest:
        return text

    head, mark, number = text.rpartition(" #")
    end = f"…{mark}{number}" if number.isdecimal() else "…"
    return f"{head or text}"[: max(longest - len(end), 0)] + end


def sentences(graph: Graph, circles: Sequence[Sequence[int]]) -> list[str]:
    """
    What does the picture show, for those who do not see it?

    Args:
        graph: What is drawn.

        circles: The boxes that wait for each other.
    """
    told = [*_circles(graph, circles), *_waits(graph)]
    more = len(told) - _MOST_SENTENCES
    if more > 0:
        told = [*told[:_MOST_SENTENCES], f"More waits: {more}."]
    if graph.left_out:
        told.append(
            f"Calls queued behind these, or left out: {graph.left_out:,}."
        )
    return told


def _circles(graph: Graph, circles: Sequence[Sequence[int]]) -> Iterable[str]:
    for circle in circles:
        ranks = sorted(
            {
                r
                for i in circle
                if not graph.boxes[i].waits
                for r in graph.boxes[i].ranks
            }
        )
        text = many_ranks(ranks)
        yield f"{text[0].upper()}{text[1:]} wait for each other: a deadlock."


def _waits(graph: Graph) -> Iterable[str]:
    boxes = graph.boxes
    for i, box in enumerate(boxes):
        before = [boxes[a] for a, b in graph.arrows if b == i]
        after = [boxes[b] for a, b in graph.arrows if a == i]
        # Who holds up a call is told with the call.
        inside = _ranks(b for b in before if box.waits or not b.waits)
        if inside:
            yield _sentence(
                box, inside, _ranks(after) if box.waits else box.ranks
            )


def _sentence(box: Box, inside: Sequence[int], holding: Sequence[int]) -> str:
    who = many_ranks(inside)
    verb = "waits" if len(inside) == 1 else "wait"
    note = f" ({note})" if (note := box_note(box, ())) else ""
    where = f" in {box_name(box)}{note}" if box.waits else ""
    whom = (
        f" for {many_ranks(holding)}"
        if holding
        else ", which nobody is known to hold up"
    )
    return f"{who[0].upper()}{who[1:]} {verb}{where}{whom}."


def _ranks(boxes: Iterable[Box]) -> list[int]:
    return sorted({rank for box in boxes for rank in box.ranks})
