"""
Find stragglers: ranks that are the last to arrive again and again.

Clocks of hosts differ.  All ranks notice the end of a collective at the same
time, so arrival times are first corrected by these ends.

Who waits for a straggler in one group comes late to the next one, without being
slow.  So what counts is the excess over the others since the last call of the
same group, less the waits in other groups meanwhile; this is delay analysis
(Böhme et al., Identifying the root causes of wait states, 2010) for groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ...causes import Cause
from ...findings import Evidence, Finding, GroupRef
from ..reading.columns import Dumps
from .job import Job, common_numbers


# Fewer calls are not significant.
_MIN_CALLS = 8
_MIN_WAITS = 4
# A straggler causes this share of all waits, by number and by time …
_MIN_SHARE_OF_WAITS = 0.6
# … and they cost this share of the time.
_MIN_SHARE_OF_TIME = 0.03
# Hosts jitter by some milliseconds; devices do not.
_MIN_HOST_DELAY_NS = 5_000_000
_MIN_DEVICE_DELAY_NS = 100_000
# Minimum significance of coming last, in standard deviations.
_MIN_SIGMAS = 3
# A larger share is a clock offset, not a delay, where clocks are in doubt.
_MAX_SHARE_OF_TIME = 0.95
# A watchdog looks for the ends of calls every 100 ms.  If it does so in step with
# the job, averaging does not remove that it is late by up to as much.
_POLL_NS = 100_000_000
_POLL_DOUBT_NS = 12_000_000
# Ends that ranks notice within this time of each other, and that do not come in
# step with a watchdog, were not found by looking now and then.
_EXACT_NS = 1_000_000
_MAX_PHASE_NS = 5_000_000
#: A delay has to exceed the uncertainty of the clocks by this factor.
MIN_DOUBT_FACTOR = 4


@attrs.frozen(kw_only=True, eq=False)
class _CallTimes:
    """
    Times of the calls that all members of a group have on record.

    Arrays have one row per rank and one column per call; times are in
    nanoseconds.

    Attributes:
        rows: Indices of the calls among the records of each rank.

        host: When each rank came, by the clock that all share as far as is
            known.

        doubt: The uncertainty of these clocks.

        device: The same on the GPU, less the end of the call, if its duration
            was measured: the last one waits least.
    """

    group: GroupRef
    ranks: tuple[int, ...]
    seq: NDArray[np.int64]
    rows: NDArray[np.int64]
    host: NDArray[np.float64]
    doubt: float
    device: NDArray[np.float64] | None


class _Delay(NamedTuple):
    """
    Delay that one rank causes in one group.

    Attributes:
        share: Share of the time that is lost.

        ns: Typical delay per call.

        often: In how many calls the others wait.

        kind: ``"host"`` or ``"device"``.
    """

    share: float
    ns: float
    often: float
    kind: str
    table: _CallTimes


def find_stragglers(job: Job) -> list[Finding]:
    """
    Find ranks that are always late, and whether their host or device is slow.

    Returns:
        One finding per rank, the worst first.
    """
    tables = [
        t for i in range(len(job.states)) if (t := _collect_call_times(job, i))
    ]
    history = _History(job, tables)
    worst: dict[int, _Delay] = {}
    for table in tables:
        shares, is_host = _shares(table, history)
        for rank, (share, ns, often), host in zip(
            table.ranks, shares.tolist(), is_host.tolist(), strict=True
        ):
            least = worst[rank].share if rank in worst else _MIN_SHARE_OF_TIME
            if share >= least:
                kind = "host" if host else "device"
                worst[rank] = _Delay(share, ns, often, kind, table)
    ordered = sorted(worst.items(), key=lambda item: -item[1].share)
    return [_straggler_finding(job, rank, delay) for rank, delay in ordered]


class _History:
    """
    What each rank did between two calls of a group.

    Attributes:
        compared_ranks: How many ranks there are.
    """

    def __init__(self, job: Job, tables: Sequence[_CallTimes]) -> None:
        self.compared_ranks = len(job.dumps)
        self._of_all = [
            (table.ranks, table.host)
            for table in tables
            if len(table.ranks) == self.compared_ranks
        ]
        entries = {rank: job.dumps[rank].entries for rank in job.dumps.ranks}
        spans = {rank: np.zeros((2, len(e))) for rank, e in entries.items()}
        waits = {rank: np.zeros(len(e)) for rank, e in entries.items()}
        known = {rank: np.zeros(len(e), bool) for rank, e in entries.items()}
        for table in tables:
            order = table.host if table.device is None else table.device
            for rank, rows, came in zip(
                table.ranks, table.rows, order, strict=True
            ):
                known[rank][rows] = True
                if table.device is None:
                    spans[rank][:, rows] = came, order.max(axis=0)
                else:
                    waits[rank][rows] = order.max(axis=0) - came
        self._waited = {
            rank: _total_waits(spans[rank], waits[rank]) for rank in entries
        }
        self._known = {rank: np.flatnonzero(k) for rank, k in known.items()}
        self._created = {rank: e.created_ns for rank, e in entries.items()}

    @cached_property
    def _delays_in_all(self) -> list[dict[int, float]]:
        return [
            dict(zip(ranks, _constant_delays(host).tolist(), strict=True))
            for ranks, host in self._of_all
        ]

    def offsets(self, table: _CallTimes) -> NDArray[np.float64]:
        """
        Return by how much the clock of each rank may be ahead of the others'.

        It is so in all groups alike, so the least delay counts.
        """
        known = [
            _constant_delays(table.host),
            *(
                np.array([delays[rank] for rank in table.ranks])
                for delays in self._delays_in_all
            ),
        ]
        choices = np.array([delays - np.median(delays) for delays in known])
        least = np.abs(choices).argmin(axis=0)
        offsets: NDArray[np.float64] = np.take_along_axis(
            choices, least[None, :], axis=0
        )
        return offsets.T

    def held(self, table: _CallTimes) -> NDArray[np.float64]:
        """
        Return how long ranks waited in other groups since the call before.
        """
        held = np.zeros(table.rows.shape)
        for rank, rows, times in zip(
            table.ranks, table.rows, held, strict=True
        ):
            total = self._waited[rank]
            times[1:] = total[rows[1:]] - total[rows[:-1] + 1]
        return held

    def since_last(self, table: _CallTimes) -> NDArray[np.float64]:
        """
        Return how long before each call a rank had entered another one.
        """
        since = np.zeros(table.rows.shape)
        for rank, rows, times in zip(
            table.ranks, table.rows, since, strict=True
        ):
            calls, created = self._known[rank], self._created[rank]
            before = calls[np.maximum(np.searchsorted(calls, rows) - 1, 0)]
            times[:] = created[rows] - created[before]
        return since


def _total_waits(
    spans: NDArray[np.float64], waits: NDArray[np.float64]
) -> NDArray[np.float64]:
    """
    Return how long a rank has waited before each record, and after all.

    Args:
        spans: From when to when its host waited in each record; 0 if unknown.

        waits: How long its GPU did; 0 if unknown.
    """
    starts, ends = spans
    # A host may enter several calls before it waits for the first of them.
    before = np.maximum.accumulate(np.concatenate([[0.0], ends[:-1]]))
    waited = waits + np.maximum(ends - np.maximum(starts, before), 0)
    return np.concatenate([[0.0], np.cumsum(waited)])


def _shares(
    table: _CallTimes, history: _History
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """
    Return the shares of :func:`_delay_shares`, and whose host is slow.
    """
    held = history.held(table)
    # A delay before a burst of calls counts once, not for each call.
    since_last = np.maximum(history.since_last(table), 0)
    has_clock = table.device is not None or not table.doubt
    shares_of = partial(
        _delay_shares,
        arrived=table.host,
        compared_ranks=history.compared_ranks,
        max_share=np.inf if has_clock else _MAX_SHARE_OF_TIME,
    )
    on_host = np.minimum(_own_delays(table.host, held), since_last)
    if table.device is not None:
        on_device = _own_delays(table.device, held)
        is_host = on_host.sum(axis=1) > on_device.sum(axis=1) / 2
        return shares_of(on_device, min_delay_ns=_MIN_DEVICE_DELAY_NS), is_host

    doubt_ns = max(MIN_DOUBT_FACTOR * table.doubt, _MIN_HOST_DELAY_NS)
    varying = _own_delays(table.host - history.offsets(table), held)
    shares = np.maximum(
        shares_of(on_host, min_delay_ns=doubt_ns),
        shares_of(
            np.minimum(varying, since_last), min_delay_ns=_MIN_HOST_DELAY_NS
        ),
    )
    return shares, np.ones(len(table.ranks), bool)


def _own_delays(
    order: NDArray[np.float64], held: NDArray[np.float64]
) -> NDArray[np.float64]:
    """
    Return the lead of each rank (row), less what held it in other groups.
    """
    own: NDArray[np.float64] = np.minimum(
        _lead_over_others(order), _lead_over_others(order - held)
    )
    return own


def _constant_delays(arrived: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return by how much each rank is late at least, which may be a clock offset.
    """
    deviations = arrived - np.median(arrived, axis=0)
    constant: NDArray[np.float64] = np.quantile(deviations, 0.1, axis=1)
    return constant


def _delay_shares(
    delays: NDArray[np.float64],
    arrived: NDArray[np.float64],
    min_delay_ns: float,
    compared_ranks: int,
    max_share: float,
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
        & (share < max_share)
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


def _straggler_finding(job: Job, rank: int, delay: _Delay) -> Finding:
    table, seq = delay.table, delay.table.seq
    # Otherwise a clock may be ahead.
    is_timed = table.device is not None or np.isfinite(table.doubt)
    advice = {
        "host": "data loading, CPU limits, other processes",
        "device": "clocks, temperature, ECC errors, other processes",
    }[delay.kind]
    return Finding(
        cause=Cause.STRAGGLER,
        ranks=(rank,),
        summary=f"rank {rank} is slow on its {delay.kind}: all others wait "
        f"{delay.ns / 1e6:,.1f} ms for it again and again in group "
        f"{str(table.group)!r}, {delay.share:.0%} of the time",
        confidence="likely" if is_timed else "possible",
        remedy=f"compare the {delay.kind} of rank {rank} with the others: "
        f"{advice}",
        group=table.group,
        evidence=(
            Evidence(
                kind="dump",
                source=job.dumps[rank].path,
                location=f"rank {rank}, times of calls #{seq[0]} to #{seq[-1]}",
                quote=f"the others wait for rank {rank} in "
                f"{int(delay.often):,} of {len(seq):,} calls",
            ),
        ),
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
    created = np.array([e.created_ns[at] for e, at in cells], float)
    completed = np.array([e.completed_ns[at] for e, at in cells], float)
    duration_ms = np.array([e.duration_ms[at] for e, at in cells])
    hosts = [host_of(job.dumps, rank) for rank in ranks]
    offsets, doubt = clock_offsets_ns(completed, hosts)
    # Durations do not depend on clocks, so they outweigh arrival times.
    is_measured = bool(np.isfinite(duration_ms).all())
    return _CallTimes(
        group=job.states[index].group.ref,
        ranks=tuple(ranks),
        seq=common,
        rows=np.array(rows),
        host=created - offsets[:, None],
        doubt=0.0 if _is_exact(completed - offsets[:, None]) else doubt,
        device=-duration_ms * 1e6 if is_measured else None,
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
    doubt = float(max(1.5 * noise / np.sqrt(ends.shape[1]), _POLL_DOUBT_NS))
    by_host: dict[object, list[float]] = defaultdict(list)
    for host, offset in zip(hosts, offsets.tolist(), strict=True):
        by_host[host].append(offset)

    return np.array([np.median(by_host[h]) for h in hosts]), doubt


def _is_exact(ends: NDArray[np.float64]) -> bool:
    """
    Return whether ranks noticed the ends of calls when they came.

    A watchdog that looks for them now and then finds them at different times, or
    always in step with it.

    Args:
        ends: By clocks that agree; one row per rank, one column per call.
    """
    known = (ends > 0).all(axis=0)
    if known.sum() < _MIN_CALLS:
        return False

    ends = ends[:, known]
    middle = np.median(ends, axis=0)
    between = np.diff(middle)
    phase = np.abs(between - np.round(between / _POLL_NS) * _POLL_NS)
    is_in_step = float(np.median(phase)) < _MAX_PHASE_NS
    return not is_in_step and float(np.abs(ends - middle).max()) < _EXACT_NS
