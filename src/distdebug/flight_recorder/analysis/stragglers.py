"""
Find stragglers: ranks that arrive later than most others, again and again.

Clocks of hosts differ.  All ranks notice the end of a collective at the same
time, so arrival times are first corrected by these ends.

Who waits for a straggler in one group comes late to the next one, without being
slow.  So what counts is the excess over most others since the last call of the
same group, less the waits in other groups meanwhile, summed over all groups; this
is delay analysis (Böhme et al., Identifying the root causes of wait states, 2010).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...causes import Cause
from ...findings import Cost, Finding, GroupRef, Location, described
from ...ranks import ranks_text
from ...usercode import user_location
from ..reading.columns import Dumps
from .job import Job, common_numbers


# Fewer calls are not significant.
_MIN_CALLS = 8
_MIN_WAITS = 4
# A straggler causes this share of all waits that are as long …
_MIN_SHARE_OF_WAITS = 0.35
#: … and they cost this share of the time.
MIN_SHARE_OF_TIME = 0.03
# Of more ranks, those are looked at closely that cost most …
_MOST_SUSPECTS = 64
# … and the lines of so many are read, by so many of their stacks.
_MOST_SITES = 8
_MOST_STACKS = 8
# A node is slow as a whole if so many of its ranks are.
_MOST_OF_NODE = 0.75
# Ranks are late for one reason if they are so in so many of the same calls.
_MOST_TOGETHER = 0.5
_MOST_UNLIKE = 1.5
# Hosts jitter more than devices, and most where only what varies can be seen.
_MIN_HOST_DELAY_NS = 1_000_000
_MIN_VARYING_DELAY_NS = 3_000_000
_MIN_DEVICE_DELAY_NS = 100_000
# Fewer turns of other ranks do not show how long one is.
_MIN_TURNS = 3
# How probable it may be that chance makes any rank late as often.
_MAX_CHANCE = 0.005
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

        hosts: Host of each rank.

        host: When each rank came, by the clock that all share as far as is
            known.

        device: The same on the GPU, less the end of the call, if its duration
            was measured: the last one waits least.

        doubt: The uncertainty of the clocks.
    """

    group: GroupRef
    ranks: tuple[int, ...]
    hosts: Sequence[str]
    seq: NDArray[np.int64]
    rows: NDArray[np.int64]
    host: NDArray[np.float64]
    device: NDArray[np.float64] | None
    doubt: float = 0.0


@attrs.frozen(eq=False)
class _Delay:
    """
    Delay that one rank causes, most of it in one group.

    Attributes:
        share: Share of the time that is lost.

        total_ns: How long that is.

        ns: Typical delay per call.

        often: In how many calls the others wait.

        kind: ``"host"``, ``"device"``, or ``"rank"``: either of them.

        records: Where the rank was late, as positions in its dump.
    """

    share: float
    total_ns: float
    ns: float
    often: int
    kind: str
    table: _CallTimes
    records: NDArray[np.int64]

    @property
    def cost(self) -> Cost:
        """
        The same, rounded, in seconds.
        """
        return Cost(
            side=self.kind,
            seconds=round(self.total_ns / 1e9, 3),
            share=round(float(self.share), 4),
            per_call_s=round(self.ns / 1e9, 6),
            calls=int(self.often),
            of_calls=len(self.table.seq),
        )


def find_stragglers(job: Job, *, knows_arrivals: bool = True) -> list[Finding]:
    """
    Find ranks that are always late, and whether their host or device is slow.

    Args:
        knows_arrivals: Whether it is recorded when hosts made the calls; else
            only how long they took tells who came last.

    Returns:
        One finding per rank, or node of which all ranks are slow; the worst
        first.
    """
    tables = _collect_call_times(job)
    history = _History(job, tables)
    worst: dict[int, _Delay] = {}
    has_transfers = any(job.is_p2p(dump).any() for dump in job.dumps)
    both = _collect_waits(tables, history, has_transfers=has_transfers)
    for waits in both:
        for rank, delay in _find_late_ranks(waits, len(job.dumps)):
            if rank not in worst or delay.share > worst[rank].share:
                worst[rank] = delay
    if len(worst) > 1 and (
        has_transfers
        or (
            2 * len(worst) >= len(job.dumps) and _are_late_together(job, worst)
        )
    ):
        return []  # a stage of a pipeline, or too many to be the exception
    ordered = dict(sorted(worst.items(), key=lambda item: -item[1].share))
    late = {rank: delay.records for rank, delay in ordered.items()}
    sites = find_call_sites(job, late)
    if not knows_arrivals:
        ordered = {r: attrs.evolve(d, kind="rank") for r, d in ordered.items()}
    return [
        _straggler_finding(job, ranks, node, ordered[ranks[0]], sites)
        for ranks, node in _merge_nodes(job, ordered)
    ]


class _History:
    """
    What each rank did between two calls of a group.
    """

    def __init__(self, job: Job, tables: Sequence[_CallTimes]) -> None:
        self._of_all = [
            (table.ranks, table.host)
            for table in tables
            if len(table.ranks) == len(job.dumps)
        ]
        entries = {rank: job.dumps[rank].entries for rank in job.dumps.ranks}
        spans = {rank: np.zeros((2, len(e))) for rank, e in entries.items()}
        # A rank does not compute while it sends or receives.
        waits = {
            dump.rank: np.where(
                job.is_p2p(dump),
                np.nan_to_num(dump.entries.duration_ms) * 1e6,
                0.0,
            )
            for dump in job.dumps
        }
        for table in tables:
            order = table.host if table.device is None else table.device
            for rank, rows, came in zip(
                table.ranks, table.rows, order, strict=True
            ):
                if table.device is None:
                    spans[rank][:, rows] = came, order.max(axis=0)
                else:
                    waits[rank][rows] = order.max(axis=0) - came
        self._waited = {
            rank: _total_waits(spans[rank], waits[rank]) for rank in entries
        }
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
        offsets: NDArray[np.float64] = choices[least, np.arange(len(least))]
        return offsets[:, None]

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

    def count_once(self, waits: Sequence[_Waits]) -> None:
        """
        Count a delay once, where a rank is late before a burst of calls, and so
        in all of them.
        """
        rows: dict[int, list[tuple[NDArray[np.int64], NDArray[np.float64]]]]
        rows = defaultdict(list)
        for table, own, _, _ in waits:
            if table.device is None:
                for rank, at, times in zip(
                    table.ranks, table.rows, own, strict=True
                ):
                    rows[rank].append((at, times))
        for rank, found in rows.items():
            times = np.zeros(len(self._created[rank]))
            for at, own in found:
                times[at] = own
            late = np.flatnonzero(times)
            times[late] = _new_delays(times[late], self._created[rank][late])
            for at, own in found:
                own[:] = times[at]


def _new_delays(
    delays: NDArray[np.float64], created: NDArray[np.int64]
) -> NDArray[np.float64]:
    """
    Return the delays less what is left of earlier ones.

    Args:
        delays: Of one rank, in order.

        created: When it entered these calls.
    """
    since = np.diff(created.astype(float), prepend=-np.inf)
    # Within a burst, only what exceeds the largest delay so far is new.
    is_new = since >= delays
    shift = np.cumsum(is_new) * (delays.max(initial=0) + 1)
    largest = np.maximum.accumulate(delays + shift)
    before = np.concatenate([[0.0], largest[:-1]]) - shift
    excess = delays - np.maximum(before, 0)
    return np.where(
        is_new, delays, np.maximum(excess, np.clip(since, 0, None))
    )


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


class _Waits(NamedTuple):
    """
    How long each rank (row) let the others of a group wait, per call.
    """

    table: _CallTimes
    own: NDArray[np.float64]
    is_host: NDArray[np.bool_]
    max_share: float

    @property
    def family(self) -> object:
        """
        Return what is equal for groups that do the same at the same time.
        """
        group = self.table.group
        return described(group.desc), *self.table.rows.shape


def _collect_waits(
    tables: Sequence[_CallTimes], history: _History, *, has_transfers: bool
) -> tuple[list[_Waits], list[_Waits]]:
    """
    Return waits by the clocks as they are, and without what is always the same.

    The second is for hosts only: a rank that is late by the same in every call
    may have a clock that is ahead.
    """
    as_known, varying = [], []
    # What ranks wait for in a pipeline is in no table: its last stage is always
    # late, all ranks of it together.
    most_late = 1 if has_transfers else None
    for table in tables:
        held = history.held(table)
        on_host = _own_delays(table.host, held, most_late)
        every = np.ones(len(table.ranks), bool)
        if table.device is not None:
            own = _own_delays(table.device, held, most_late)
            by_host = np.minimum(on_host, own).sum(axis=1)
            is_host = by_host > own.sum(axis=1) / 2
            own = _at_least(own, _MIN_DEVICE_DELAY_NS)
            as_known.append(_Waits(table, own, is_host, np.inf))
            continue

        # Half of what is asked for may be a clock that is ahead in all calls.
        doubt_ns = MIN_DOUBT_FACTOR * table.doubt / 2
        most = _MAX_SHARE_OF_TIME if table.doubt else np.inf
        own = _at_least(on_host - doubt_ns, max(doubt_ns, _MIN_HOST_DELAY_NS))
        as_known.append(_Waits(table, own, every, most))
        by_offsets = table.host - history.offsets(table)
        own = _own_delays(by_offsets, held, most_late)
        own = _at_least(own, _MIN_VARYING_DELAY_NS)
        varying.append(_Waits(table, own, every, most))
    history.count_once(as_known)
    history.count_once(varying)
    return as_known, varying


def _at_least(
    delays: NDArray[np.float64], least: float
) -> NDArray[np.float64]:
    """
    Return the delays that count; those of the first call are of the start.
    """
    counted = np.where(delays >= least, delays, 0.0)
    counted[:, 0] = 0.0
    return counted


def _own_delays(
    order: NDArray[np.float64],
    held: NDArray[np.float64],
    most_late: int | None,
) -> NDArray[np.float64]:
    """
    Return how late each rank (row) is, less what held it in other groups.
    """
    # Fewer than half may be late; half, if no other group can have held them.
    count = len(order)
    most = most_late or max((count - bool(held.any())) // 2, 1)
    own: NDArray[np.float64] = np.minimum(
        _lateness(order, most), _lateness(order - held, most)
    )
    return own


def _lateness(
    order: NDArray[np.float64], most_late: int
) -> NDArray[np.float64]:
    """
    Return by how much each rank (row) is later than most others, per call.
    """
    bulk = len(order) - 1 - most_late
    late: NDArray[np.float64] = np.maximum(
        order - np.partition(order, bulk, axis=0)[bulk], 0
    )
    return late


def _constant_delays(arrived: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Return by how much each rank is late at least, which may be a clock offset.

    Calls that it enters unusually early do not count.
    """
    deviations = arrived - np.median(arrived, axis=0)
    middle = np.median(deviations, axis=1)
    spread = np.median(np.abs(deviations - middle[:, None]), axis=1)
    least = np.quantile(deviations, 0.1, axis=1)
    constant: NDArray[np.float64] = np.maximum(least, middle - 2 * spread)
    return constant


def _find_late_ranks(
    waits: Sequence[_Waits], compared_ranks: int
) -> Iterator[tuple[int, _Delay]]:
    """
    Yield the ranks that let others wait by habit, and what that costs.
    """
    longest: dict[object, NDArray[np.float64]] = {}
    for one in waits:
        so_far = longest.get(one.family, np.zeros(1))
        longest[one.family] = np.maximum(so_far, one.own.max(axis=0))
    costs, rows = _sum_waits(waits)
    suspects = [r for r, cost in costs.items() if cost >= MIN_SHARE_OF_TIME]
    suspects.sort(key=lambda rank: -costs[rank])
    for rank in suspects[:_MOST_SUSPECTS]:
        _, index, row = max(rows[rank])
        own = [(waits[i], at) for _, i, at in rows[rank]]
        delay = _make_delay(own, costs[rank], waits[index], row)
        least = delay.ns / 4
        # Waits that are as long, whoever caused them.
        alike = sum(t[t >= least].sum() for t in longest.values())
        if (
            not MIN_SHARE_OF_TIME <= delay.share < waits[index].max_share
            or delay.total_ns < _MIN_SHARE_OF_WAITS * alike
        ):
            continue
        culprits = _culprits_of_long_waits(waits, longest, least)
        often = int((culprits == rank).sum())
        turn = _mean_turn(culprits, rank)
        if often >= _MIN_WAITS and not _is_chance(
            often / turn, len(culprits) / turn, compared_ranks
        ):
            yield rank, attrs.evolve(delay, often=often)


def _make_delay(
    own: Sequence[tuple[_Waits, int]], cost: float, worst: _Waits, row: int
) -> _Delay:
    """
    Return what a rank costs, without waits much shorter than is typical.
    """
    every = np.concatenate([waits.own[at] for waits, at in own])
    typical = _typical_delay(every)
    total = float(every[every >= typical / 4].sum())
    return _Delay(
        share=cost * total / float(every.sum()),
        total_ns=total,
        ns=typical,
        often=0,
        kind="host" if worst.is_host[row] else "device",
        table=worst.table,
        records=worst.table.rows[row][worst.own[row] >= typical / 4],
    )


def _culprits_of_long_waits(
    waits: Sequence[_Waits],
    longest: Mapping[object, NDArray[np.float64]],
    least: float,
) -> NDArray[np.int64]:
    """
    Return who caused each wait that is long, and about the longest of the groups
    alike, in the order of time.
    """
    times, ranks = [], []
    for one in waits:
        own, top = one.own, longest[one.family]
        rows, calls = np.nonzero((own >= least) & (own >= top / 2))
        times.append(one.table.host[rows, calls])
        ranks.append(np.array(one.table.ranks)[rows])
    return np.concatenate(ranks)[np.argsort(np.concatenate(times))]


def _mean_turn(culprits: NDArray[np.int64], rank: int) -> float:
    """
    Return how many long waits in a row another rank causes before the next one.

    Where ranks take turns of several calls, as many are one draw, not several.
    """
    starts = np.flatnonzero(np.diff(culprits, prepend=-1))
    lengths = np.diff(starts, append=len(culprits))
    others = lengths[culprits[starts] != rank]
    return float(others.mean()) if len(others) >= _MIN_TURNS else 1.0


def _sum_waits(
    waits: Sequence[_Waits],
) -> tuple[dict[int, float], dict[int, list[tuple[float, int, int]]]]:
    """
    Return the share of the time that each rank costs, and where.

    Returns:
        The shares; and for each rank the sums, as ``(ns, index, row)``.
    """
    rows: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    spans: dict[int, float] = defaultdict(lambda: 1.0)
    for index, (table, own, _, _) in enumerate(waits):
        span = float(np.median(table.host[:, -1] - table.host[:, 0]))
        totals = own.sum(axis=1).tolist()
        for row, (rank, total) in enumerate(
            zip(table.ranks, totals, strict=True)
        ):
            spans[rank] = max(spans[rank], span)
            if total:
                rows[rank].append((total, index, row))
    costs = {
        rank: sum(total for total, _, _ in found) / spans[rank]
        for rank, found in rows.items()
    }
    return costs, rows


def _is_chance(often: float, total: float, ranks: int) -> bool:
    """
    Return whether one of equal ranks may be late so often by chance.

    That is Chernoff's bound for a binomial distribution, for each of the ranks.
    """
    share, expected = often / total, 1 / ranks
    if share <= expected:
        return True
    divergence = share * np.log(share / expected)
    if share < 1:
        divergence += (1 - share) * np.log((1 - share) / (1 - expected))
    return bool(np.log(ranks) - total * divergence > np.log(_MAX_CHANCE))


def _typical_delay(delays: NDArray[np.float64]) -> float:
    return float(np.median(delays[delays > 0.1 * delays.max()]))


def _are_late_together(job: Job, delays: Mapping[int, _Delay]) -> bool:
    """
    Return whether ranks are late at the same times, and by the same.
    """
    delays_ns = [delay.ns for delay in delays.values()]
    if max(delays_ns) > _MOST_UNLIKE * min(delays_ns):
        return False
    (first, own), *others = (
        (job.dumps[rank].entries.created_ns[delay.records], delay.ns)
        for rank, delay in delays.items()
    )
    for times, _ in others:
        after = np.searchsorted(times, first).clip(1, len(times) - 1)
        near = [np.abs(times[at] - first) for at in (after - 1, after)]
        if (np.minimum(*near) <= own).mean() < _MOST_TOGETHER:
            return False
    return True


def _merge_nodes(
    job: Job, delays: Mapping[int, _Delay]
) -> Iterator[tuple[tuple[int, ...], str]]:
    """
    Yield slow ranks in their order; those of a node that is slow together.

    Returns:
        The ranks, and their node where it is slow as a whole.
    """
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in job.dumps.ranks:
        by_host[host_of(job.dumps, rank)].append(rank)
    seen: set[int] = set()
    for rank in delays:
        if rank in seen:
            continue
        host = host_of(job.dumps, rank)
        ranks = by_host[host]
        late = sum(r in delays for r in ranks)
        if (
            len(by_host) > 2
            and late > 1
            and late >= _MOST_OF_NODE * len(ranks)
        ):
            seen.update(ranks)
            yield (rank, *(r for r in ranks if r != rank)), host
        else:
            seen.add(rank)
            yield (rank,), ""


def find_call_sites(
    job: Job, records: Mapping[int, NDArray[np.int64]]
) -> dict[int, Location]:
    """
    Return the user's line from which each rank makes most of these calls.
    """
    wanted = {
        rank: rows[:: len(rows) // _MOST_STACKS + 1].tolist()
        for rank, rows in islice(records.items(), _MOST_SITES)
    }
    sites = {}
    for rank, stacks in job.dumps.frames_of(wanted).items():
        lines = Counter(filter(None, map(user_location, stacks)))
        if lines:
            sites[rank] = lines.most_common(1)[0][0]
    return sites


_ADVICE = {
    "host": "data loading, CPU limits, other processes",
    "device": "clocks, temperature, ECC errors, other processes",
    "rank": "data loading, CPU limits, other processes; clocks of the GPU, "
    "its temperature, ECC errors",
}


def _straggler_finding(
    job: Job,
    ranks: tuple[int, ...],
    node: str,
    delay: _Delay,
    sites: Mapping[int, Location],
) -> Finding:
    worst, table, seq = ranks[0], delay.table, delay.table.seq
    is_open = delay.kind == "rank"
    who, it = (ranks_text(ranks), "them") if node else (f"rank {worst}", "it")
    what = _slow_text(who, delay.kind, node)
    site = sites.get(worst)
    before = f" before its call at {site.brief}" if site else ""
    # Where calls follow each other by guess, more time may be between them.
    most = "up to " if is_open else ""
    # Otherwise a clock may be ahead.
    is_timed = table.device is not None or np.isfinite(table.doubt)
    return Finding(
        cause=Cause.STRAGGLER,
        ranks=tuple(sorted(ranks)),
        summary=f"{what}{before}: all others wait {delay.ns / 1e6:,.1f} ms for "
        f"{it} again and again in group {str(table.group)!r}, "
        f"{most}{delay.share:.0%} of the time ({delay.total_ns / 1e9:,.1f} s)",
        confidence="likely" if is_timed else "possible",
        remedy=f"compare {who if is_open else f'the {delay.kind} of {who}'} "
        "with the others: "
        f"{_ADVICE[delay.kind]}",
        location=site,
        group=table.group,
        cost=delay.cost,
        evidence=(
            job.evidence(
                worst,
                f"times of calls #{seq[0]} to #{seq[-1]}",
                f"the others wait for rank {worst} in {delay.often:,} of "
                f"{len(seq):,} calls",
            ),
        ),
    )


def _slow_text(who: str, kind: str, node: str) -> str:
    if kind == "rank":
        where = ""
    else:
        where = f" on their {kind}s" if node else f" on its {kind}"
    if node:
        return f"{who} are slow{where}, all on {clean(node)}"
    return f"{who} is slow{where}"


def _collect_call_times(job: Job) -> list[_CallTimes]:
    """
    Return the times of each group of which all ranks are known.
    """
    found = [
        times
        for index in range(len(job.states))
        if (times := _read_times(job, index))
    ]
    if not found:
        return []

    # The clock of a host is the same in all groups; the largest shows it best.
    largest, ends = max(found, key=lambda x: len(x[0].ranks))
    offsets, doubt = clock_offsets_ns(ends, largest.hosts)
    clocks = dict(zip(largest.hosts, offsets.tolist(), strict=True))
    return [_correct(*x, clocks, doubt) for x in found]


def _correct(
    times: _CallTimes,
    ends: NDArray[np.float64],
    clocks: Mapping[str, float],
    doubt: float,
) -> _CallTimes:
    """
    Return the times by the clock that all ranks share.
    """
    hosts = set(times.hosts)
    if not clocks.keys() >= hosts:
        offsets, doubt = clock_offsets_ns(ends, times.hosts)
    else:
        offsets = np.array([clocks[host] for host in times.hosts])
        doubt = doubt if len(hosts) > 1 else 0.0
    return attrs.evolve(
        times,
        host=times.host - offsets[:, None],
        doubt=0.0 if _is_exact(ends - offsets[:, None]) else doubt,
    )


def _read_times(
    job: Job, index: int
) -> tuple[_CallTimes, NDArray[np.float64]] | None:
    """
    Return the times of a group by the clocks of its hosts, and when each rank
    (row) noticed the end of each call (column).
    """
    group = job.states[index].group
    ranks = [r for r in group.order if r in job.dumps.by_rank]
    known = [s for r in ranks if (s := job.stream(r, index)) is not None]
    if len(ranks) < 2 or len(known) < len(ranks):
        return None

    common = common_numbers(s.seq for s in known)
    if len(common) < _MIN_CALLS:
        return None

    rows = [s.row[np.searchsorted(s.seq, common)] for s in known]
    created, completed, duration_ms = (
        np.array(
            [
                getattr(job.dumps[rank].entries, name)[at]
                for rank, at in zip(ranks, rows, strict=True)
            ],
            float,
        )
        for name in ("created_ns", "completed_ns", "duration_ms")
    )
    # Durations do not depend on clocks, so they outweigh arrival times.
    is_measured = bool(np.isfinite(duration_ms).all())
    times = _CallTimes(
        group=group.ref,
        ranks=tuple(ranks),
        hosts=[host_of(job.dumps, rank) for rank in ranks],
        seq=common,
        rows=np.array(rows),
        host=created,
        device=-duration_ms * 1e6 if is_measured else None,
    )
    return times, completed


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
    by_host: dict[object, list[float]] = defaultdict(list)
    for host, offset in zip(hosts, offsets.tolist(), strict=True):
        by_host[host].append(offset)
    # Each rank has a watchdog of its own; the median of several is nearer.
    fewest = min(map(len, by_host.values()))
    polled = _POLL_DOUBT_NS * np.sqrt(8 / min(fewest, 8))
    doubt = float(max(1.5 * noise / np.sqrt(ends.shape[1]), polled))
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
