"""
Find delays: slow links, stragglers, and what NCCL Inspector recorded.

The rank that comes last to a transfer does not wait in it, so the shorter of the
durations of its two ends is what the transfer itself took.  That needs durations
on the device (``timing=True``), and the hosts of all ranks.  A slow rank comes
late, but its transfers take no longer.

NCCL Inspector records only calls that completed, so it shows delays, and no hang.
The rank whose call took the shortest came last, and the others waited for it.
Only a verbose file says when a call was made.  Without that it is not known
whether the host or the device is slow, nor in which order a rank used several
communicators; so only the rank that costs most is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...causes import Cause
from ...findings import Cost, Finding, Missing, costly
from ...ranks import ranks_text
from ..reading.columns import Dumps, RankDump
from .job import Job, Side, find_batches
from .stragglers import MIN_SHARE_OF_TIME, find_call_sites, find_stragglers


# Fewer transfers or pairs of nodes are not significant.
_MIN_TRANSFERS = 8
_MIN_PAIRS = 3
# Links of one kind differ by less.
_MIN_FACTOR = 2.0
# More slow links than this share are a matter of topology.
_MAX_SLOW_PAIRS = 0.25
# Files are written now and then, and clocks of hosts differ.
_MIN_SILENCE_NS = 60_000_000_000
_MOST_SILENT = 4
_SILENT_REMEDY = (
    "see whether these processes still run, and take their stacks: they were "
    "killed or stopped, or their records were lost"
)


def find_delays(job: Job) -> list[Finding]:
    """
    Find slow links and stragglers.

    Returns:
        The findings, the most expensive first; those of NCCL Inspector only if
        the dumps show none.
    """
    return [
        *find_slow_links(job),
        *find_stragglers(job),
    ] or _find_inspected_delays(job.dumps)


def _find_inspected_delays(dumps: Dumps) -> list[Finding]:
    """
    Find slow links, stragglers, and ranks that stopped recording.
    """
    if not dumps.inspector:
        return []

    own = attrs.evolve(
        dumps,
        by_rank=dumps.inspector,
        inspector={},
        sidecars={},
        earlier={},
        world_size=None,
        read_frames=None,  # none are recorded
    )
    job = Job(own)
    knows_arrivals = _has_times(own)
    late = find_stragglers(job, knows_arrivals=knows_arrivals)
    communicators = {g.name.partition(" ")[0] for g in job.groups}
    if not knows_arrivals and len(communicators) > 1:
        late = [attrs.evolve(f, confidence="possible") for f in late[:1]]
    return [*find_slow_links(job), *late, *_find_silent(job)]


def inspector_notes(dumps: Dumps) -> Iterator[Missing]:
    """
    Yield what files of NCCL Inspector do not show.
    """
    if dumps.inspector and not _has_times(dumps):
        yield Missing(
            what="calls",
            reason="NCCL Inspector did not record when calls were made "
            "(NCCL_INSPECTOR_DUMP_VERBOSE=1): whether a host or a device is slow "
            "is not known, and shares may be of the time in calls only",
        )


def _has_times(dumps: Dumps) -> bool:
    found = [*dumps.inspector.values()] or [*dumps]
    return all(bool((d.entries.started_ns > 0).all()) for d in found)


def _find_silent(job: Job) -> Iterator[Finding]:
    """
    Yield ranks that recorded nothing more while the others went on.
    """
    ends = {dump.rank: dump.last_activity_ns for dump in job.dumps}
    last = float(np.median([*ends.values()]))
    silent = [r for r, end in ends.items() if end < last - _MIN_SILENCE_NS]
    behind = sorted(_ranks_behind(job).intersection(silent))
    if not behind or 2 * len(behind) >= len(ends):
        return

    seconds = (last - max(ends[rank] for rank in behind)) / 1e9
    yield Finding(
        cause=Cause.UNKNOWN,
        ranks=tuple(behind),
        summary=f"the last call that NCCL Inspector recorded of "
        f"{ranks_text(behind)} is {seconds:,.0f} s before that of the others, "
        "which have made more calls since",
        confidence="possible",
        remedy=_SILENT_REMEDY,
        evidence=tuple(
            job.evidence(
                rank, "the last record", _newest_text(job.dumps, rank)
            )
            for rank in behind[:_MOST_SILENT]
        ),
    )


def _ranks_behind(job: Job) -> set[int]:
    """
    Return the ranks of which others of a group recorded later calls.
    """
    behind: set[int] = set()
    for state in job.states:
        last = max((p.last for p in state.positions.values()), default=0)
        behind |= {p.rank for p in state.positions.values() if p.last < last}
    return behind


def _newest_text(dumps: Dumps, rank: int) -> str:
    entries = dumps[rank].entries
    group, desc = dumps.groups[entries.group[-1]]
    return f"#{entries.op_id[-1]} of {desc or group}"


class _Transfers(NamedTuple):
    """
    Transfers from one rank to another, on another node.

    Attributes:
        nodes: The two nodes, in alphabetical order.

        rows: Records of the rank that receives.

        sizes: Number of elements, as a power of two.

        seconds: How long each takes once both ranks are there.
    """

    source: int
    target: int
    group: int
    nodes: tuple[str, ...]
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seconds: NDArray[np.float64]


def find_slow_links(job: Job) -> list[Finding]:
    """
    Find pairs of nodes, or nodes, whose transfers take longer than the others'.

    Returns:
        One finding per link; the most expensive first.
    """
    by_pair: dict[tuple[str, ...], list[_Transfers]] = defaultdict(list)
    for transfers in _measured_transfers(job):
        by_pair[transfers.nodes].append(transfers)
    if len(by_pair) < _MIN_PAIRS:
        return []

    typical = _typical_seconds(by_pair)
    slow = {
        nodes: own
        for nodes, own in by_pair.items()
        if _slowness(own, typical) >= _MIN_FACTOR
    }
    return costly(
        finding
        for nodes, own in _merge_pairs(slow, by_pair)
        if (finding := _explain(job, nodes, own, typical))
    )


def _measured_transfers(job: Job) -> Iterator[_Transfers]:
    """
    Yield the transfers between nodes whose durations are on record.
    """
    durations: dict[int, NDArray[np.float64]] = {}
    for c in job.channels:
        if c.send is None or c.recv is None:
            continue
        ends = [job.dumps[rank] for rank in (c.source, c.target)]
        hosts = {dump.host for dump in ends}
        if len(hosts) < 2 or None in hosts or "" in hosts:
            continue
        for dump in ends:
            if dump.rank not in durations:
                durations[dump.rank] = _durations_s(job, dump)
        sent, got = _completed_pairs(c.send, c.recv)
        seconds = np.fmin(durations[c.source][sent], durations[c.target][got])
        known = np.isfinite(seconds) & (seconds > 0)
        if known.sum() >= _MIN_TRANSFERS:
            shapes = job.dumps[c.target].entries.shape[got[known]]
            elements = job.dumps.shapes.elements[shapes].max(axis=1)
            yield _Transfers(
                source=c.source,
                target=c.target,
                group=c.group,
                nodes=tuple(sorted(map(str, hosts))),
                rows=got[known],
                sizes=np.log2(np.maximum(elements, 1)).astype(np.int64),
                seconds=seconds[known],
            )


def _durations_s(job: Job, dump: RankDump) -> NDArray[np.float64]:
    """
    Return how long each transfer took on the device; NaN if unknown.

    A batch has one duration, that of its end record.
    """
    seconds = dump.entries.duration_ms / 1e3
    rows, batch, sizes = find_batches(job, dump)
    ends = job.flags(dump, "ends_batch")[rows]
    of_batch = np.full(len(sizes), np.nan)
    of_batch[batch[ends]] = seconds[rows[ends]]
    is_part = np.isnan(seconds[rows])
    seconds[rows[is_part]] = of_batch[batch[is_part]]
    return seconds


def _completed_pairs(
    send: Side, recv: Side
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    Return the records of completed sends, and of the receives that match.

    Where the oldest have been overwritten, the newest completed ones match.
    """
    sent, got = (s.rows[: len(s.rows) - s.pending] for s in (send, recv))
    count = min(len(sent), len(got))
    if send.is_whole and recv.is_whole:
        return sent[:count], got[:count]

    return sent[len(sent) - count :], got[len(got) - count :]


def _typical_seconds(
    by_pair: Mapping[tuple[str, ...], Sequence[_Transfers]],
) -> dict[int, float]:
    """
    Return how long transfers of a size take between nodes with good links.
    """
    medians: dict[int, list[float]] = defaultdict(list)
    for found in by_pair.values():
        sizes = np.concatenate([one.sizes for one in found])
        seconds = np.concatenate([one.seconds for one in found])
        for size in np.unique(sizes).tolist():
            medians[size].append(float(np.median(seconds[sizes == size])))
    # Of three links, two may be those of a node whose network is slow.
    return {
        size: float(np.quantile(known, 0.25, method="lower"))
        for size, known in medians.items()
        if len(known) >= _MIN_PAIRS
    }


def _relative(
    one: _Transfers, typical: Mapping[int, float]
) -> NDArray[np.float64]:
    sizes, at = np.unique(one.sizes, return_inverse=True)
    expected = [typical.get(size, np.nan) for size in sizes.tolist()]
    relative: NDArray[np.float64] = one.seconds / np.array(expected)[at]
    return relative


def _slowness(
    found: Sequence[_Transfers], typical: Mapping[int, float]
) -> float:
    """
    Return how many times as long as is typical the transfers take.
    """
    every = np.concatenate([_relative(one, typical) for one in found])
    known = every[np.isfinite(every)]
    return float(np.median(known)) if len(known) >= _MIN_TRANSFERS else 0.0


def _merge_pairs(
    slow: Mapping[tuple[str, ...], Sequence[_Transfers]],
    every: Mapping[tuple[str, ...], object],
) -> Iterator[tuple[tuple[str, ...], list[_Transfers]]]:
    """
    Yield the one node that all slow links belong to, or each slow link.
    """
    per_node = Counter(node for nodes in slow for node in nodes)
    links = Counter(node for nodes in every for node in nodes)
    for node, count in per_node.items():
        if len(slow) == count == links[node] > 1 and len(slow) < len(every):
            yield (node,), [one for own in slow.values() for one in own]
            return

    if len(slow) <= max(_MAX_SLOW_PAIRS * len(every), 1):
        for nodes, own in slow.items():
            yield nodes, [*own]


def _explain(
    job: Job,
    nodes: tuple[str, ...],
    found: Sequence[_Transfers],
    typical: Mapping[int, float],
) -> Finding | None:
    """
    Return the finding for a slow link, if that costs enough time.
    """
    worst, lost_s = _most_delayed_rank(found, typical)
    span_s = float(np.ptp(job.dumps[worst].entries.created_ns)) / 1e9
    own = [one for one in found if one.target == worst]
    records = np.concatenate([one.rows for one in own])
    cost = Cost(
        side="link",
        seconds=round(lost_s, 3),
        share=round(lost_s / max(span_s, 1e-9), 4),
        per_call_s=round(lost_s / len(records), 6),
        calls=len(records),
        of_calls=len(records),
    )
    if not MIN_SHARE_OF_TIME <= cost.share <= 1:
        return None

    times = _slowness(found, typical)
    seconds = float(np.median(np.concatenate([one.seconds for one in own])))
    return Finding(
        cause=Cause.SLOW_LINK,
        ranks=_ranks_at_ends(job, nodes, found),
        summary=f"transfers {_place(nodes)} take {seconds * 1e3:,.1f} ms, "
        f"{times:,.1f} times as long as between other nodes: "
        f"{cost.share:.0%} of the time on rank {worst} ({cost.seconds:,.1f} s)",
        remedy=Cause.SLOW_LINK.remedy,
        group=job.groups[own[0].group].ref,
        location=find_call_sites(job, {worst: records}).get(worst),
        cost=cost,
        evidence=(
            job.evidence(
                worst,
                f"durations of {cost.calls:,} transfers",
                f"from {ranks_text(sorted(one.source for one in own))}: "
                f"{seconds * 1e3:,.1f} ms",
            ),
        ),
    )


def _most_delayed_rank(
    found: Sequence[_Transfers], typical: Mapping[int, float]
) -> tuple[int, float]:
    """
    Return the rank that loses most by slow transfers, and how many seconds.
    """
    lost: dict[int, float] = defaultdict(float)
    for one in found:
        share = np.nan_to_num(1 - 1 / _relative(one, typical))
        lost[one.target] += float((one.seconds * share).sum())
    worst = max(lost, key=lambda rank: lost[rank])
    return worst, lost[worst]


def _ranks_at_ends(
    job: Job, nodes: tuple[str, ...], found: Sequence[_Transfers]
) -> tuple[int, ...]:
    ranks = {rank for one in found for rank in (one.source, one.target)}
    return tuple(sorted(r for r in ranks if job.dumps[r].host in nodes))


def _place(nodes: tuple[str, ...]) -> str:
    names = [clean(node) for node in nodes]
    if len(names) == 1:
        return f"to and from {names[0]}"
    return f"between {names[0]} and {names[1]}"
