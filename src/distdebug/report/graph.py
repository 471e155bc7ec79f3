"""
Who waits for whom, as a picture?

From waits to few boxes (`boxes`, `folding`), from boxes to places on paper
(`layout`), and from these to what the page shows (`section`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from .._text import clean
from ..diagnosis import seen_by
from ..findings import Cause, Diagnosis, Finding, GroupRef
from ..flight_recorder import Dumps, FlightReport
from ..ranks import ranks_text
from ..stacks import is_same_job
from ..waits import Wait, components
from .format import Section
from .graph_layout import HEIGHT, WIDTH, Layout, lay_out


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


# So many boxes are read one by one.
_FEW = 14
_MOST = 24
_ROUNDS = 12


def fold(graph: Graph, *, few: int = _FEW, most: int = _MOST) -> Graph:
    """
    Join what is alike, and leave out what matters least.

    Boxes are alike if they look the same and point to, and are pointed to by,
    boxes that are alike (the coarsest such partition, by refinement).

    Args:
        graph: All waits.

        few: So many boxes are left as they are.

        most: So many are shown at most.

    Returns:
        A graph of at most *most* boxes.
    """
    if len(graph.boxes) > few:
        graph = _joined(graph, _classes(graph))

    return _cut(graph, most)


def circles(graph: Graph) -> list[list[int]]:
    """
    Which boxes wait for each other?

    Args:
        graph: Any graph.

    Returns:
        Each circle in the order of its arrows, as far as it has one.
    """
    targets = _targets(graph)
    return [
        _walk(part, targets)
        for part in components(targets)
        if len(part) > 1 or part[0] in targets[part[0]]
    ]


def _walk(part: Sequence[int], targets: Sequence[Sequence[int]]) -> list[int]:
    members, order, todo = set(part), dict[int, None](), [part[0]]
    while todo:
        node = todo.pop()
        if node not in order:
            order[node] = None
            todo += [t for t in reversed(targets[node]) if t in members]

    return list(order)


def _targets(graph: Graph) -> list[list[int]]:
    targets: list[list[int]] = [[] for _ in graph.boxes]
    for a, b in sorted(graph.arrows):
        targets[a].append(b)

    return targets


def _classes(graph: Graph) -> list[int]:
    colors = _numbered([_look(box) for box in graph.boxes])
    for _ in range(_ROUNDS):
        around: list[set[tuple[bool, int]]] = [set() for _ in colors]
        for a, b in graph.arrows:
            around[a].add((True, colors[b]))
            around[b].add((False, colors[a]))
        finer = _numbered(
            [(c, frozenset(s)) for c, s in zip(colors, around, strict=True)]
        )
        if len(set(finer)) == len(set(colors)):
            break
        colors = finer

    return colors


def _look(box: Box) -> object:
    if not box.waits:
        return box.role, box.is_lost

    wait = box.waits[0]
    ref = GroupRef(name=wait.group, desc=wait.desc, ranks=())
    return str(ref) if wait.desc else "", wait.op.partition(" ")[0], wait.p2p


def _numbered(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _joined(graph: Graph, colors: Sequence[int]) -> Graph:
    alike: dict[int, list[Box]] = defaultdict(list)
    for box, color in zip(graph.boxes, colors, strict=True):
        alike[color].append(box)
    boxes = [
        Box(
            ranks=tuple(sorted({r for b in same for r in b.ranks})),
            role=same[0].role,
            is_lost=same[0].is_lost,
            waits=tuple(w for b in same for w in b.waits),
        )
        for _, same in sorted(alike.items())
    ]
    arrows = frozenset((colors[a], colors[b]) for a, b in graph.arrows)
    return Graph(boxes=tuple(boxes), arrows=arrows, left_out=graph.left_out)


def _cut(graph: Graph, most: int) -> Graph:
    """
    Keep what is nearest to those at fault, and count the other calls.
    """
    if len(graph.boxes) <= most:
        return graph

    nearest = set(_by_importance(graph)[:most])
    entered = {b for a, b in graph.arrows if a in nearest}
    # A call without those who wait in it explains nothing.
    kept = sorted(
        i for i in nearest if i in entered or not graph.boxes[i].waits
    )
    new = {old: i for i, old in enumerate(kept)}
    gone = [b for i, b in enumerate(graph.boxes) if i not in new]
    return Graph(
        boxes=tuple(graph.boxes[i] for i in kept),
        arrows=frozenset(
            (new[a], new[b]) for a, b in graph.arrows if a in new and b in new
        ),
        left_out=graph.left_out + sum(len(box.waits) for box in gone),
    )


def _by_importance(graph: Graph) -> list[int]:
    around: list[list[int]] = [[] for _ in graph.boxes]
    for a, b in sorted(graph.arrows):
        around[b].append(a)
        around[a].append(b)
    in_circle = {i for circle in circles(graph) for i in circle}
    rank = {"culprit": 0, "suspect": 1, "lost": 2, "call": 3, "victim": 4}
    order = sorted(
        range(len(graph.boxes)),
        key=lambda i: (
            rank[graph.boxes[i].role],
            i not in in_circle,
            -len(graph.boxes[i].ranks),
            i,
        ),
    )
    found: dict[int, None] = {}
    for start in order:
        todo = [start]
        for node in todo:
            if node not in found:
                found[node] = None
                todo += around[node]

    return list(found)


_MARKS = {
    "culprit": "✕",
    "suspect": "!",
    "lost": "?",
    "victim": "",
    "call": "",
}


def graph_section(diagnosis: Diagnosis) -> Section | None:
    """
    Who waits for whom?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        A picture, and the same in sentences; None if nobody waits.
    """
    whole = graph_of(diagnosis)
    if whole is None:
        return None

    graph = fold(whole)
    rings = circles(graph)
    arrows = sorted(graph.arrows)
    boxes = [_box(box, diagnosis) for box in graph.boxes]
    told = sentences(graph, rings)
    return Section(
        name="graph",
        title="Who waits for whom",
        summary=_summary(whole, rings),
        values={
            "boxes": boxes,
            "pictures": [
                _picture(graph, arrows, rings, is_tall=is_tall)
                for is_tall in (False, True)
            ],
            "box_size": (WIDTH, HEIGHT),
            "told": told,
            "is_circle": bool(rings),
            "kinds": sorted({box["kind"] for box in boxes}),
        },
        data={"ranks": [_span(box) for box in graph.boxes]},
    )


def _picture(
    graph: Graph,
    arrows: list[tuple[int, int]],
    rings: list[list[int]],
    *,
    is_tall: bool,
) -> dict[str, Any]:
    """
    One for wide screens, one for narrow ones: nobody scrolls for a culprit.
    """
    layout = lay_out(len(graph.boxes), arrows, rings, is_tall=is_tall)
    return {
        "kind": "tall" if is_tall else "wide",
        "size": layout.size,
        "places": [
            (round(x - WIDTH / 2), round(y - HEIGHT / 2))
            for x, y in layout.places
        ],
        "arrows": _arrows(arrows, layout, graph),
    }


def _box(box: Box, diagnosis: Diagnosis) -> dict[str, Any]:
    findings = (diagnosis.verdict, *diagnosis.findings)
    name, note = box_name(box), box_note(box, findings)
    wait = box.waits[0] if box.waits else None
    mark = "" if wait else _MARKS[box.role]
    # Fonts differ: so much fits in wide ones.
    longest = (22, 20) if wait else (15 if mark else 18, 22)
    short = shortened if wait else few_ranks
    return {
        "kind": box.role,
        "is_lost": box.is_lost,
        "mark": mark,
        "name": short(name, longest[0]),
        "note": shortened(note, longest[1]),
        "full": shortened(f"{name}: {note}" if note else name, 300),
        "rank": None if wait or len(box.ranks) != 1 else box.ranks[0],
        "group": clean(wait.group) if wait and len(box.waits) == 1 else None,
        "seq": wait.seq if wait and len(box.waits) == 1 else None,
    }


def _arrows(
    arrows: list[tuple[int, int]], layout: Layout, graph: Graph
) -> list[dict[str, Any]]:
    ring_of = {box: i for i, ring in enumerate(layout.rings) for box in ring}
    return [
        {
            "path": path,
            "kind": "circle"
            if a in ring_of and ring_of[a] == ring_of.get(b)
            else "blame"
            if graph.boxes[b].role == "culprit"
            else "wait",
        }
        for (a, b), path in zip(arrows, layout.paths, strict=True)
    ]


def _summary(graph: Graph, rings: list[list[int]]) -> str:
    culprits = [b for b in graph.boxes if b.role == "culprit"]
    at_fault = sorted({r for b in culprits for r in b.ranks})
    boxes = [graph.boxes[i] for i in sorted({a for a, _ in graph.arrows})]
    waiting = {r for b in boxes if not b.waits for r in b.ranks}
    waiting.difference_update(at_fault)
    if rings:
        return "a circle: nobody can go on"
    if not at_fault:
        return f"{len(waiting):,} ranks wait"

    text = many_ranks(at_fault)
    if not waiting:
        return f"it begins at {text}"

    verb = "waits" if len(waiting) == 1 else "wait"
    noun = "rank" if len(waiting) == 1 else "ranks"
    return f"{len(waiting):,} {noun} {verb} for {text}"


def _span(box: Box) -> list[list[int]]:
    """
    The ranks of a box as ranges, so that a rank is found in it.
    """
    spans: list[list[int]] = []
    for rank in () if box.waits else box.ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])

    return spans
