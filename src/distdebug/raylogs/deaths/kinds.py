"""
In which way did a worker end?

Ray writes the same about SIGKILL, a crash, and ``os._exit``.  What the worker
itself printed last tells a crash from the other two, which leave no trace.
"""

from __future__ import annotations

import re

from collections.abc import Sequence

from .last_words import LastWords
from .model import DeathKind
from .notes import Exit, Orphan


__all__ = ["exit_code_of", "is_driver", "kind_of"]

_CODE = re.compile(r"[Ee]xit code:? (?P<code>-?\d{1,5})")
_OWNER = re.compile(
    r"owner has died.{0,40}?Owner Id: (?P<id>[0-9a-f]{56})", re.DOTALL
)
_TERMINATED = re.compile(r"receives? a SIGTERM|SIGTERM signal")
_MEMORY = re.compile(
    r"running low on memory|^Memory on the node", re.MULTILINE
)
_NODE = re.compile(
    r"local raylet|[Nn]ode (?:was |is |has )?(?:died|dead|terminated|failed)"
    r"|preempted"
)
_JOB = re.compile(r"job has finished|job finished|Shutdown by ray\.shutdown")


def is_driver(worker_id: str) -> bool:
    """
    Whether this is a driver rather than a worker.

    Args:
        worker_id: What Ray calls it: of a driver its job, and then only f.

    Returns:
        Whether it is one.
    """
    return worker_id.endswith("f" * 48)


def exit_code_of(exits: Sequence[Exit]) -> int | None:
    """
    What did a worker exit with?

    Args:
        exits: What is told about its end.

    Returns:
        The code, if any line tells.
    """
    codes = (_CODE.search(x.detail) for x in exits)
    return next((int(x["code"]) for x in codes if x), None)


def kind_of(
    exits: Sequence[Exit], orphan: Orphan | None, words: LastWords
) -> tuple[DeathKind, str | None]:
    """
    In which way did a worker end?

    Args:
        exits: What is told about its end, the most trusted first.

        orphan: Whether it was killed because its owner was dead.

        words: What it printed last.

    Returns:
        The way, and who owned it if that matters.
    """
    types = {x.exit_type for x in exits if x.exit_type}
    detail = "\n".join(x.detail for x in exits)
    if "NODE_OUT_OF_MEMORY" in types or _MEMORY.search(detail):
        return "ray_oom", None

    owner = _owner(detail, orphan)
    # Whom the raylet ends may be quicker to tell of its signal.
    is_orphan = orphan is not None and _TERMINATED.search(detail) is not None
    is_told = is_orphan or "owner has died" in detail
    if "SYSTEM_ERROR" not in types or is_told:
        if owner is not None:
            return "job_ended" if is_driver(owner) else "owner_died", owner
        if "USER_ERROR" in types:
            return "init_error", None
        if types and "SYSTEM_ERROR" not in types:
            return "job_ended" if _JOB.search(detail) else "intended", None
    return _system_error(exits, detail, words), None


def _owner(detail: str, orphan: Orphan | None) -> str | None:
    found = _OWNER.search(detail)
    if found:
        return found["id"]
    return orphan.owner if orphan else None


def _system_error(
    exits: Sequence[Exit], detail: str, words: LastWords
) -> DeathKind:
    if _TERMINATED.search(detail) or words.signal == "SIGTERM":
        return "terminated"
    if words.signal is not None:
        is_watchdog = words.is_watchdog and words.signal == "SIGABRT"
        return "collective_timeout" if is_watchdog else "native_crash"
    if exit_code_of(exits) is not None:
        return "exit_code"
    if _NODE.search(detail):
        return "node_died"
    return "collective_timeout" if words.is_watchdog else "killed_or_exited"
