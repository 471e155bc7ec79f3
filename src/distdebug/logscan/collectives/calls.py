"""
Whose calls differ, or are fewer, as NCCL prints every one of them?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from ...findings import Cause, CollectiveRef, Finding
from ...ranks import fold_ranks
from .logs import CollectiveLogs
from .model import NcclCall, NcclInit
from .quoting import nccl_finding


__all__ = ["explain_behind", "explain_differing"]

_P2P = frozenset({"send", "recv"})
_Calls = dict[int, NcclCall]


def explain_differing(logs: CollectiveLogs) -> list[Finding]:
    """
    Which calls of the same number differ?

    Args:
        logs: What was read.

    Returns:
        The first of them.
    """
    find = _finder(logs.inits)
    found: dict[tuple[str, int], _Calls] = defaultdict(dict)
    for call in logs.calls:
        init = find(call)
        if init is not None and call.op not in _P2P:
            key = (init.comm_id or init.comm, call.number)
            found[key].setdefault(init.member, call)
    for (_, number), calls in sorted(found.items(), key=lambda x: x[0][1]):
        cause, kinds = _call_kinds(calls)
        if len(kinds) > 1:
            size = max((x.size for x in logs.inits), default=0)
            is_world = size == logs.world_size
            return [_differing(calls, number, cause, kinds, is_world=is_world)]
    return []


def _differing(
    calls: Mapping[int, NcclCall],
    number: int,
    cause: Cause,
    kinds: list[tuple[str, list[int]]],
    *,
    is_world: bool,
) -> Finding:
    right, wrong = kinds[0], kinds[1]
    is_tie = len(right[1]) == len(wrong[1])
    members = [m for _, ms in kinds[1:] for m in ms] if not is_tie else []
    return nccl_finding(
        cause,
        f"rank {fold_ranks(wrong[1])} called {wrong[0]} where rank "
        f"{fold_ranks(right[1])} called {right[0]}, as call {number:#x} "
        "of an NCCL communicator",
        [calls[wrong[1][0]], calls[right[1][0]]],
        "make all ranks make the same calls; or find the call that was "
        "left out or made once too often before",
        ranks=members if is_world else (),
        collective=CollectiveRef(op=calls[right[1][0]].op, seq=number),
    )


def explain_behind(logs: CollectiveLogs) -> list[Finding]:
    """
    Who made fewer calls than all others, after which nothing went on?

    Args:
        logs: What was read.

    Returns:
        What the first communicator tells in which that is so.
    """
    find = _finder(logs.inits)
    last: dict[str, _Calls] = defaultdict(dict)
    inits: dict[str, NcclInit] = {}
    for call in logs.calls:
        init = find(call)
        if init is not None and init.comm_id:
            last[init.comm_id][init.member] = call
            inits[init.comm_id] = init
    # What two ranks do among themselves counts for them only.
    between = {
        init.comm_id
        for call in logs.calls
        if call.op in _P2P and (init := find(call))
    }
    for comm_id, calls in last.items():
        size = inits[comm_id].size
        fewest = min(call.number for call in calls.values())
        few = [m for m, x in calls.items() if x.number == fewest]
        is_whole = len(calls) == size and comm_id not in between
        is_whole &= all(x.count == 1 for x in calls.values())
        if is_whole and 2 * len(few) < size:
            return [_late(calls, few, is_world=size == logs.world_size)]
    return []


def _late(
    calls: Mapping[int, NcclCall], few: list[int], *, is_world: bool
) -> Finding:
    most = max(calls.values(), key=lambda x: x.number)
    return nccl_finding(
        Cause.RANK_NOT_ARRIVED,
        f"rank {fold_ranks(few)} made {calls[few[0]].number:#x} calls on an "
        f"NCCL communicator, others up to {most.number:#x}",
        [calls[few[0]], most],
        "look at the Python stack and the log of these ranks",
        ranks=few if is_world else (),
        confidence="possible",
        collective=CollectiveRef(op=most.op, seq=most.number),
    )


def _finder(
    inits: Iterable[NcclInit],
) -> Callable[[NcclCall], NcclInit | None]:
    """
    How the communicator of a call is found: by itself, or else by its size if
    the process has only one of that size.
    """
    exact: dict[tuple[str, int, str], NcclInit] = {}
    sized: dict[tuple[str, int, int], dict[str, NcclInit]] = defaultdict(dict)
    for init in inits:
        exact[init.host, init.pid, init.comm] = init
        sized[init.host, init.pid, init.size][init.comm] = init

    def find(call: NcclCall) -> NcclInit | None:
        """
        The set-up of the communicator.
        """
        known = exact.get((call.host, call.pid, call.comm))
        alike = sized.get((call.host, call.pid, call.size or 0), {})
        if known is None and len(alike) == 1:
            (known,) = alike.values()
        return known

    return find


def _call_kinds(
    calls: Mapping[int, NcclCall],
) -> tuple[Cause, list[tuple[str, list[int]]]]:
    for cause, name in (
        (Cause.TYPE_MISMATCH, lambda x: x.op),
        (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.elements} elements"),
        (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of type {x.dtype}"),
    ):
        found: dict[str, list[int]] = defaultdict(list)
        for member, call in sorted(calls.items()):
            found[name(call)].append(member)
        if len(found) > 1:
            return cause, sorted(found.items(), key=lambda x: -len(x[1]))
    return Cause.TYPE_MISMATCH, []
