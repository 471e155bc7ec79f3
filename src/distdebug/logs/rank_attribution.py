"""
Attribute errors in logs to ranks that their own lines do not show.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence

from ..causes import Cause
from .events import EventGroup, GroupKey
from .process_ranks import NO_PROCESSES, NodeKey, ProcessRanks
from .rules import EXCEPTION


# Rules of launchers, which report who ended first, not why.
_LAUNCHER_RULES = frozenset(
    {
        "MPI reports a failed process",
        "killed",
        "task ended by Slurm",
        "torchrun reports a failed worker",
    }
)
_NOT_SEVERE = 3


def propagate_ranks(
    event_groups: Sequence[EventGroup],
    processes: ProcessRanks = NO_PROCESSES,
) -> dict[EventGroup, set[int]]:
    """
    Propagate ranks to event groups that show none.

    An assertion of a GPU kernel stands before the traceback of its rank; and
    where a single process failed, the launcher names its rank.

    Args:
        event_groups: The groups, the most severe first.

        processes: The known ranks of processes, nodes, and GPUs.

    Returns:
        Global ranks by event group.
    """
    propagated = _ranks_of_named(event_groups, processes)
    for group in event_groups:
        same = (
            x.ranks or propagated[x]
            for x in event_groups
            if x.rule is group.rule
            and (x.ranks or x in propagated)
            and (group.shares_file(x) or _is_of_kernel(group))
        )
        is_known = group.has_ranks or group in propagated
        ranks = set() if is_known else set(next(same, ()))
        # A traceback that says more than that something was raised is that of
        # the only rank that says the same.
        is_vague = group.rule.name in {EXCEPTION.name, *_LAUNCHER_RULES}
        is_alone = group.count == len(ranks) == 1 and not is_vague
        if ranks and (is_alone or not (group.shape or _is_of_kernel(group))):
            propagated[group] = ranks
    if ranks := _ranks_of_launcher(event_groups, propagated):
        propagated.setdefault(event_groups[0], ranks)
    for group in event_groups:
        if not group.has_ranks and group not in propagated:
            ranks = _ranks_of_nodes(group, event_groups, processes)
            propagated |= {group: ranks} if ranks else {}
    return propagated


def _is_of_kernel(group: EventGroup) -> bool:
    """
    Return whether it names a process by its number alone.
    """
    return any(kind == "pid" for kind, _ in group.named)


def _ranks_of_named(
    event_groups: Sequence[EventGroup], processes: ProcessRanks
) -> dict[EventGroup, set[int]]:
    """
    Return the ranks of the processes, nodes, and GPUs that groups name.

    The kernel kills a process, and its rank reports the same process.
    """
    ranks_of: dict[tuple[str, str], set[int]] = {}
    for group in event_groups:
        for name in group.named:
            ranks_of.setdefault(name, set()).update(group.ranks)
    found = {}
    for group in event_groups:
        if group.ranks and not group.local_ranks:
            continue
        known = (ranks_of[name] for name in group.named)
        if group.local_ranks:
            ranks = _global_ranks(group.local_ranks, processes)
        elif group.named:
            ranks = set().union(*known) or processes.find(
                group.named, group.files
            )
        else:  # who printed it is at fault
            ranks = processes.ranks_of(group.origins)
        if ranks:
            found[group] = ranks
    return found


# As pdsh and clush write, and NCCL.
_HOST_LABEL = re.compile(r"([A-Za-z][\w.-]{1,80}):(?: |\d{1,10}:\d{1,10} \[)")


def _global_ranks(
    local_ranks: Iterable[tuple[NodeKey, int]], processes: ProcessRanks
) -> set[int]:
    """
    Return the global ranks of local ranks, if the nodes of all are known.
    """
    pairs = [(processes.on_node(*node), n) for node, n in local_ranks]
    if not all(n < len(ranks) for ranks, n in pairs):
        return set()
    return {ranks[n] for ranks, n in pairs}


def _ranks_of_nodes(
    group: EventGroup,
    event_groups: Iterable[EventGroup],
    processes: ProcessRanks,
) -> set[int]:
    """
    Return all ranks of the nodes that print it, if it is about each of them.
    """
    is_end = (
        group.rule.cause.ends_process
        or group.rule.cause is Cause.NODE_MISCONFIGURED
    )
    may_be_each = is_end and bool(group.shape)
    if not (group.rule.is_of_node or may_be_each):
        return set()
    labels = {x.node for x in group.origins} or {""}
    nodes = [(path, label) for path in group.files for label in labels]
    ranks = {x for node in nodes for x in processes.on_node(*node)}
    if host := _HOST_LABEL.match(group.first.text):
        ranks = ranks or processes.find([("host", host[1])])
    count = sum(
        x.count
        for x in event_groups
        if x.rule is group.rule and x.files.keys() == group.files.keys()
    )
    is_each = may_be_each and count >= len(ranks)
    is_some = len(ranks) > 1 and not processes.is_all(ranks)
    return ranks if is_some and (group.rule.is_of_node or is_each) else set()


def _ranks_of_launcher(
    event_groups: Sequence[EventGroup],
    propagated: Mapping[EventGroup, set[int]],
) -> set[int]:
    """
    Return the ranks that the launcher names, if only these can have failed.
    """
    severe = [
        x
        for x in event_groups
        if x is event_groups[0] or x.rule.priority < _NOT_SEVERE
    ]
    if (
        not severe
        or not severe[0].rule.cause.ends_process
        or any(x.has_ranks for x in severe)
    ):
        return set()

    worst = severe[0]
    launchers = [
        x
        for x in event_groups
        if x.rule.name in _LAUNCHER_RULES
        and (x.ranks or x in propagated)
        # The log of the kernel is a file of its own.
        and (x.shares_file(worst) or _has_killed(worst, x))
    ]
    first = min(launchers, key=lambda x: x.first.offset, default=None)
    if first is None:
        return set()
    own = (first.ranks_in.get(path, ()) for path in worst.files)
    ranks = set().union(*own) or first.ranks or propagated[first]
    same = [x for x in event_groups if x.rule is worst.rule]
    pids = {x for group in same for x in group.named if x[0] == "pid"}
    # Each of them failed once, so that none failed in the same way elsewhere.
    return ranks if len(ranks) == (len(pids) or worst.count) else set()


def _has_killed(group: EventGroup, killed: EventGroup) -> bool:
    causes = group.rule.cause, killed.rule.cause
    return causes == (Cause.HOST_OUT_OF_MEMORY, Cause.KILLED)


def are_of_one_node(event_groups: Iterable[EventGroup]) -> bool:
    """
    Return whether all local ranks are those of one node.

    The output of a launcher repeats what the files of its ranks hold.
    """
    seen: dict[NodeKey, set[tuple[GroupKey, int]]] = {}
    outputs: set[str] = set()
    for group in event_groups:
        outputs.update(group.files)
        for node, rank in group.local_ranks:
            # What the launcher itself says is nowhere else.
            is_own = group.rule.name in _LAUNCHER_RULES
            key = "" if is_own else group.rule.name, group.key or group.shape
            seen.setdefault(node, set()).add((key, rank))
    # The node of an output is known by its path only.
    copies = {x for x in seen if x[0] in outputs}
    if len(seen) == 2 and len(copies) == 1:
        copy = {x for x in seen.pop(copies.pop()) if x[0][0]}
        return all(copy <= events for events in seen.values())
    return len(seen) == 1
