"""
What was seen on the nodes of the job?
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .._text import clean, list_text, size_text, time_text
from ..diagnosis import seen_by
from ..findings import Diagnosis, Finding
from ..health import (
    Gpu,
    NodeFacts,
    Settings,
    by_job,
    read_settings,
    those_of_ranks,
)
from .format import (
    Piece,
    Section,
    as_sentence,
    cause_words,
    pieces_of,
    tone_of,
)


_MOST_NODES = 200
_MOST_KINDS = 60
_MOST_SENTENCES = 6
_MOST_VARIABLES = 200
_MOST_VALUES = 6
# They differ from rank to rank, as they should.
_OWN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "PMI_RANK"),
    *("PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("TORCHELASTIC_ERROR_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    *("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
}


class _Node(NamedTuple):
    """
    One node.
    """

    host: str
    up: str
    cpus: str
    memory: str
    gpus: str
    disks: str
    network: str


class _Trouble(NamedTuple):
    """
    What is wrong with nodes, and has the same remedy.
    """

    tone: str
    words: str
    sentences: tuple[str, ...]
    more: int
    remedy: tuple[Piece, ...]


class _Variable(NamedTuple):
    """
    A variable of the workers.
    """

    name: str
    values: tuple[tuple[str, str], ...]
    differs: bool


def nodes_section(diagnosis: Diagnosis) -> Section | None:
    """
    What was seen on the nodes of the job?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        Each node in a line, what is wrong with them, and the variables of
        their workers.
    """
    logs = seen_by(diagnosis).logs
    if not (logs.facts or logs.nodes):
        return None

    alike: dict[object, list[Finding]] = defaultdict(list)
    for finding in logs.nodes:
        alike[finding.cause, finding.remedy].append(finding)
    # What is only worth a note comes last.
    kinds = sorted(alike.values(), key=lambda same: same[0].cause.is_fine)
    troubles = [_trouble(same) for same in kinds[:_MOST_KINDS]]
    wrong = [f for f in logs.nodes if not f.cause.is_fine]
    variables = list(_variables(logs.environs))
    count = len(logs.facts)
    return Section(
        name="nodes",
        title="Nodes",
        summary=f"{count:,} {'node' if count == 1 else 'nodes'}, "
        + _remarks(len(wrong)),
        values={
            "nodes": [_node(facts) for facts in logs.facts[:_MOST_NODES]],
            "more_nodes": max(count - _MOST_NODES, 0),
            "troubles": troubles,
            "more_troubles": len(alike) - len(troubles),
            "variables": variables[:_MOST_VARIABLES],
            "more_variables": max(len(variables) - _MOST_VARIABLES, 0),
        },
        is_open=bool(wrong),
    )


def _remarks(count: int) -> str:
    if not count:
        return "nothing wrong seen"

    return f"{count:,} {'remark' if count == 1 else 'remarks'}"


def _trouble(alike: Sequence[Finding]) -> _Trouble:
    first = alike[0]
    shown = alike[:_MOST_SENTENCES]
    is_note = first.cause.is_fine
    return _Trouble(
        tone="unknown" if is_note else tone_of(first.cause),
        words="Note" if is_note else cause_words(first.cause),
        sentences=tuple(
            as_sentence(finding.summary.removeprefix("note: "))
            for finding in shown
        ),
        more=len(alike) - len(shown),
        remedy=pieces_of(as_sentence(first.remedy or "")),
    )


def _node(facts: NodeFacts) -> _Node:
    return _Node(
        host=clean(facts.host, limit=64),
        up=""
        if facts.booted is None or not facts.taken
        else time_text(facts.taken - facts.booted),
        cpus=str((facts.pressure and facts.pressure.cpus) or ""),
        memory=_memory(facts),
        gpus=_gpus(facts.gpus or ()),
        disks=_disks(facts),
        network=_network(facts),
    )


def _memory(facts: NodeFacts) -> str:
    memory = facts.memory
    if memory is None or memory.total is None or memory.available is None:
        return ""

    return f"{size_text(memory.available)} of {size_text(memory.total)}"


def _gpus(gpus: Sequence[Gpu]) -> str:
    names = Counter(clean(gpu.name or "GPU", limit=60) for gpu in gpus)
    return list_text(f"{n}\u00d7 {name}" for name, n in names.items())


def _disks(facts: NodeFacts) -> str:
    return list_text(
        f"{clean(disk.name, limit=20)} {size_text(disk.free)}"
        for disk in facts.disks or ()
        if disk.free is not None
    )


def _network(facts: NodeFacts) -> str:
    return list_text(
        f"{i.name} {' '.join(i.addresses[:1])}".rstrip()
        for i in facts.interfaces or ()
        if i.kind == "ordinary" and i.is_up
    )


def _variables(
    environs: Mapping[str, Iterable[Mapping[str, str]]],
) -> Iterator[_Variable]:
    """
    The variables of all ranks; first those on which a job does not agree.
    """
    settings, _ = read_settings(environs)
    ranks = those_of_ranks(settings)
    jobs = by_job(ranks)
    names = sorted({name for x in ranks for name in x.variables})
    found = [
        _variable(
            name,
            ranks,
            differs=any(
                len({x.variables.get(name) for x in job}) > 1 for job in jobs
            ),
        )
        for name in names
    ]
    yield from sorted(found, key=lambda v: (not v.differs, v.name))


def _variable(
    name: str, ranks: Sequence[Settings], *, differs: bool
) -> _Variable:
    values: dict[str, set[str]] = defaultdict(set)
    for x in ranks:
        if name in x.variables:
            values[x.variables[name]].add(x.host)
    shown_name = clean(name, limit=80)
    if name in _OWN and len(values) > 1:
        text = f"{len(values)} values, one for each rank or node"
        return _Variable(shown_name, ((text, ""),), differs=False)

    ordered = sorted(values.items(), key=lambda pair: -len(pair[1]))
    shown = [
        (clean(value, limit=200), clean(list_text(sorted(hosts))))
        for value, hosts in ordered[:_MOST_VALUES]
    ]
    if len(ordered) > _MOST_VALUES:
        shown.append((f"… and {len(ordered) - _MOST_VALUES} more values", ""))
    if any(name not in x.variables for x in ranks):
        shown.append(("not set", "some workers"))
    if len(shown) == 1:
        shown = [(shown[0][0], "")]
    return _Variable(shown_name, tuple(shown), differs)
