"""
What was wrong with the nodes of a job, as its snapshots tell?
"""

from __future__ import annotations

import json

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..._files import read_ordinary
from ..._layout import check_layout
from ..._text import reason_of
from ...findings import Finding, Missing
from ...health.environment import check_environment
from ...health.node import (
    FACTS_LAYOUT,
    NodeFacts,
    environs_of,
    job_start,
    judge_node_facts,
    node_facts,
)


__all__ = ["NodeEvidence", "Ranks", "read_nodes"]

# The rank of a process, by its host and number.
Ranks = Mapping[tuple[str, int], int]

_MOST_BYTES = 1 << 26
_OOM = "out of memory"


@attrs.frozen(kw_only=True)
class NodeEvidence:
    """
    What the facts of all nodes tell.

    Attributes:
        findings: What is wrong with them, and with the variables of their
            workers.

        oom_kills: Processes that the kernel killed for want of memory, by host
            and number.

        missing: What could not be read, and why.

        facts: What was seen on each node.

        environs: The variables of the workers of each node.
    """

    findings: tuple[Finding, ...] = ()
    oom_kills: frozenset[tuple[str, int]] = frozenset()
    missing: tuple[Missing, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    environs: Mapping[str, tuple[dict[str, str], ...]] = attrs.field(
        factory=dict
    )


def read_nodes(
    nodes: Iterable[tuple[str, Path]],
    ranks: Ranks,
    since: float | None = None,
) -> NodeEvidence:
    """
    Judge the facts that snapshots keep about nodes.

    Args:
        nodes: The host, and the file of its facts.

        ranks: The rank of each process that is known.

        since: When the job began, in seconds since the epoch, for nodes of
            which the snapshot does not tell: nobody was left there.

    Returns:
        What they tell.
    """
    by_host: dict[str, dict[int, int]] = defaultdict(dict)
    for (host, pid), rank in ranks.items():
        by_host[host][pid] = rank
    found: list[Finding] = []
    missing: list[Missing] = []
    facts: dict[str, NodeFacts] = {}
    environs: dict[str, tuple[dict[str, str], ...]] = {}
    for host, path in nodes:
        told = _read(path)
        if isinstance(told, Missing):
            missing.append(told)
            continue
        facts[host] = node_facts(told, host=host)
        found += judge_node_facts(
            told,
            host=host,
            ranks=by_host[host],
            since=_since(path, facts[host].booted) or since,
        )
        environs[host] = environs_of(told)

    if facts:
        found += check_environment(environs, nodes=facts).findings
    return NodeEvidence(
        findings=tuple(found),
        oom_kills=frozenset(_oom_kills(facts)),
        missing=tuple(missing),
        facts=tuple(facts.values()),
        environs=environs,
    )


def _read(path: Path) -> Mapping[str, Any] | Missing:
    try:
        facts = json.loads(read_ordinary(path, _MOST_BYTES))
        if isinstance(facts, dict):
            check_layout(facts.get("schema", FACTS_LAYOUT), FACTS_LAYOUT)
            return facts
        reason = "it is no object of JSON"
    except (OSError, ValueError, RecursionError) as exc:
        reason = reason_of(exc)
    return Missing(what="facts of node", reason=reason, source=str(path))


def _since(path: Path, booted: float | None) -> float | None:
    """
    When the job began, if the snapshot of the node tells.
    """
    try:
        workers = json.loads(
            read_ordinary(path.with_name("workers.json"), _MOST_BYTES)
        )
    except (OSError, ValueError, RecursionError):
        return None

    return job_start(workers, booted=booted)


def _oom_kills(facts: Mapping[str, NodeFacts]) -> Iterator[tuple[str, int]]:
    for host, told in facts.items():
        for event in told.kernel or ():
            if event.rule == _OOM and event.pid is not None:
                yield host, event.pid
