"""
Which boxes and arrows does the picture have?

A box is either some ranks or a call.  Ranks point to the call that they wait
in, and a call points to the ranks that hold it up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ....diagnosis.seen import seen_by
from ....findings import Cause, Diagnosis, Finding
from ....flight_recorder.analysis.report import FlightReport
from ....flight_recorder.columns import Dumps
from ....stacks.jobs import is_same_job
from ....waits import Wait


__all__ = ["Box", "Graph", "graph_of"]

# All are in it, so that nobody is to blame more than the others; or these are
# the ranks that noticed it.
_NOBODYS = {
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    Cause.COLLECTIVE_TIMEOUT,
    Cause.UNKNOWN,
}


# The call that a rank waits in, those that it holds up, and its role.
_Key = tuple[int | None, tuple[int, ...], tuple[bool, int | None, bool]]


@attrs.frozen(kw_only=True)
class Box:
    """
    Some ranks, or a call (or several alike).

    Attributes:
        ranks: The ranks; of a call, those that wait in it.

        role: ``"culprit"``, ``"suspect"`` (of another finding), ``"victim"``,
            or ``"lost"`` (left no dump, not at fault); ``"call"`` for calls.

        waits: The calls; empty for ranks.

        is_lost: Whether these ranks left no dump.
    """

    ranks: tuple[int, ...]
    role: str
    waits: tuple[Wait, ...] = ()
    is_lost: bool = False


@attrs.frozen(kw_only=True)
class Graph:
    """
    Boxes, and which points to which.

    Attributes:
        boxes: The boxes.

        arrows: Pairs of boxes (as index): who waits, for whom or what.

        left_out: How many calls are not shown.
    """

    boxes: tuple[Box, ...]
    arrows: frozenset[tuple[int, int]]
    left_out: int = 0


def graph_of(diagnosis: Diagnosis) -> Graph | None:
    """
    Who waits for whom, before anything is folded but ranks that do the same?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The graph; None if nobody waits.
    """
    if diagnosis.verdict.cause.is_fine:
        return None

    flight = seen_by(diagnosis).flight
    waits = flight.waits if flight else ()
    if not waits:
        return _without_dumps(diagnosis)

    homes = _homes(waits, flight.dumps if flight else None)
    homes |= _stuck_inside(diagnosis.verdict, waits)
    held = [_held_up_by(i, homes, waits, diagnosis) for i in range(len(waits))]
    # What is merely queued behind another call holds up nobody.
    first = sorted(set(homes.values()))
    new = {old: i for i, old in enumerate(first)}
    graph = _graph(
        [waits[i] for i in first],
        {rank: new[i] for rank, i in homes.items()},
        [held[i] for i in first],
        _Roles.of(diagnosis, flight),
    )
    return attrs.evolve(graph, left_out=len(waits) - len(first))


@attrs.frozen
class _Roles:
    """
    What each rank is, as the findings tell; of suspects, which finding (as index).
    """

    culprits: frozenset[int]
    suspects: Mapping[int, int]
    lost: frozenset[int]

    @classmethod
    def of(cls, diagnosis: Diagnosis, flight: FlightReport | None) -> _Roles:
        verdict, *others = diagnosis.findings or (diagnosis.verdict,)
        stacks = seen_by(diagnosis).stacks
        blamed = [
            f for f in others if _blames(f) and is_same_job(f, verdict, stacks)
        ]
        told = {m.rank for m in diagnosis.missing if m.what == "dump"}
        seen = set(flight.dumps.ranks) if flight else set()
        return cls(
            frozenset(verdict.ranks if _blames(verdict) else ()),
            # The first that names a rank counts.
            {r: i for i, f in reversed([*enumerate(blamed)]) for r in f.ranks},
            frozenset(r for r in told - seen if r is not None),
        )

    def box(self, ranks: Sequence[int]) -> Box:
        """
        A box of ranks that have the same role.
        """
        rank, is_lost = ranks[0], ranks[0] in self.lost
        role = (
            "culprit"
            if rank in self.culprits
            else "suspect"
            if rank in self.suspects
            else "lost"
            if is_lost
            else "victim"
        )
        return Box(ranks=tuple(sorted(ranks)), role=role, is_lost=is_lost)

    def key(self, rank: int) -> tuple[bool, int | None, bool]:
        """
        Ranks whose keys differ are never in one box.
        """
        return (
            rank in self.culprits,
            self.suspects.get(rank),
            rank in self.lost,
        )


def _blames(finding: Finding) -> bool:
    """
    Whether its ranks are more to blame than those around them.
    """
    members = finding.group.ranks if finding.group else ()
    return finding.cause not in _NOBODYS or (
        finding.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
        and not set(members) <= set(finding.ranks)
    )


def _homes(waits: Sequence[Wait], dumps: Dumps | None) -> dict[int, int]:
    """
    In which call (as index) is each rank stuck: the first that it entered?
    """
    inside: dict[int, list[int]] = defaultdict(list)
    for i, wait in enumerate(waits):
        for rank in wait.waiting:
            inside[rank].append(i)

    return {
        rank: calls[0]
        if len(calls) == 1
        else min(calls, key=lambda i: _entered_ns(rank, waits[i], dumps))
        for rank, calls in inside.items()
    }


def _stuck_inside(verdict: Finding, waits: Sequence[Wait]) -> dict[int, int]:
    """
    Whom the verdict sees inside a call waits there, whatever else it entered.
    """
    call, group = verdict.collective, verdict.group
    if verdict.cause is not Cause.COLLECTIVE_STUCK_IN_FLIGHT:
        return {}

    return {
        rank: i
        for i, wait in enumerate(waits)
        if call and group and (wait.desc, wait.seq) == (group.desc, call.seq)
        for rank in set(wait.waiting).intersection(verdict.ranks)
    }


def _entered_ns(rank: int, wait: Wait, dumps: Dumps | None) -> tuple[int, int]:
    """
    When a rank entered a call, by its own clock.
    """
    dump = dumps.by_rank.get(rank) if dumps else None
    if dumps is None or dump is None:
        return wait.since_ns, 0

    e = dump.entries
    codes = [i for i, g in enumerate(dumps.groups) if g[0] == wait.group]
    seq = e.p2p_seq if wait.p2p else e.seq
    rows = np.flatnonzero(
        np.isin(e.group, codes) & (seq == wait.seq) & (e.is_p2p == wait.p2p)
    )
    if not len(rows):
        return wait.since_ns, 0

    return int(e.created_ns[rows[0]]), int(e.record_id[rows[0]])


def _held_up_by(
    index: int,
    homes: Mapping[int, int],
    waits: Sequence[Wait],
    diagnosis: Diagnosis,
) -> tuple[int, ...]:
    """
    Which ranks hold up a call: who is not in it, or not rightly?
    """
    wait = waits[index]
    if wait.awaited:
        return wait.awaited

    for finding in (diagnosis.verdict, *diagnosis.findings):
        if _is_about(finding, wait):
            found = set(wait.waiting).intersection(finding.ranks)
            if found and len(found) < len(wait.waiting):
                return tuple(sorted(found))

    return tuple(r for r in wait.waiting if homes[r] != index)


def _is_about(finding: Finding, wait: Wait) -> bool:
    return (
        finding.group is not None
        and finding.group.name == wait.group
        and finding.cause not in _NOBODYS
        and finding.cause
        not in {Cause.GROUP_ORDER_DEADLOCK, Cause.P2P_DEADLOCK}
    )


def _graph(
    waits: Sequence[Wait],
    homes: Mapping[int, int],
    held: Sequence[tuple[int, ...]],
    roles: _Roles,
) -> Graph:
    """
    Put ranks with the same waits into one box, and draw the arrows.
    """
    holding: dict[int, list[int]] = defaultdict(list)
    for i, ranks in enumerate(held):
        for rank in ranks:
            holding[rank].append(i)
    alike: dict[_Key, list[int]] = defaultdict(list)
    for rank in sorted({*homes, *holding}):
        home = homes.get(rank)
        at = None if home in holding[rank] else home
        alike[at, tuple(holding[rank]), roles.key(rank)].append(rank)

    boxes = [Box(ranks=w.waiting, role="call", waits=(w,)) for w in waits]
    arrows = set()
    for (at, calls, _), same in alike.items():
        if at is not None:
            arrows.add((len(boxes), at))
        arrows |= {(call, len(boxes)) for call in calls}
        boxes.append(roles.box(same))

    return Graph(boxes=tuple(boxes), arrows=frozenset(arrows))


def _without_dumps(diagnosis: Diagnosis) -> Graph | None:
    """
    Draw what the findings alone tell: victims wait for culprits.
    """
    verdict = diagnosis.verdict
    culprits = set(verdict.ranks)
    group = verdict.group
    others = diagnosis.victims or (group.ranks if group else ())
    victims = tuple(sorted(set(others) - culprits))
    if not culprits or not victims or not _blames(verdict):
        return None

    call = verdict.collective
    wait = Wait(
        group=group.name if group else "",
        desc=group.desc if group else "",
        op=call.op if call else "",
        seq=call.seq if call else 0,
        p2p=bool(call and call.p2p),
        waiting=victims,
        awaited=tuple(sorted(culprits)),
    )
    roles = _Roles.of(diagnosis, None)
    homes = dict.fromkeys(victims, 0)
    graph = _graph([wait], homes, [wait.awaited], roles)
    # Who is late is so in many calls, none of which is stuck.
    is_call = call or (group and verdict.cause is not Cause.STRAGGLER)
    return graph if is_call else _directly(graph)


def _directly(graph: Graph) -> Graph:
    """
    The same where no call is known: ranks point to ranks.
    """
    sources = [a - 1 for a, b in graph.arrows if b == 0]
    targets = [b - 1 for a, b in graph.arrows if a == 0]
    arrows = frozenset((a, b) for a in sources for b in targets)
    return Graph(boxes=graph.boxes[1:], arrows=arrows)
