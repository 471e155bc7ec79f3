"""
Build the section on nodes: hardware, problems, environment variables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .._text import clean, count_text, list_text, size_text, time_text
from ..diagnosis import inputs_of
from ..findings import Diagnosis, Finding
from ..flight_recorder import VARIABLES
from ..health import (
    Gpu,
    NodeFacts,
    Settings,
    group_by_job,
    read_settings,
    select_ranks,
)
from ..identity import PLACE_VARIABLES
from ..stacks import group_by_key
from .format import (
    Section,
    as_sentence,
    cause_title,
    cause_tone,
    split_commands,
)


_MAX_NODES = 200
_MAX_PROBLEMS = 60
_MAX_SENTENCES = 6
_MAX_VARIABLES = 200
_MAX_VALUES = 6
# Variables that differ by rank or node on purpose.
_OWN_VARIABLES = PLACE_VARIABLES | {
    "TORCHELASTIC_ERROR_FILE",
    *(
        spelling.name
        for variable in VARIABLES
        if variable.key in {"dump_prefix", "pipe_prefix"}
        for spelling in variable.spellings
    ),
}


class _VariableRow(NamedTuple):
    """
    A variable of the workers, with its values.
    """

    name: str
    values: tuple[tuple[str, str], ...]
    differs: bool


def nodes_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section with nodes, their problems, and worker variables.
    """
    logs = inputs_of(diagnosis).logs
    if not (logs.facts or logs.nodes):
        return None

    alike = group_by_key(logs.nodes, lambda f: (f.cause, f.remedy))
    # Notes come last.
    kinds = sorted(alike, key=lambda same: same[0].cause.is_fine)
    troubles = [_node_problem(same) for same in kinds[:_MAX_PROBLEMS]]
    wrong = [f for f in logs.nodes if not f.cause.is_fine]
    variables = list(_variable_rows(logs.environs))
    count = len(logs.facts)
    remarks = (
        count_text(len(wrong), "remark") if wrong else "nothing wrong seen"
    )
    return Section(
        name="nodes",
        title="Nodes",
        summary=f"{count_text(count, 'node')}, {remarks}",
        values={
            "nodes": [_node_row(facts) for facts in logs.facts[:_MAX_NODES]],
            "more_nodes": max(count - _MAX_NODES, 0),
            "troubles": troubles,
            "more_troubles": len(alike) - len(troubles),
            "variables": variables[:_MAX_VARIABLES],
            "more_variables": max(len(variables) - _MAX_VARIABLES, 0),
        },
        is_open=bool(wrong),
    )


def _node_problem(alike: Sequence[Finding]) -> dict[str, Any]:
    first = alike[0]
    shown = alike[:_MAX_SENTENCES]
    is_note = first.cause.is_fine
    return {
        "tone": "unknown" if is_note else cause_tone(first.cause),
        "words": "Note" if is_note else cause_title(first.cause),
        "sentences": tuple(as_sentence(f.summary) for f in shown),
        "more": len(alike) - len(shown),
        "remedy": split_commands(as_sentence(first.remedy or "")),
    }


def _node_row(facts: NodeFacts) -> dict[str, Any]:
    return {
        "host": clean(facts.host, limit=64),
        "up": ""
        if facts.booted is None or not facts.taken
        else time_text(facts.taken - facts.booted),
        "cpus": str((facts.pressure and facts.pressure.cpus) or ""),
        "memory": _memory_text(facts),
        "gpus": _gpu_text(facts.gpus or ()),
        "disks": _disk_text(facts),
        "network": _network_text(facts),
    }


def _memory_text(facts: NodeFacts) -> str:
    memory = facts.memory
    if memory is None or memory.total is None or memory.available is None:
        return ""

    return f"{size_text(memory.available)} of {size_text(memory.total)}"


def _gpu_text(gpus: Sequence[Gpu]) -> str:
    names = Counter(clean(gpu.name or "GPU", limit=60) for gpu in gpus)
    return list_text(f"{n}\u00d7 {name}" for name, n in names.items())


def _disk_text(facts: NodeFacts) -> str:
    return list_text(
        f"{clean(disk.name, limit=20)} {size_text(disk.free)}"
        for disk in facts.disks or ()
        if disk.free is not None
    )


def _network_text(facts: NodeFacts) -> str:
    return list_text(
        f"{i.name} {' '.join(i.addresses[:1])}".rstrip()
        for i in facts.interfaces or ()
        if i.kind == "ordinary" and i.is_up
    )


def _variable_rows(
    environs: Mapping[str, Iterable[Mapping[str, str]]],
) -> Iterator[_VariableRow]:
    """
    Yield the variables of all ranks; those that differ within a job first.
    """
    settings, _ = read_settings(environs)
    ranks = select_ranks(settings)
    jobs = group_by_job(ranks)
    names = sorted({name for x in ranks for name in x.variables})
    found = [
        _variable_row(
            name,
            ranks,
            differs=any(
                len({x.variables.get(name) for x in job}) > 1 for job in jobs
            ),
        )
        for name in names
    ]
    yield from sorted(found, key=lambda v: (not v.differs, v.name))


def _variable_row(
    name: str, ranks: Sequence[Settings], *, differs: bool
) -> _VariableRow:
    values: dict[str, set[str]] = defaultdict(set)
    for x in ranks:
        if name in x.variables:
            values[x.variables[name]].add(x.host)
    shown_name = clean(name, limit=80)
    if name in _OWN_VARIABLES and len(values) > 1:
        text = f"{len(values)} values, one for each rank or node"
        return _VariableRow(shown_name, ((text, ""),), differs=False)

    ordered = sorted(values.items(), key=lambda pair: -len(pair[1]))
    shown = [
        (clean(value, limit=200), clean(list_text(sorted(hosts))))
        for value, hosts in ordered[:_MAX_VALUES]
    ]
    if len(ordered) > _MAX_VALUES:
        shown.append((f"… and {len(ordered) - _MAX_VALUES} more values", ""))
    if any(name not in x.variables for x in ranks):
        shown.append(("not set", "some workers"))
    if len(shown) == 1:
        shown = [(shown[0][0], "")]
    return _VariableRow(shown_name, tuple(shown), differs)
