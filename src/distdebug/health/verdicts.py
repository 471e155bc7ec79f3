"""
What do the facts about a node mean for the job?

The same for a node that is looked at now and for one whose facts were kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ..findings import Finding
from .blocked import judge_blocked
from .disks import judge_disks
from .gpu.driver import judge_driver
from .gpu.judge import judge_gpus
from .kernel.judge import Circumstances, judge_events
from .limits import judge_limits
from .memory.judge import judge_memory
from .model import NodeFacts
from .network.judge import judge_network
from .pressure import judge_pressure
from .ray_node.judge import judge_ray


__all__ = ["by_confidence", "judge_facts"]

_ORDER = {"certain": 0, "likely": 1, "possible": 2}
# The first messages of a kernel are about its start.
_START_S = 60.0


def judge_facts(
    facts: NodeFacts,
    *,
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
    since: float | None = None,
    has_node_pids: bool = True,
) -> tuple[Finding, ...]:
    """
    Tell what is wrong with a node.

    Args:
        facts: What was seen on it.

        ranks: The rank of each process that is known.

        pids: The processes of the job.

        since: When the job began, in seconds since the epoch; ``None`` if
            unknown: then what happened within a day may have to do with it.

        has_node_pids: Whether processes have the numbers here that the kernel
            and the driver tell; in a container they mostly do not.

    Returns:
        What was found, the surest first.
    """
    known = dict(ranks or {})
    about = Circumstances(
        host=facts.host,
        now=facts.taken,
        since=since,
        ranks=known if has_node_pids else {},
        pids=frozenset(pids if has_node_pids else ()),
        gpus=facts.gpus or (),
    )
    return by_confidence(
        [
            *judge_events(facts.kernel or (), about),
            *_of_devices(facts, about.ranks),
            *_of_memory(facts, since, about.begin),
            *_of_processes(facts, known, pids),
        ]
    )


def _of_devices(
    facts: NodeFacts, ranks: Mapping[int, int]
) -> Iterator[Finding]:
    host = facts.host
    yield from judge_gpus(facts.gpus or (), host=host, ranks=ranks)
    yield from judge_driver(
        facts.gpu_problem, host=host, waited_s=facts.gpu_wait_s
    )
    yield from judge_disks(facts.disks or (), host=host)
    yield from judge_network(
        facts.interfaces or (), facts.ib_ports or (), host=host
    )
    for node in facts.ray or ():
        yield from judge_ray(node, host=host)


def _of_memory(
    facts: NodeFacts, since: float | None, begin: float
) -> Iterator[Finding]:
    if facts.pressure is not None:
        yield from judge_pressure(facts.pressure, host=facts.host)
    if facts.memory is not None:
        yield from judge_memory(
            facts.memory,
            host=facts.host,
            begins=_since_boot(since, facts.booted),
            is_log_whole=_is_whole(facts, begin),
        )


def _of_processes(
    facts: NodeFacts, ranks: Mapping[int, int], pids: Collection[int]
) -> Iterator[Finding]:
    yield from judge_blocked(
        facts.blocked or (), host=facts.host, ranks=ranks, pids=pids
    )
    has_rdma = any(x.state == "ACTIVE" for x in facts.ib_ports or ())
    yield from judge_limits(
        facts.limits or (), host=facts.host, ranks=ranks, has_rdma=has_rdma
    )


def by_confidence(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """
    Sort findings, the surest first and notes last.
    """
    return tuple(
        sorted(findings, key=lambda f: (f.cause.is_fine, _ORDER[f.confidence]))
    )


def _since_boot(time: float | None, booted: float | None) -> float | None:
    return None if time is None or booted is None else time - booted


def _is_whole(facts: NodeFacts, begin: float) -> bool:
    if facts.kernel is None or facts.log_begins is None:
        return False
    if facts.booted and facts.log_begins < facts.booted + _START_S:
        return True
    return facts.log_begins <= begin
