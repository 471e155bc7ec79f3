"""
What if everybody waits?

In the same call, somebody may be missing, or the network or a GPU is to blame.
In several calls, ranks have parted; who is odd is looked at first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from ..findings import Cause, Finding
from ..ranks import fold_ranks
from .alike import group_alike
from .model import ProcessStacks
from .operation import is_message, is_receiving, operation_of
from .view import ProcessView
from .wording import agree, finding, names_of, say


__all__ = ["judge_common_wait"]

_MOST_PLACES = 4
_MOST_RANKS = 1 << 20

Views = Sequence[ProcessView]


def judge_common_wait(waiting: Views) -> Iterable[Finding]:
    """
    Everybody waits: in the same call, or in several.
    """
    absent = _absent([v.process for v in waiting])
    if all(map(is_receiving, waiting)) and len(waiting) > 1:
        summary = f"{say(waiting)}: all wait to receive, and nobody sends"
        changes = {
            "cause": Cause.P2P_DEADLOCK,
            "summary": summary,
            "confidence": "possible",
            "remedy": "compare the order of sends and receives on these "
            "ranks; with NCCL, dumps show which were not matched",
        }
        yield finding(waiting, changes=changes)
        return

    # A rank that receives may wait for a stage that is stuck itself.
    groups = _by_place([v for v in waiting if not is_receiving(v)] or waiting)
    apart = [g for g in map(_by_place, _peers(waiting)) if len(g) > 1]
    if apart:
        yield _mismatch(apart[0])
        return

    for group in groups:
        tail = f"; {absent}" if absent else _all_there(group, waiting)
        yield finding(group, tail=tail, changes=_worded(group, tail))


def _worded(group: Views, tail: str) -> dict[str, object]:
    op = operation_of(group[0])
    if group[0].cause is not Cause.COLLECTIVE_WAIT or not op:
        return {}
    processes = [v.process for v in group]
    where = group[0].location
    place = f" in {where.brief}" if where else ""
    doing = agree(processes, f"is waiting in {op}{place}")
    return {"summary": f"{names_of(processes)} {doing}{tail}"}


def _all_there(group: Views, waiting: Views) -> str:
    sizes = {v.process.world_size for v in waiting}
    if sizes == {len(group)} and len(group) > 1:
        return "; nobody is missing"
    return ""


def _mismatch(groups: Sequence[Views]) -> Finding:
    """
    Say that peers are in different calls, which may or may not be wrong.
    """
    ordered = sorted(groups, key=len)
    total = sum(map(len, ordered))
    is_odd = 2 * len(ordered[0]) < total
    odd = ordered[0] if is_odd else [v for group in ordered for v in group]
    said = []
    for group in ordered[::-1][:_MOST_PLACES]:
        processes = [v.process for v in group]
        where = group[0].location
        op = operation_of(group[0]) or "another collective"
        place = f" in {where.brief}" if where else ""
        doing = agree(processes, f"is waiting in {op}")
        said.append(f"{names_of(processes)} {doing}{place}")
    ops = [operation_of(group[0]) for group in ordered]
    what = "calls" if any(map(is_message, ops)) else "collectives"
    changes = {
        "summary": f"ranks are in different {what}: {'; '.join(said)}",
        "confidence": "possible",
        "location": ordered[0][0].location,
    }
    return finding(odd, changes=changes)


def _by_place(views: Views) -> Sequence[Views]:
    return group_alike(views, lambda v: (operation_of(v), v.location))


def _peers(views: Views) -> Sequence[Views]:
    """
    Those that should be in the same call: of stages of a pipeline, each alone.
    """

    def stage(view: ProcessView) -> Hashable:
        return tuple(
            (name, place)
            for name, place in view.process.coordinates
            if name not in {"tp", "sp", "ep"}
        )

    return group_alike(views, stage)


def _absent(processes: Sequence[ProcessStacks]) -> str:
    """
    Say which ranks were not seen, if that is known.
    """
    size = max((p.world_size or 0 for p in processes), default=0)
    seen = {p.rank for p in processes if p.rank is not None}
    if not seen or size > _MOST_RANKS or len(seen) >= size:
        return ""

    absent = [rank for rank in range(size) if rank not in seen]
    word = "rank" if len(absent) == 1 else "ranks"
    verb = "was" if len(absent) == 1 else "were"
    return f"{word} {fold_ranks(absent)} of {size} {verb} not seen"
