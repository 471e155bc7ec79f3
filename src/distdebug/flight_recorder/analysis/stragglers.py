"""
Find stragglers: ranks that are the last to arrive again and again.

Clocks of hosts differ.  All ranks notice the end of a collective at the same
time, so arrival times are first corrected by these ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ...findings import Cause, Evidence, Finding, GroupRef
from ..reading.columns import Dumps
from .job import Job, common_numbers


# Fewer calls are not significant.
_MIN_CALLS = 8
_MIN_WAITS = 4
# A straggler causes this share of all waits, by number and by time …
_MIN_SHARE_OF_WAITS = 0.6
# … and they cost this share of the time.
_MIN_SHARE_OF_TIME = 0.1
# Hosts jitter by some milliseconds; devices do not.
_MIN_HOST_DELAY_NS = 5_000_000
_MIN_DEVICE_DELAY_NS = 100_000
# Minimum significance of coming last, in standard deviations.
_MIN_SIGMAS = 3
# A larger share is a clock offset, not a delay.
_MAX_SHARE_OF_TIME = 0.95
# A watchdog notices the end of a call up to 100 ms late.  If it polls in step
# with the job, averaging does not remove this.
_WATCHDOG_POLL_NS = 12_000_000
# A delay has to exceed the uncertainty of the clocks by this factor.
_MIN_DOUBT_FACTOR = 4


@attrs.frozen(kw_only=True)
class _Delay:
    """
    Delay that one rank causes in one group.

    Attributes:
        share: Share of the time that is lost.

        ns: Typical delay per call.

        kind: ``"host"`` or ``"device"``.

        is_undecided: Whether no rank of the group is later than all others.
    """

    share: float
    ns: float
    kind: str
    group: GroupRef
    is_undecided: bool
    evidence: Evidence


@attrs.frozen(kw_only=True, eq=False)
class _CallTimes:
    """
    Times of the calls that all members of a group have on record.

    Arrays have one row per rank and one column per call.
    """

    group: GroupRef
    ranks: tuple[int, ...]
    seq: NDArray[np.int64]
    created: NDArray[np.float64]
    completed: NDArray[np.float64]
    duration_ms: NDArray[np.float64]


def find_stragglers(job: Job) -> list[Finding]:
    """
    Find ranks that are always late, and whether their host or device is slow.

    Returns:
        One finding per rank, the worst first.
    """
    tables = [
        t for i in range(len(job.states)) if (t := _collect_call_times(job, i))
    ]
    delays_by_rank: dict[int, list[_Delay]] = defaultdict(list)
    for table in tables:
        for rank, delay in _measure_delays(table, job).items():
            delays_by_rank[rank].append(delay)

    culprits = {
        rank: max(delays, key=lambda delay: delay.share)
        for rank, delays in delays_by_rank.items()
        if _is_late_everywhere(delays)
    }
    ordered = sorted(culprits.items(), key=lambda item: -item[1].share)
    return [_straggler_finding(rank, worst) for rank, worst in ordered]


def _is_late_everywhere(delays: Sequence[_Delay]) -> bool:
    """
    Return whether a rank is late in all of its groups.

    Peers of a straggler are late in other groups only; the straggler is late
    in all.  Larger groups are an exception: the peers that waited for it
    arrive as late as it does.
    """
    late_in = [
        set(d.group.ranks) for d in delays if d.share >= _MIN_SHARE_OF_TIME
    ]
    return bool(late_in) and all(
        d.share >= _MIN_SHARE_OF_TIME
        or (d.is_undecided and any(g < set(d.group.ranks) for g in late_in))
        for d in delays
    )


def _measure_delays(table: _CallTimes, job: Job) -> dict[int, _Delay]:
    hosts = [host_of(job.dumps, rank) for rank in table.ranks]
    offsets, doubt = clock_offsets_ns(table.completed, hosts)
    arrived = table.created - offsets[:, None]
    on_host = _host_delays(arrived)
    # The last rank waits least, so its collectives are the shortest.
    # Durations do not depend on clocks, so they outweigh arrival times.
    compared_ranks = len(job.dumps)
    measured = bool(np.isfinite(table.duration_ms).all())
    if measured:
        on_device = _lead_over_others(-table.duration_ms * 1e6)
        shares = _delay_shares(
            on_device, arrived, _MIN_DEVICE_DELAY_NS, compared_ranks
        )
        is_host = on_host.sum(axis=1) > on_device.sum(axis=1) / 2
    else:
        min_delay_ns = max(_MIN_DOUBT_FACTOR * doubt, _MIN_HOST_DELAY_NS)
        varying = _host_delays(_remove_constant_delay(arrived))
        shares = np.maximum(
            _delay_shares(on_host, arrived, min_delay_ns, compared_ranks),
            _delay_shares(
                varying, arrived, _MIN_HOST_DELAY_NS, compared_ranks
            ),
        )
        is_host = np.ones(len(table.ranks), bool)

    return {
        rank: _Delay(
            share=share,
            ns=ns,
            kind="host" if host else "device",
            group=table.group,
            is_undecided=not shares[:, 0].any(),
            evidence=_straggler_evidence(
                job.dumps[rank].path, rank, int(often), table
            ),
        )
        for rank, (share, ns, often), host in zip(
            table.ranks, shares.tolist(), is_host.tolist(), strict=True
        )
    }


def _straggler_evidence(
    path: str, rank: int, often: int, table: _CallTimes
) -> Evidence:
    calls = f"#{table.seq[0]} to #{table.seq[-1]}"
    return Evidence(
        kind="dump",
        source=path,
        location=f"rank {rank}, times of calls {calls}",
        quote=f"the others wait for rank {rank} in {often:,} of "
        f"{len(table.seq):,} calls",
    )


def _remove_constant_delay(
    arrived: NDArray[np.float64],
) -> NDArray[np.float64]:
    """
    Remove constant delays of ranks, which may be clock offsets.
    """
    deviations = arrived - np.median(arrived, axis=0)
    constant = np.quantile(deviations, 0.1, axis=1, keepdims=True)
    varying: NDArray[np.float64] = arrived - constant
    return varying


def _delay_shares(
    delays: NDArray[np.float64],
    arrived: NDArray[np.float64],
    min_delay_ns: float,
    compared_ranks: int,
) -> NDArray[np.float64]:
    """
    Return which share of the time each rank costs, how much, and how often.

    Returns:
        One row (share, ns, calls) per rank; zeros for ranks that are no
        stragglers.
    """
    span = float(np.median(arrived[:, -1] - arrived[:, 0]))
    typical = np.array([_typical_delay(row) for row in delays])
    total = delays.sum(axis=1)
    share = total / max(span, 1.0)
    waits = delays > 0.1 * delays.max(initial=0)
    often = waits.sum(axis=1)
    to_blame = (
        (total >= _MIN_SHARE_OF_WAITS * total.sum())
        & (often >= max(_MIN_SHARE_OF_WAITS * waits.sum(), _MIN_WAITS))
        & (
            often
            >= _chance_limit(int(waits.sum()), len(delays), compared_ranks)
        )
        & (typical >= min_delay_ns)
        & (share < _MAX_SHARE_OF_TIME)
    )
    shares: NDArray[np.float64] = np.where(
        to_blame, [share, typical, often], 0.0
    ).T
    return shares


def _chance_limit(calls: int, ranks: int, compared_ranks: int) -> float:
    """
    Return how often one of *ranks* equal ranks may come last by chance.

    The more ranks are compared, the more often the unluckiest one comes last.
    """
    mean = calls / ranks
    deviation = np.sqrt(mean * (1 - 1 / ranks))
    sigmas = np.sqrt(_MIN_SIGMAS**2 + 2 * np.log(compared_ranks))
    return float(mean + sigmas * deviation)


def _host_delays(arrived: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return the wait of all others for each rank (row) in each call (column).
    """
    # A delay before a burst of calls counts once, not for each call.
    since_last = np.diff(arrived, axis=1, prepend=arrived[:, :1])
    delays: NDArray[np.float64] = np.minimum(
        _lead_over_others(arrived), np.maximum(since_last, 0)
    )
    return delays


def _lead_over_others(order: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return how far each rank (row) exceeds all others, per call; 0 if not.
    """
    top = np.sort(order, axis=0)[-2:]
    lead: NDArray[np.float64] = np.maximum(order - top[0], 0) * (
        order == top[1]
    )
    return lead


def _typical_delay(delays: NDArray[np.float64]) -> float:
    counts = delays[delays > 0.1 * delays.max(initial=0)]
    return float(np.median(counts)) if len(counts) else 0.0


def _straggler_finding(rank: int, delay: _Delay) -> Finding:
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


def _collect_call_times(job: Job, index: int) -> _CallTimes | None:
    ranks = [
        r for r in job.states[index].group.order if r in job.dumps.by_rank
    ]
    known = [s for r in ranks if (s := job.stream(r, index)) is not None]
    if len(ranks) < 2 or len(known) < len(ranks):
        return None

    common = common_numbers(s.seq for s in known)
    if len(common) < _MIN_CALLS:
        return None

    rows = [s.row[np.searchsorted(s.seq, common)] for s in known]
    cells = [
        (job.dumps[r].entries, at) for r, at in zip(ranks, rows, strict=True)
    ]
    return _CallTimes(
        group=job.states[index].group.ref,
        ranks=tuple(ranks),
        seq=common,
        created=np.array([e.created_ns[at] for e, at in cells], float),
        completed=np.array([e.completed_ns[at] for e, at in cells], float),
        duration_ms=np.array([e.duration_ms[at] for e, at in cells]),
    )


def host_of(dumps: Dumps, rank: int) -> str:
    """
    Return the host of a rank, or a unique name if it is unknown.
    """
    return dumps[rank].host or f"rank {rank}"


def clock_offsets_ns(
    completed: NDArray[np.float64], hosts: Sequence[object]
) -> tuple[NDArray[np.float64], float]:
    """
    Estimate how far the clock of each rank is ahead of the median clock.

    Args:
        completed: Time at which each rank (row) noticed the end of each
            collective (column), in nanoseconds; 0 where it did not.

        hosts: Host of each rank; ranks of a host share a clock.

    Returns:
        One offset per rank, and their uncertainty (one standard error), in
        nanoseconds.
    """
    if len(set(hosts)) == 1:
        return np.zeros(len(completed)), 0.0

    known = (completed > 0).all(axis=0)
    if not known.any():
        return np.zeros(len(completed)), np.inf

    ends = completed[:, known]
    deviations = ends - np.median(ends, axis=0)
    offsets = np.median(deviations, axis=1)
    noise = np.median(np.abs(deviations - offsets[:, None])) * 1.5
    doubt = float(max(1.5 * noise / np.sqrt(ends.shape[1]), _WATCHDOG_POLL_NS))
    by_host: dict[object, list[float]] = defaultdict(list)
    for host, offset in zip(hosts, offsets.tolist(), strict=True):
        by_host[host].append(offset)

    return np.array([np.median(by_host[h]) for h in hosts]), doubt
