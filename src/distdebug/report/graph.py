"""
Build the wait-for graph: which ranks wait in which calls for whom.

Turns waits into boxes and arrows, folds boxes that are alike, and adds the
layout of :mod:`~distdebug.report.graph_layout`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from .._text import clean, count_text
from ..causes import Cause
from ..diagnosis import inputs_of
from ..findings import Diagnosis, Finding, GroupRef, blames_ranks
from ..flight_recorder import Dumps
from ..ranks import ranks_text
from ..stacks import is_same_job
from ..waits import Wait, strongly_connected_components
from .format import Section
from .graph_layout import HEIGHT, WIDTH, layout_graph


# Role of ranks, finding that suspects them (as index), whether they are lost.
_RoleKey = tuple[str, int | None, bool]
# Key of a box: the call its ranks wait in, calls they block, and their role.
_RankKey = tuple[int | None, tuple[int, ...], _RoleKey]


@attrs.frozen(kw_only=True)
class Box:
    """
    Box of the graph: ranks, or calls that are alike.

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
    Wait-for graph.

    Attributes:
        boxes: The boxes.

        arrows: Pairs of boxes, as index: waits in, or waits for.

        left_out: Number of calls that are not shown.
    """

    boxes: tuple[Box, ...]
    arrows: frozenset[tuple[int, int]]
    left_out: int = 0


def build_graph(diagnosis: Diagnosis) -> Graph | None:
    """
    Build the graph of all waits; only equal ranks share a box.

    Returns:
        The graph; None if nothing waits.
    """
    if diagnosis.verdict.cause.is_fine:
        return None

    flight = inputs_of(diagnosis).flight
    if flight is None or not flight.waits:
        return _graph_from_findings(diagnosis)

    waits = flight.waits
    call_of_rank = _map_ranks_to_calls(waits, flight.dumps)
    call_of_rank |= _map_verdict_ranks(diagnosis.verdict, waits)
    # A call queued behind another one blocks nothing yet.
    entered = sorted(set(call_of_rank.values()))
    new = {old: i for i, old in enumerate(entered)}
    graph = _join_ranks(
        [waits[i] for i in entered],
        {rank: new[i] for rank, i in call_of_rank.items()},
        [_find_blockers(i, call_of_rank, waits, diagnosis) for i in entered],
        _Roles.from_diagnosis(diagnosis),
    )
    return attrs.evolve(graph, left_out=len(waits) - len(entered))


@attrs.frozen
class _Roles:
    """
    Roles of ranks by the findings; suspects map to a finding, as index.
    """

    culprits: frozenset[int]
    suspects: Mapping[int, int]
    lost: frozenset[int]

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis) -> _Roles:
        verdict, *others = diagnosis.findings or (diagnosis.verdict,)
        inputs = inputs_of(diagnosis)
        blamed = [
            f
            for f in others
            if blames_ranks(f) and is_same_job(f, verdict, inputs.stacks)
        ]
        without_dump = {m.rank for m in diagnosis.missing if m.what == "dump"}
        dumped = set(inputs.flight.dumps.ranks) if inputs.flight else set()
        return cls(
            frozenset(verdict.ranks if blames_ranks(verdict) else ()),
            # The first finding with a rank counts.
            {r: i for i, f in reversed([*enumerate(blamed)]) for r in f.ranks},
            frozenset(r for r in without_dump - dumped if r is not None),
        )

    def key(self, rank: int) -> _RoleKey:
        """
        Return role, finding, and whether the rank left no dump; ranks with
        different keys never share a box.
        """
        is_lost = rank in self.lost
        role = "lost" if is_lost else "victim"
        if rank in self.suspects:
            role = "suspect"
        if rank in self.culprits:
            role = "culprit"
        return role, self.suspects.get(rank), is_lost


def _map_ranks_to_calls(waits: Sequence[Wait], dumps: Dumps) -> dict[int, int]:
    """
    Map each rank to the call (as index) it is stuck in: the first it entered.
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


def _map_verdict_ranks(
    verdict: Finding, waits: Sequence[Wait]
) -> dict[int, int]:
    """
    Map the ranks that the verdict sees inside a call to that call.
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


def _entered_ns(rank: int, wait: Wait, dumps: Dumps) -> tuple[int, int]:
    """
    Return when a rank entered a call, by its own clock.
    """
    dump = dumps.by_rank.get(rank)
    if dump is None:
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


def _find_blockers(
    index: int,
    call_of_rank: Mapping[int, int],
    waits: Sequence[Wait],
    diagnosis: Diagnosis,
) -> tuple[int, ...]:
    """
    Return the ranks that block a call: absent, or in it wrongly.
    """
    wait = waits[index]
    if wait.awaited:
        return wait.awaited

    for finding in (diagnosis.verdict, *diagnosis.findings):
        if _is_about(finding, wait):
            found = set(wait.waiting).intersection(finding.ranks)
            if found and len(found) < len(wait.waiting):
                return tuple(sorted(found))

    return tuple(r for r in wait.waiting if call_of_rank[r] != index)


def _is_about(finding: Finding, wait: Wait) -> bool:
    return (
        finding.group is not None
        and finding.group.name == wait.group
        and not finding.cause.is_blameless
        and finding.cause
        not in {Cause.GROUP_ORDER_DEADLOCK, Cause.P2P_DEADLOCK}
    )


def _join_ranks(
    waits: Sequence[Wait],
    call_of_rank: Mapping[int, int],
    blockers: Sequence[tuple[int, ...]],
    roles: _Roles,
) -> Graph:
    """
    Put ranks with the same waits into one box, and add arrows.
    """
    holding: dict[int, list[int]] = defaultdict(list)
    for i, ranks in enumerate(blockers):
        for rank in ranks:
            holding[rank].append(i)
    alike: dict[_RankKey, list[int]] = defaultdict(list)
    for rank in sorted({*call_of_rank, *holding}):
        home = call_of_rank.get(rank)
        waiting_call = None if home in holding[rank] else home
        alike[waiting_call, tuple(holding[rank]), roles.key(rank)].append(rank)

    boxes = [Box(ranks=w.waiting, role="call", waits=(w,)) for w in waits]
    arrows = set()
    for (waiting_call, blocked_calls, key), members in alike.items():
        if waiting_call is not None:
            arrows.add((len(boxes), waiting_call))
        arrows |= {(call, len(boxes)) for call in blocked_calls}
        role, _, is_lost = key
        boxes.append(Box(ranks=tuple(members), role=role, is_lost=is_lost))

    return Graph(boxes=tuple(boxes), arrows=frozenset(arrows))


def _graph_from_findings(diagnosis: Diagnosis) -> Graph | None:
    """
    Build a graph from findings alone: victims wait for culprits.
    """
    verdict = diagnosis.verdict
    culprits = set(verdict.ranks)
    group = verdict.group
    others = diagnosis.victims or (group.ranks if group else ())
    victims = tuple(sorted(set(others) - culprits))
    if not culprits or not victims or not blames_ranks(verdict):
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
    roles = _Roles.from_diagnosis(diagnosis)
    call_of_rank = dict.fromkeys(victims, 0)
    graph = _join_ranks([wait], call_of_rank, [wait.awaited], roles)
    # Who is slow is so in many calls, and none is stuck.
    is_call = call or (group and not verdict.cause.is_lag)
    return graph if is_call else _drop_call(graph)


def _drop_call(graph: Graph) -> Graph:
    """
    Drop an unknown call: ranks point to ranks.
    """
    sources = [a - 1 for a, b in graph.arrows if b == 0]
    targets = [b - 1 for a, b in graph.arrows if a == 0]
    arrows = frozenset((a, b) for a in sources for b in targets)
    return Graph(boxes=graph.boxes[1:], arrows=arrows)


_MAX_RANKS_TEXT = 48
_MAX_SENTENCES = 12

# Short text per cause for the boxes of ranks at fault.
_FAULT_TEXTS = {
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
    Cause.GROUP_ORDER_DEADLOCK: "in another order",
    Cause.P2P_DEADLOCK: "in a circle of waits",
    Cause.STRAGGLER: "late again and again",
    Cause.SLOW_LINK: "behind a slow link",
}


def box_title(box: Box) -> str:
    """
    Return the first line of a box.
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
    Return the second line of a box.

    Args:
        box: Any box.

        findings: Those of the diagnosis, the verdict first.
    """
    if box.waits:
        return _groups_text(box.waits)
    if box.is_lost:
        return "left no dump"
    if box.role in {"culprit", "suspect"}:
        return _fault_text(box, findings)

    count = len(box.ranks)
    return f"{count:,} ranks wait" if count > 1 else "waits"


def _fault_text(box: Box, findings: Sequence[Finding]) -> str:
    first = {r: f.cause for f in reversed(findings) for r in f.ranks}
    causes = {first[r] for r in box.ranks if r in first}
    if len(causes) != 1:
        return "several findings" if causes else "at fault"

    (cause,) = causes
    return _FAULT_TEXTS.get(cause, str(cause).replace("_", " "))


def _groups_text(waits: Sequence[Wait]) -> str:
    names = sorted({str(_group_ref(wait)) for wait in waits})
    if len(waits) == 1:
        return _transfer_text(waits[0]) or (
            f"group {names[0]}" if names[0] else ""
        )

    what = "transfers" if waits[0].p2p else "groups"
    name = names[0] if len(names) == 1 else ""
    return f"{len(waits):,} {what} {f'of {name}' if name else ''}".strip()


def _transfer_text(wait: Wait) -> str:
    """
    Return sender and receiver of a transfer that one of them waits in.
    """
    if not wait.p2p or len(wait.waiting) != 1 or len(wait.awaited) != 1:
        return ""

    one, other = wait.waiting[0], wait.awaited[0]
    a, b = (one, other) if wait.op.startswith("send") else (other, one)
    return f"rank {a} to rank {b}"


def _group_ref(wait: Wait) -> GroupRef:
    return GroupRef(name=wait.group, desc=wait.desc, ranks=())


def summarize_ranks(ranks: Sequence[int]) -> str:
    """
    Return ranks in bounded length.

    Returns:
        Such as ``"ranks 0-3,8"``, or ``"889 ranks (0-3,5-11,…)"``.
    """
    text = ranks_text(ranks)
    if len(text) <= _MAX_RANKS_TEXT:
        return text

    first = text[len("ranks ") : _MAX_RANKS_TEXT].rpartition(",")[0]
    return f"{len(ranks):,} ranks ({first},…)"


def first_ranks(text: str, max_length: int) -> str:
    """
    Cut a text of ranks between two numbers.

    Args:
        text: Such as ``"ranks 0-3,8"``.

        max_length: In characters.
    """
    first = text[: max_length - 1].rpartition(",")[0]
    return (
        f"{first},…"
        if first and len(text) > max_length
        else shorten_text(text, max_length)
    )


def shorten_text(text: str, max_length: int) -> str:
    """
    Shorten a text; keep the call number at its end.

    Args:
        text: Any text.

        max_length: In characters.
    """
    if len(text) <= max_length:
        return text

    head, mark, number = text.rpartition(" #")
    end = f"…{mark}{number}" if number.isdecimal() else "…"
    return f"{head or text}"[: max(max_length - len(end), 0)] + end


def describe_graph(graph: Graph, rings: Sequence[Sequence[int]]) -> list[str]:
    """
    Describe the graph in sentences, for screen readers.

    Args:
        graph: The folded graph.

        rings: The boxes that wait for each other.
    """
    lines = [*_circle_sentences(graph, rings), *_wait_sentences(graph)]
    more = len(lines) - _MAX_SENTENCES
    if more > 0:
        lines = [*lines[:_MAX_SENTENCES], f"More waits: {more}."]
    if graph.left_out:
        lines.append(
            f"Calls queued behind these, or left out: {graph.left_out:,}."
        )
    return lines


def _circle_sentences(
    graph: Graph, rings: Sequence[Sequence[int]]
) -> Iterable[str]:
    for ring in rings:
        boxes = (graph.boxes[i] for i in ring)
        text = summarize_ranks(
            _ranks_of_boxes(b for b in boxes if not b.waits)
        )
        yield f"{text[0].upper()}{text[1:]} wait for each other: a deadlock."


def _wait_sentences(graph: Graph) -> Iterable[str]:
    boxes = graph.boxes
    for i, box in enumerate(boxes):
        before = [boxes[a] for a, b in graph.arrows if b == i]
        after = [boxes[b] for a, b in graph.arrows if a == i]
        # The sentence about a call names its blockers.
        inside = _ranks_of_boxes(b for b in before if box.waits or not b.waits)
        if inside:
            yield _wait_sentence(
                box, inside, _ranks_of_boxes(after) if box.waits else box.ranks
            )


def _wait_sentence(
    box: Box, inside: Sequence[int], holding: Sequence[int]
) -> str:
    subject = summarize_ranks(inside)
    verb = "waits" if len(inside) == 1 else "wait"
    note = f" ({note})" if (note := box_note(box, ())) else ""
    where = f" in {box_title(box)}{note}" if box.waits else ""
    object_text = (
        f" for {summarize_ranks(holding)}"
        if holding
        else ", and no rank is known to hold it up"
    )
    return f"{subject[0].upper()}{subject[1:]} {verb}{where}{object_text}."


def _ranks_of_boxes(boxes: Iterable[Box]) -> list[int]:
    return sorted({rank for box in boxes for rank in box.ranks})


# Up to this many boxes, nothing is folded.
_FOLD_ABOVE = 14
_MAX_BOXES = 24
_REFINE_ROUNDS = 12


def fold_graph(graph: Graph) -> Graph:
    """
    Merge boxes that are alike, and drop the least important ones.

    Boxes are alike if they look the same and their neighbours are alike (the
    coarsest such partition, by refinement).
    """
    if len(graph.boxes) > _FOLD_ABOVE:
        graph = _merge_boxes(graph, _refine_classes(graph))

    return _keep_important(graph)


def find_parts(graph: Graph) -> list[list[int]]:
    """
    Find boxes that wait for each other.

    Returns:
        All boxes, targets first; boxes that wait for each other are together,
        in the order of their arrows where they form one ring.
    """
    targets: list[list[int]] = [[] for _ in graph.boxes]
    for a, b in sorted(graph.arrows):
        targets[a].append(b)
    return [
        _circle_order(part, targets)
        for part in strongly_connected_components(targets)
    ]


def _circles(parts: Sequence[list[int]]) -> list[list[int]]:
    return [part for part in parts if len(part) > 1]


def _circle_order(
    part: Sequence[int], targets: Sequence[Sequence[int]]
) -> list[int]:
    members, order, todo = set(part), dict[int, None](), [part[0]]
    while todo:
        node = todo.pop()
        if node not in order:
            order[node] = None
            todo += [t for t in reversed(targets[node]) if t in members]

    return list(order)


def _refine_classes(graph: Graph) -> list[int]:
    colors = _number_keys([_box_signature(box) for box in graph.boxes])
    for _ in range(_REFINE_ROUNDS):
        around: list[set[tuple[bool, int]]] = [set() for _ in colors]
        for a, b in graph.arrows:
            around[a].add((True, colors[b]))
            around[b].add((False, colors[a]))
        finer = _number_keys(
            [(c, frozenset(s)) for c, s in zip(colors, around, strict=True)]
        )
        if len(set(finer)) == len(set(colors)):
            break
        colors = finer

    return colors


def _box_signature(box: Box) -> object:
    if not box.waits:
        return box.role, box.is_lost

    wait = box.waits[0]
    group = str(_group_ref(wait)) if wait.desc else ""
    return group, wait.op.partition(" ")[0], wait.p2p


def _number_keys(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _merge_boxes(graph: Graph, colors: Sequence[int]) -> Graph:
    alike: dict[int, list[Box]] = defaultdict(list)
    for box, color in zip(graph.boxes, colors, strict=True):
        alike[color].append(box)
    boxes = [
        attrs.evolve(
            members[0],
            ranks=tuple(_ranks_of_boxes(members)),
            waits=tuple(w for b in members for w in b.waits),
        )
        for _, members in sorted(alike.items())
    ]
    arrows = frozenset((colors[a], colors[b]) for a, b in graph.arrows)
    return Graph(boxes=tuple(boxes), arrows=arrows, left_out=graph.left_out)


def _keep_important(graph: Graph) -> Graph:
    """
    Keep the boxes nearest to those at fault, and count the dropped calls.
    """
    if len(graph.boxes) <= _MAX_BOXES:
        return graph

    nearest = set(_by_importance(graph)[:_MAX_BOXES])
    entered = {b for a, b in graph.arrows if a in nearest}
    # A call without waiting ranks explains nothing.
    shown = sorted(
        i for i in nearest if i in entered or not graph.boxes[i].waits
    )
    new = {old: i for i, old in enumerate(shown)}
    dropped = [b for i, b in enumerate(graph.boxes) if i not in new]
    return Graph(
        boxes=tuple(graph.boxes[i] for i in shown),
        arrows=frozenset(
            (new[a], new[b]) for a, b in graph.arrows if a in new and b in new
        ),
        left_out=graph.left_out + sum(len(box.waits) for box in dropped),
    )


# The most important ones first, with their marks.
_ROLE_MARKS = {
    "culprit": "✕",
    "suspect": "!",
    "lost": "?",
    "call": "",
    "victim": "",
}
_ROLES = [*_ROLE_MARKS]


def _by_importance(graph: Graph) -> list[int]:
    around: list[list[int]] = [[] for _ in graph.boxes]
    for a, b in sorted(graph.arrows):
        around[b].append(a)
        around[a].append(b)
    in_circle = {i for ring in _circles(find_parts(graph)) for i in ring}
    order = sorted(
        range(len(graph.boxes)),
        key=lambda i: (
            _ROLES.index(graph.boxes[i].role),
            i not in in_circle,
            -len(graph.boxes[i].ranks),
            i,
        ),
    )
    found: dict[int, None] = {}
    for start in order:
        queue = [start]
        for node in queue:
            if node not in found:
                found[node] = None
                queue += around[node]

    return list(found)


def graph_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section with the graph, as picture and text; None without waits.
    """
    full_graph = build_graph(diagnosis)
    if full_graph is None:
        return None

    graph = fold_graph(full_graph)
    parts = find_parts(graph)
    rings = _circles(parts)
    arrows = sorted(graph.arrows)
    boxes = [_box_values(box, diagnosis) for box in graph.boxes]
    lines = describe_graph(graph, rings)
    return Section(
        name="graph",
        title="Who waits for whom",
        summary=_summary(full_graph, rings),
        values={
            "boxes": boxes,
            "pictures": [
                _picture_values(graph, arrows, parts, is_tall=is_tall)
                for is_tall in (False, True)
            ],
            "box_size": (WIDTH, HEIGHT),
            "told": lines,
            "is_circle": bool(rings),
            "kinds": sorted({box["kind"] for box in boxes}),
        },
        data={"ranks": [_rank_ranges(box) for box in graph.boxes]},
    )


def _picture_values(
    graph: Graph,
    arrows: list[tuple[int, int]],
    parts: list[list[int]],
    *,
    is_tall: bool,
) -> dict[str, Any]:
    """
    Return the template variables for a wide or a tall screen.
    """
    layout = layout_graph(parts, arrows, is_tall=is_tall)
    kind = "tall" if is_tall else "wide"
    return {
        "kind": kind,
        "id": kind,
        "size": layout.size,
        "places": [
            (round(x - WIDTH / 2), round(y - HEIGHT / 2))
            for x, y in layout.places
        ],
        "arrows": [
            {"path": path, "kind": _arrow_kind(*arrow, parts, graph)}
            for arrow, path in zip(arrows, layout.paths, strict=True)
        ],
    }


def _box_values(box: Box, diagnosis: Diagnosis) -> dict[str, Any]:
    findings = (diagnosis.verdict, *diagnosis.findings)
    name, note = box_title(box), box_note(box, findings)
    wait = box.waits[0] if box.waits else None
    mark = "" if wait else _ROLE_MARKS[box.role]
    # Lengths that fit even with wide fonts.
    max_lengths = (22, 20) if wait else (15 if mark else 18, 22)
    shorten = shorten_text if wait else first_ranks
    return {
        "kind": box.role,
        "is_lost": box.is_lost,
        "mark": mark,
        "name": shorten(name, max_lengths[0]),
        "note": shorten_text(note, max_lengths[1]),
        "full": shorten_text(f"{name}: {note}" if note else name, 300),
        "rank": None if wait or len(box.ranks) != 1 else box.ranks[0],
        "group": clean(wait.group) if wait and len(box.waits) == 1 else None,
        "seq": wait.seq if wait and len(box.waits) == 1 else None,
    }


def _arrow_kind(
    source: int, target: int, parts: list[list[int]], graph: Graph
) -> str:
    if any(source in part and target in part for part in parts):
        return "circle"

    return "blame" if graph.boxes[target].role == "culprit" else "wait"


def _summary(graph: Graph, rings: list[list[int]]) -> str:
    at_fault = _ranks_of_boxes(b for b in graph.boxes if b.role == "culprit")
    boxes = [graph.boxes[i] for i in sorted({a for a, _ in graph.arrows})]
    waiting = {r for b in boxes if not b.waits for r in b.ranks}
    waiting.difference_update(at_fault)
    if rings:
        return "a cycle: none of them can continue"
    if not at_fault:
        return f"{len(waiting):,} ranks wait"

    text = summarize_ranks(at_fault)
    if not waiting:
        return f"it begins at {text}"

    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{count_text(len(waiting), 'rank')} {verb} for {text}"


def _rank_ranges(box: Box) -> list[list[int]]:
    """
    Return the ranks of a box as ranges, for the search by rank.
    """
    spans: list[list[int]] = []
    for rank in () if box.waits else box.ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])

    return spans
