"""
By how much does the clock of each host differ?

Everybody notices the end of a collective at the same time, so the ends that
the members of a group noticed tell how their clocks are set.  Groups that
share a host pass that on to each other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from numpy.typing import NDArray

from ..analysis.membership import Group, Membership
from ..analysis.operations import Signatures
from ..analysis.stragglers import clock_offsets_ns
from ..analysis.streams import collective_streams
from ..columns import Dumps
from .model import HostClock


__all__ = ["compare_clocks", "host_of", "rank_offsets"]

# The newest calls that all members have on record are plenty.
_MOST_CALLS = 200
# Ranks that wait for others are some calls ahead of these.
_MOST_KEPT = 1000
_FEWEST_CALLS = 4


def host_of(dumps: Dumps, rank: int) -> str:
    """
    Whose clock does this rank use?

    Args:
        dumps: What the ranks recorded.

        rank: Global rank.

    Returns:
        Its host; a name of its own if that is not known.
    """
    return dumps[rank].host or f"rank {rank}"


def compare_clocks(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> tuple[HostClock, ...]:
    """
    Estimate how the clocks of all hosts are set, from what they completed.

    Args:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: What makes calls comparable.

    Returns:
        One clock per host, by lowest rank; the first is what the others are
        compared with.
    """
    hosts = list(dict.fromkeys(host_of(dumps, rank) for rank in dumps.ranks))
    if len(hosts) < 2:
        return tuple(_clock(host, (0.0, 0.0)) for host in hosts)

    known = {hosts[0]: (0.0, 0.0)}
    at = _groups_at(dumps, membership)
    untried = set(range(len(membership.groups)))
    reached = deque(hosts[:1])
    while reached and len(known) < len(hosts):
        for index in at[reached.popleft()]:
            if index not in untried:
                continue
            untried.discard(index)
            new = _learn(dumps, membership, signatures, index, known)
            known.update(new)
            reached.extend(new)

    return tuple(_clock(host, known.get(host)) for host in hosts)


def rank_offsets(
    dumps: Dumps, clocks: Sequence[HostClock]
) -> Mapping[int, int]:
    """
    By how many nanoseconds are the times of each rank to be set back?

    Args:
        dumps: What the ranks recorded.

        clocks: How their clocks are set.
    """
    ahead = {c.host: c.ahead_ns or 0 for c in clocks if c.corrected}
    return {rank: ahead.get(host_of(dumps, rank), 0) for rank in dumps.ranks}


def _clock(host: str, offset: tuple[float, float] | None) -> HostClock:
    if offset is None:
        return HostClock(
            host=host, ahead_ns=None, doubt_ns=None, corrected=False
        )

    ahead, doubt = map(round, offset)
    return HostClock(
        host=host, ahead_ns=ahead, doubt_ns=doubt, corrected=abs(ahead) > doubt
    )


def _groups_at(
    dumps: Dumps, membership: Membership
) -> Mapping[str, Sequence[int]]:
    """
    The groups with members on each host, those of many ranks first.
    """
    at: dict[str, dict[int, None]] = defaultdict(dict)
    order = sorted(
        range(len(membership.groups)),
        key=lambda index: -len(membership.groups[index].order),
    )
    for index in order:
        for rank in _members(dumps, membership.groups[index]):
            at[host_of(dumps, rank)][index] = None
    return {host: tuple(found) for host, found in at.items()}


def _members(dumps: Dumps, group: Group) -> list[int]:
    return [rank for rank in group.order if rank in dumps.by_rank]


def _learn(
    dumps: Dumps,
    membership: Membership,
    signatures: Signatures,
    index: int,
    known: Mapping[str, tuple[float, float]],
) -> dict[str, tuple[float, float]]:
    """
    What does one group tell of the clocks of hosts that are not known yet?
    """
    members = _members(dumps, membership.groups[index])
    hosts = [host_of(dumps, rank) for rank in members]
    if known.keys() >= set(hosts):
        return {}

    ends = _common_ends(dumps, membership, signatures, index, members)
    if ends is None:
        return {}

    offsets, doubt = clock_offsets_ns(ends, hosts)
    here = dict(zip(hosts, offsets.tolist(), strict=True))
    shared = next(host for host in here if host in known)
    base, more = known[shared]
    return {
        host: (base + offset - here[shared], doubt + more)
        for host, offset in here.items()
        if host not in known
    }


def _common_ends(
    dumps: Dumps,
    membership: Membership,
    signatures: Signatures,
    index: int,
    members: Sequence[int],
) -> NDArray[np.float64] | None:
    """
    When each member (row) noticed the end of each call (column) of a group
    that all of them noticed; ``None`` if there are too few.
    """
    ends: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for rank in members:
        dump = dumps[rank]
        stream = collective_streams(
            dump, membership.by_code[rank], signatures
        ).get(index)
        if stream is None:
            return None

        end = dump.entries.completed_ns[stream.row]
        seen = stream.synchronizes & stream.done & (end > 0)
        ends.append((stream.seq[seen][-_MOST_KEPT:], end[seen][-_MOST_KEPT:]))

    common = reduce(_intersect, (seq for seq, _ in ends))[-_MOST_CALLS:]
    if len(common) < _FEWEST_CALLS:
        return None

    table: NDArray[np.float64] = np.array(
        [end[np.searchsorted(seq, common)] for seq, end in ends], float
    )
    return table


def _intersect(
    a: NDArray[np.int64], b: NDArray[np.int64]
) -> NDArray[np.int64]:
    if np.array_equal(a, b):
        return a

    both: NDArray[np.int64] = np.intersect1d(a, b, assume_unique=True)
    return both
