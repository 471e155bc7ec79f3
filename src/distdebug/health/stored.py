"""
What was wrong with a node, as the facts in a snapshot tell?

A snapshot keeps them in ``HOST/node.json``.  It may come from anywhere, so
nothing in it is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._text import clean
from ..findings import Finding
from .disks import Disk
from .gpu.model import Gpu
from .gpu.rows import gpu_of_row
from .kernel.events import KernelEvent, find_events
from .kernel.log import parse_kernel_lines
from .memory.read import Memory
from .model import NodeFacts
from .network.interfaces import Interface, interface_kind
from .pressure import Pressure
from .variables import public_variables
from .verdicts import judge_facts


__all__ = [
    "FACTS_LAYOUT",
    "environs_of",
    "job_start",
    "judge_node_facts",
    "node_facts",
]

FACTS_LAYOUT = 1
"""The layout of ``node.json``; see :mod:`distdebug.bundle`."""

_MOST = 1 << 16
_MOST_LINES = 100_000
_HUGE = 1e18
# In these the kernel counts for all programs, whatever its own clock is.
_TICKS_PER_S = 100


def judge_node_facts(
    node_json: Mapping[str, Any],
    *,
    host: str,
    ranks: Mapping[int, int] | None = None,
    since: float | None = None,
) -> tuple[Finding, ...]:
    """
    Tell what was wrong with a node when a snapshot was taken.

    Args:
        node_json: What stands in its ``node.json``.

        host: The node.

        ranks: The rank of each process that is known.

        since: When the job began, in seconds since the epoch; ``None`` if
            unknown.

    Returns:
        What was found, the surest first.
    """
    known = dict(ranks or {})
    facts = node_facts(node_json, host=host)
    return judge_facts(facts, ranks=known, pids=known, since=since)


def node_facts(node_json: Mapping[str, Any], *, host: str) -> NodeFacts:
    """
    Understand the facts in a snapshot.

    Args:
        node_json: What stands in ``node.json``.

        host: The node.

    Returns:
        What is known; what is not understood is left out.
    """
    whole = _dict(node_json)
    machine = _dict(whole.get("machine"))
    taken = _number(whole.get("taken")) or 0.0
    booted = _number(machine.get("booted"))
    return NodeFacts(
        host=clean(host),
        taken=taken,
        booted=booted,
        gpus=tuple(_gpus(whole.get("gpus"))),
        memory=_memory(machine),
        kernel=_kernel(whole.get("kernel"), booted, taken),
        disks=tuple(_disks(machine.get("disks"))),
        pressure=Pressure(cpus=_whole(machine.get("cpus"))),
        interfaces=tuple(_interfaces(whole.get("interfaces"))) or None,
    )


def environs_of(node_json: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """
    Find the environments of the workers in a snapshot of their node.

    Args:
        node_json: What stands in ``node.json``.

    Returns:
        One environment for each worker, as
        :func:`~distdebug.health.environment.check_environment` takes them.
    """
    found = []
    for entry in _list(_dict(node_json).get("variables")):
        told = _dict(_dict(entry).get("variables"))
        texts = {
            k: v
            for k, v in told.items()
            if isinstance(k, str) and isinstance(v, str)
        }
        pids = _list(_dict(entry).get("pids"))
        found += [public_variables(texts) for _ in pids[:_MOST] or [0]]
    return tuple(found[:_MOST])


def job_start(workers_json: Any, *, booted: float | None) -> float | None:
    """
    When did the job on a node begin, as a snapshot tells?

    Args:
        workers_json: What stands in ``workers.json``.

        booted: When the node was started, in seconds since the epoch.

    Returns:
        When the first of its workers was started, in seconds since the epoch;
        ``None`` if that is unknown.
    """
    told = (_dict(w).get("start_ticks") for w in _list(workers_json)[:_MOST])
    ticks = [t for t in map(_number, told) if t is not None and t > 0]
    if booted is None or not ticks:
        return None

    return booted + min(ticks) / _TICKS_PER_S


def _gpus(told: Any) -> Iterator[Gpu]:
    for index, row in enumerate(_list(told)):
        texts = {
            k: v
            for k, v in _dict(row).items()
            if isinstance(k, str) and isinstance(v, str)
        }
        if texts:
            yield gpu_of_row(texts, index=index)


def _memory(machine: Mapping[str, Any]) -> Memory | None:
    memory, swap = _dict(machine.get("memory")), _dict(machine.get("swap"))
    if not memory:
        return None

    return Memory(
        total=_whole(memory.get("total")),
        available=_whole(memory.get("available")),
        swap_total=_whole(swap.get("total")),
        swap_used=_whole(swap.get("used")),
    )


def _disks(told: Any) -> Iterator[Disk]:
    paths = {"tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 names only
    for name, disk in list(_dict(told).items())[:_MOST]:
        counts = _dict(disk)
        free_files = _whole(counts.get("free_files"))
        text = clean(str(name))
        yield Disk(
            name=text,
            path=paths.get(text, f"the {text}"),
            total=_whole(counts.get("total")),
            free=_whole(counts.get("free")),
            # How many there are was not kept, and some count none.
            files=_whole(counts.get("files")),
            free_files=free_files,
        )


def _kernel(
    told: Any, booted: float | None, taken: float
) -> tuple[KernelEvent, ...] | None:
    if not isinstance(told, list):
        return None

    lines = [x for x in told[:_MOST_LINES] if isinstance(x, str)]
    return find_events(
        parse_kernel_lines(lines, booted=booted or 0.0, now=taken or None)
    )


def _interfaces(told: Any) -> Iterator[Interface]:
    for entry in _list(told)[:_MOST]:
        known = _dict(entry)
        name = known.get("name")
        if isinstance(name, str):
            addresses = _list(known.get("addresses"))
            yield Interface(
                name=clean(name),
                is_up=known.get("is_up") is not False,
                addresses=tuple(
                    clean(x) for x in addresses if isinstance(x, str)
                ),
                kind=interface_kind(name),
            )


def _dict(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # JSON knows whole numbers that are too large for any machine.
    if not -_HUGE < value < _HUGE:
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
