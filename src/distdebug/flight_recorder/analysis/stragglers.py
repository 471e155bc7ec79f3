"""
Which rank makes all others wait, again and again?

The job runs, but one rank is always the last to arrive.  Clocks of hosts
differ, so arrival times are first corrected by what the collectives themselves
tell: everyone notices the end of a collective at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ...findings import Cause, Evidence, Finding, GroupRef
from .job import Job
from .progress import Stream


# Fewer calls than this prove no habit.
_FEWEST_CALLS = 8
_FEWEST_WAITS = 4
# It causes this share of all waiting, in number and in time, …
_HOW_OFTEN = 0.6
# … which costs this share of the time.
_HOW_MUCH = 0.1
# Hosts jitter by some milliseconds; devices do not.
_SHORTEST_HOST_NS = 5_000_000
_SHORTEST_DEVICE_NS = 100_000
# It is the last one too often for chance, by this many standard deviations.
_SIGMAS = 3
# Nobody is late nearly all of the time: then it is its clock that is off.
_MOST = 0.95
# A watchdog notices the end of a call up to 100 ms late, and may do so in step
# with the job: then no mean takes it away.
_POLL_NS = 12_000_000
# A delay has to exceed the doubt about the clocks by this factor.
_SURE = 4


@attrs.frozen(kw_only=True)
class _Delay:
    """
    How much one rank holds up one group.

    Attributes:
        share: The share of the time that is lost by it.

        ns: How much is lost at a time, as a rule.

        kind: ``"host"`` or ``"device"``.

        group: The group.

        is_undecided: Whether nobody in the group is later than all others.

        evidence: The times that say so.
    """

    share: float
    ns: float
    kind: str
    group: GroupRef
    is_undecided: bool
    evidence: Evidence


@attrs.frozen(kw_only=True, eq=False)
class _Table:
    """
    The calls that all members of a group have on record: one row per rank,
    one column per call.
    """

    group: GroupRef
    ranks: tuple[int, ...]
    seq: NDArray[np.int64]
    created: NDArray[np.float64]
    completed: NDArray[np.float64]
    duration_ms: NDArray[np.float64]


def find_stragglers(job: Job) -> list[Finding]:
    """
    Find ranks that are always late, and say whether host or device is slow.

    Args:
        job: What is known about the job.

    Returns:
        One finding per rank, the worst first.
    """
    tables = [t for i in range(len(job.states)) if (t := _table(job, i))]
    late: dict[int, list[_Delay]] = defaultdict(list)
    for table in tables:
        for rank, delay in _delays(table, job).items():
            late[rank].append(delay)

    culprits = {
        rank: max(seen, key=lambda delay: delay.share)
        for rank, seen in late.items()
        if _is_late_everywhere(seen)
    }
    ordered = sorted(culprits.items(), key=lambda item: -item[1].share)
    return [_finding(rank, worst) for rank, worst in ordered]


def _is_late_everywhere(seen: Sequence[_Delay]) -> bool:
    """
    Peers of a late rank are late elsewhere; the culprit is late everywhere.

    Except that in a larger group, whoever waited for it is as late as it is.
    """
    late_in = [set(d.group.ranks) for d in seen if d.share >= _HOW_MUCH]
    return bool(late_in) and all(
        d.share >= _HOW_MUCH
        or (d.is_undecided and any(g < set(d.group.ranks) for g in late_in))
        for d in seen
    )


def _delays(table: _Table, job: Job) -> dict[int, _Delay]:
    hosts = [job.dumps[r].host or f"rank {r}" for r in table.ranks]
    offsets, doubt = clock_offsets_ns(table.completed, hosts)
    arrived = table.created - offsets[:, None]
    on_host = _lost_on_host(arrived)
    # Whoever comes last waits least: its collectives are the shortest.
    # Durations need no clock, so they outweigh the times of arrival.
    tried = len(job.dumps)
    measured = bool(np.isfinite(table.duration_ms).all())
    if measured:
        on_device = _lead(-table.duration_ms * 1e6)
        shares = _shares(on_device, arrived, _SHORTEST_DEVICE_NS, tried)
        is_host = on_host.sum(axis=1) > on_device.sum(axis=1) / 2
    else:
        surely = max(_SURE * doubt, _SHORTEST_HOST_NS)
        varying = _lost_on_host(_varying(arrived))
        shares = np.maximum(
            _shares(on_host, arrived, surely, tried),
            _shares(varying, arrived, _SHORTEST_HOST_NS, tried),
        )
        is_host = np.ones(len(table.ranks), bool)

    return {
        rank: _Delay(
            share=share,
            ns=ns,
            kind="host" if host else "device",
            group=table.group,
            is_undecided=not shares[:, 0].any(),
            evidence=_evidence(job.dumps[rank].path, rank, int(often), table),
        )
        for rank, (share, ns, often), host in zip(
            table.ranks, shares.tolist(), is_host.tolist(), strict=True
        )
    }


def _evidence(path: str, rank: int, often: int, table: _Table) -> Evidence:
    calls = f"#{table.seq[0]} to #{table.seq[-1]}"
    return Evidence(
        kind="dump",
        source=path,
        location=f"rank {rank}, times of calls {calls}",
        quote=f"the others wait for rank {rank} in {often:,} of "
        f"{len(table.seq):,} calls",
    )


def _varying(arrived: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Arrivals as if nobody were always late: that is no matter of clocks.
    """
    apart = arrived - np.median(arrived, axis=0)
    always = np.quantile(apart, 0.1, axis=1, keepdims=True)
    varying: NDArray[np.float64] = arrived - always
    return varying


def _shares(
    lost: NDArray[np.float64],
    arrived: NDArray[np.float64],
    least_ns: float,
    tried: int,
) -> NDArray[np.float64]:
    """
    Which share of the time is lost by each rank, how much, and how often?

    Returns:
        One row (share, ns, calls) per rank; zeros for ranks that are not to blame.
    """
    span = float(np.median(arrived[:, -1] - arrived[:, 0]))
    typical = np.array([_typical(row) for row in lost])
    total = lost.sum(axis=1)
    share = total / max(span, 1.0)
    waits = lost > 0.1 * lost.max(initial=0)
    often = waits.sum(axis=1)
    to_blame = (
        (total >= _HOW_OFTEN * total.sum())
        & (often >= max(_HOW_OFTEN * waits.sum(), _FEWEST_WAITS))
        & (often >= _by_chance(int(waits.sum()), len(lost), tried))
        & (typical >= least_ns)
        & (share < _MOST)
    )
    shares: NDArray[np.float64] = np.where(
        to_blame, [share, typical, often], 0.0
    ).T
    return shares


def _by_chance(calls: int, ranks: int, tried: int) -> float:
    """
    How often one of *ranks* equal ranks may come last in so many calls.

    Of many ranks in a job, one is unluckier than the rest: *tried* is how many
    are looked at.
    """
    mean = calls / ranks
    deviation = np.sqrt(mean * (1 - 1 / ranks))
    sigmas = np.sqrt(_SIGMAS**2 + 2 * np.log(tried))
    return float(mean + sigmas * deviation)


def _lost_on_host(arrived: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    How long all others waited for each rank (row) in each call (column).
    """
    # Calls come in bursts: a delay counts once, not for each call of a burst.
    since_last = np.diff(arrived, axis=1, prepend=arrived[:, :1])
    lost: NDArray[np.float64] = np.minimum(
        _lead(arrived), np.maximum(since_last, 0)
    )
    return lost


def _lead(order: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    By how much each rank (row) exceeds all others, call by call; 0 if not.
    """
    top = np.sort(order, axis=0)[-2:]
    lead: NDArray[np.float64] = np.maximum(order - top[0], 0) * (
        order == top[1]
    )
    return lead


def _typical(lost: NDArray[np.float64]) -> float:
    counts = lost[lost > 0.1 * lost.max(initial=0)]
    return float(np.median(counts)) if len(counts) else 0.0


def _finding(rank: int, delay: _Delay) -> Finding:
    advice = {
        "host": "data loading, CPU limits, other processes",
        "device": "clocks, temperature, ECC errors, other processes",
    }[delay.kind]
    return Finding(
        cause=Cause.STRAGGLER,
        ranks=(rank,),
        summary=f"rank {rank} is slow on its {delay.kind}: all others wait "
        f"{delay.ns / 1e6:,.1f} ms for it again and again in group "
        f"{str(delay.group)!r}, {delay.share:.0%} of the time",
        confidence="likely",
        remedy=f"compare the {delay.kind} of rank {rank} with the others: "
        f"{advice}",
        group=delay.group,
        evidence=(delay.evidence,),
    )


def _table(job: Job, index: int) -> _Table | None:
    ranks = [
        r for r in job.states[index].group.order if r in job.dumps.by_rank
    ]
    streams = [job.stream(r, index) for r in ranks]
    if len(ranks) < 2 or any(s is None for s in streams):
        return None

    known: list[Stream] = [s for s in streams if s is not None]
    common = known[0].seq
    for s in known[1:]:
        if not np.array_equal(common, s.seq):
            common = np.intersect1d(common, s.seq, assume_unique=True)
    if len(common) < _FEWEST_CALLS:
        return None

    rows = [s.row[np.searchsorted(s.seq, common)] for s in known]
    cells = [
        (job.dumps[r].entries, at) for r, at in zip(ranks, rows, strict=True)
    ]
    return _Table(
        group=job.states[index].group.ref,
        ranks=tuple(ranks),
        seq=common,
        created=np.array([e.created_ns[at] for e, at in cells], float),
        completed=np.array([e.completed_ns[at] for e, at in cells], float),
        duration_ms=np.array([e.duration_ms[at] for e, at in cells]),
    )


def clock_offsets_ns(
    completed: NDArray[np.float64], hosts: Sequence[object]
) -> tuple[NDArray[np.float64], float]:
    """
    Estimate by how much the clock of each rank is ahead of the median clock.

    Args:
        completed: When each rank (row) noticed the end of each collective
            (column), in nanoseconds; 0 where it did not.

        hosts: The host of each rank; ranks of a host share a clock.

    Returns:
        One offset per rank, and how far off they may be (one standard error),
        in nanoseconds.
    """
    if len(set(hosts)) == 1:
        return np.zeros(len(completed)), 0.0

    known = (completed > 0).all(axis=0)
    if not known.any():
        return np.zeros(len(completed)), np.inf

    ends = completed[:, known]
    apart = ends - np.median(ends, axis=0)
    own = np.median(apart, axis=1)
    noise = np.median(np.abs(apart - own[:, None])) * 1.5
    doubt = float(max(1.5 * noise / np.sqrt(ends.shape[1]), _POLL_NS))
    by_host: dict[object, list[float]] = defaultdict(list)
    for host, offset in zip(hosts, own.tolist(), strict=True):
        by_host[host].append(offset)

    return np.array([np.median(by_host[h]) for h in hosts]), doubt
