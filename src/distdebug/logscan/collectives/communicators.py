"""
Who never completed the set-up of a communicator, as NCCL itself prints it?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ...findings import Cause, Finding
from ...ranks import fold_ranks
from .calls import explain_behind, explain_differing
from .logs import CollectiveLogs
from .model import NcclInit
from .quoting import nccl_finding
from .remedies import OTHER_INTERFACE


__all__ = ["explain_communicators"]

_MOST_RANKS = 1 << 20


# After so many seconds without a line, what was under way is not any more.
_OVER_S = 300


def explain_communicators(
    logs: CollectiveLogs, *, has_failed: bool
) -> list[Finding]:
    """
    Whose calls differ, and who never completed the set-up of a communicator?

    Args:
        logs: What was read.

        has_failed: Whether something else shows that the job did not go on;
            without it, and if the logs were written to a moment ago, a set-up
            may just be under way.

    Returns:
        The first call that differs, or else who made the fewest; and the
        first set-up that did not end.
    """
    is_over = has_failed or (logs.quiet or 0) > _OVER_S
    differ = explain_differing(logs)
    return [
        *differ,
        *(explain_behind(logs) if is_over and not differ else ()),
        *_unfinished(logs, is_over=is_over),
    ]


def _unfinished(logs: CollectiveLogs, *, is_over: bool) -> Iterator[Finding]:
    """
    Communicators whose set-up did not end.
    """
    # Of what Ray folds, only some ranks are seen.
    if any(x.count > 1 for x in logs.inits):
        return
    done = {_comm(x) for x in logs.inits if x.is_complete}
    begun: dict[tuple[int, str], dict[int, NcclInit]] = defaultdict(dict)
    finished: set[tuple[int, str]] = set()
    for init in logs.inits:
        key = (init.attempt, init.comm_id)
        if init.comm_id and not init.is_complete:
            begun[key][init.member] = init
        if init.is_complete:
            finished.add(key)
    for key, members in begun.items():
        waiting = {m: x for m, x in members.items() if _comm(x) not in done}
        if waiting and (is_over or key in finished):
            yield _set_up(logs, members, waiting)
            return


def _set_up(
    logs: CollectiveLogs,
    members: Mapping[int, NcclInit],
    waiting: Mapping[int, NcclInit],
) -> Finding:
    """
    A communicator for which these members wait.
    """
    size = next(iter(members.values())).size
    is_world = size == logs.world_size
    absent = set(range(min(size, _MOST_RANKS))) - set(members)
    if 0 < len(absent) <= len(members) == len(waiting):
        return nccl_finding(
            Cause.RANK_NOT_ARRIVED,
            f"rank {fold_ranks(absent)} of {size} did not begin to set up an "
            f"NCCL communicator for which {len(waiting)} others wait",
            waiting.values(),
            "look at the Python stack and the log of these ranks",
            ranks=absent if is_world else (),
            confidence="likely" if len(absent) * 2 <= size else "possible",
        )
    few = 2 * len(waiting) <= len(members)
    return nccl_finding(
        Cause.RENDEZVOUS_TIMEOUT,
        f"rank {fold_ranks(waiting)} of {size} did not complete the set-up of "
        "an NCCL communicator",
        waiting.values(),
        f"look at the native stack of these ranks; {OTHER_INTERFACE}",
        ranks=waiting if is_world and few else (),
        confidence="possible",
    )


def _comm(init: NcclInit) -> tuple[int, str, int, str]:
    return (init.attempt, init.host, init.pid, init.comm)
