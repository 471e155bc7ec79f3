"""
Which report belongs to which of the workers that somebody else knows?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..._text import clean
from .model import NsysReport


__all__ = ["join_workers"]

# How others call the same: the workers of this library, those of Ray's state
# API, and tables of users.
_HOSTS = ("host", "node", "hostname", "node_name", "ip", "node_ip")
_ACTORS = ("actor", "actor_class", "class_name", "actor_name", "name")
_LOGS = ("logs", "log_paths", "log", "out", "err")


def join_workers(
    reports: Iterable[NsysReport], workers: Iterable[object]
) -> list[NsysReport]:
    """
    Add to each report what is known of its worker.

    Args:
        reports: The reports.

        workers: Objects or mappings with a *pid*, and any of *host*, *rank*,
            *actor*, and *logs*.

    Returns:
        The reports.  Where two workers have the same number, and the node does
        not tell them apart, neither is taken.
    """
    by_pid: dict[int, list[object]] = defaultdict(list)
    for worker in workers:
        pid = _first(worker, ("pid",))
        if isinstance(pid, int):
            by_pid[pid].append(worker)
    return [_joined(report, by_pid) for report in reports]


def _joined(
    report: NsysReport, by_pid: Mapping[int, list[object]]
) -> NsysReport:
    found = by_pid.get(report.pid or 0, [])
    fitting = [w for w in found if _fits(report.node, _first(w, _HOSTS))]
    if len(fitting) != 1:
        return report

    (worker,) = fitting
    rank, actor = _first(worker, ("rank",)), _first(worker, _ACTORS)
    logs = [p for name in _LOGS for p in _paths(_first(worker, (name,)))]
    return attrs.evolve(
        report,
        rank=rank if isinstance(rank, int) else report.rank,
        actor=clean(str(actor)) if actor else report.actor,
        node=report.node or str(_first(worker, _HOSTS) or ""),
        logs=tuple(dict.fromkeys([*report.logs, *logs])),
    )


def _fits(node: str, host: Any) -> bool:
    if not node or not host:
        return True
    # One may be the long name of the other.
    short, long = sorted((node, str(host)), key=len)
    return short == long or long.startswith(f"{short}.")


def _paths(logs: Any) -> list[str]:
    if logs is None:
        return []
    one = isinstance(logs, str) or not isinstance(logs, Iterable)
    # Some are not paths, but have one.
    return [str(getattr(x, "path", x)) for x in ([logs] if one else logs)]


def _first(worker: object, names: Iterable[str]) -> Any:
    for name in names:
        if isinstance(worker, Mapping):
            value = worker.get(name)
        else:
            value = getattr(worker, name, None)
        if value is not None:
            return value
    return None
