"""
Estimate clock offsets between hosts, and collect arrivals at collectives.

All ranks notice the end of a collective at the same time, so these ends show
how far the clocks of the members differ.  Offsets are chained through groups
that share a host.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._render import Block, Lines, Shown
from ..._text import clean, count_text, list_text, size_text
from ...ranks import ranks_text
from ..analysis.job import Job, Stream, common_numbers, run_starts
from ..analysis.membership import Group
from ..analysis.stragglers import clock_offsets_ns, host_of
from ..reading.columns import Dumps


# Called with the stage, the number of ranks done, and their total.
ProgressCallback = Callable[[str, int, int], object]

# Maximum characters for the ranks in a sentence.
_MAX_RANKS_TEXT = 60


@attrs.frozen(kw_only=True)
class HostClock:
    """
    Offset of the clock of a host, compared with that of the first rank.

    Attributes:
        host: Host name; ``"rank 3"`` if the dump of rank 3 does not name it.

        ahead_ns: How far it is ahead; ``None`` if no common call shows it.

        doubt_ns: Uncertainty of *ahead_ns*; ``None`` likewise.

        corrected: Whether its times were shifted: only if the offset is larger
            than the uncertainty.
    """

    host: str
    ahead_ns: int | None = None
    doubt_ns: int | None = None
    corrected: bool = False


@attrs.frozen(kw_only=True)
class Timeline(Shown):
    """
    Content of a timeline that was written.

    Attributes:
        path: The file.

        size: Its size in bytes.

        ranks: The ranks in it, ascending.

        start_ns: Time zero of the file, in nanoseconds since the epoch by the
            clock of the first rank.

        span_ns: Time from there to its end.

        slices: Number of calls, one slice each.

        tracks: Number of tracks.

        open: Number of calls that were incomplete when their dump was taken; a
            running job has such calls, too.

        unended: Number of completed calls without an end on record.

        late: Number of marked late arrivals.

        arrows: Number of arrows between slices of the same call.

        arrows_left_out: Number of possible arrows that were left out.

        records_left_out: Number of records of these ranks that were not
            selected.

        clocks: Clock offsets of the hosts, in the order of their lowest rank.

        undated: Ranks whose dump has no known time; their open calls extend to
            the newest record of the job.
    """

    path: str
    size: int
    ranks: tuple[int, ...]
    start_ns: int
    span_ns: int
    slices: int
    tracks: int
    open: int
    unended: int
    late: int
    arrows: int
    arrows_left_out: int
    records_left_out: int
    clocks: tuple[HostClock, ...]
    undated: tuple[int, ...]

    def _blocks_(self) -> Iterator[Block]:
        what = f"{self.slices:,} calls of {_ranks_text(self.ranks)}"
        span = f"{self.span_ns / 1e9:,.3f} s"
        counts = (
            f"{self.open:,} not complete when dumped",
            count_text(self.late, "late arrival"),
            count_text(self.arrows, "arrow"),
            count_text(self.tracks, "track"),
        )
        path, size = clean(self.path, limit=1000), size_text(self.size)
        lines = [
            f"{path}: {what} in {span} ({size})",
            f"  {', '.join(counts)}",
            f"  clocks: {_clocks_text(self.clocks)}",
        ]
        if self.unended:
            lines.append(
                f"  no end on record of {self.unended:,} calls: they are "
                "drawn until the last rank arrived"
            )
        if self.undated:
            lines.append(
                "  when the dumps were taken is not known of "
                f"{_ranks_text(self.undated)}"
            )
        left_out = [
            f"{count:,} {what}"
            for count, what in (
                (self.records_left_out, "records that were not asked for"),
                (self.arrows_left_out, "arrows"),
            )
            if count
        ]
        if left_out:
            lines.append(f"  left out: {', '.join(left_out)}")
        lines.append("  open it at https://ui.perfetto.dev")
        yield Lines(lines)


def _ranks_text(ranks: tuple[int, ...]) -> str:
    text = ranks_text(ranks)
    return text if len(text) <= _MAX_RANKS_TEXT else f"{len(ranks):,} ranks"


def _clocks_text(clocks: tuple[HostClock, ...]) -> str:
    if len(clocks) < 2:
        return "all ranks share one"

    shifted = [
        f"{clean(c.host)} {-c.ahead_ns / 1e6:+,.1f} ms "
        f"(± {(c.doubt_ns or 0) / 1e6:,.1f})"
        for c in clocks
        if c.corrected and c.ahead_ns is not None
    ]
    unknown = [clean(c.host) for c in clocks if c.ahead_ns is None]
    parts = [f"shifted {list_text(shifted)}"] if shifted else []
    if unknown:
        parts.append(f"not compared: {list_text(unknown)}")
    agree = len(clocks) - len(shifted) - len(unknown)
    # This is at least 1, because it includes the reference clock.
    parts.append(f"{agree} taken as they are")
    return "; ".join(parts)


# The newest calls that all members have on record are enough.
_MAX_COMMON_CALLS = 200
# Some ranks are ahead of others, so more calls are compared for common ones.
_MAX_CALLS_PER_RANK = 1000
_MIN_COMMON_CALLS = 4


def compare_clocks(job: Job) -> tuple[HostClock, ...]:
    """
    Estimate the clock offsets of all hosts from common collectives.

    Returns:
        One clock per host, by lowest rank; the first one is the reference.
    """
    dumps = job.dumps
    hosts = list(dict.fromkeys(host_of(dumps, rank) for rank in dumps.ranks))
    if len(hosts) < 2:
        return tuple(_make_clock(host, (0.0, 0.0)) for host in hosts)

    known = {hosts[0]: (0.0, 0.0)}
    groups_by_host = _groups_by_host(job)
    untried = set(range(len(job.groups)))
    reached = deque(hosts[:1])
    while reached and len(known) < len(hosts):
        for index in groups_by_host[reached.popleft()]:
            if index in untried:
                untried.discard(index)
                new = _estimate_offsets(job, index, known)
                known.update(new)
                reached.extend(new)

    return tuple(_make_clock(host, known.get(host)) for host in hosts)


def rank_offsets(
    dumps: Dumps, clocks: Sequence[HostClock]
) -> Mapping[int, int]:
    """
    Return the nanoseconds to subtract from the times of each rank.
    """
    ahead = {c.host: c.ahead_ns or 0 for c in clocks if c.corrected}
    return {rank: ahead.get(host_of(dumps, rank), 0) for rank in dumps.ranks}


def _make_clock(host: str, offset: tuple[float, float] | None) -> HostClock:
    if offset is None:
        return HostClock(host=host)

    ahead, doubt = map(round, offset)
    return HostClock(
        host=host, ahead_ns=ahead, doubt_ns=doubt, corrected=abs(ahead) > doubt
    )


def _groups_by_host(job: Job) -> Mapping[str, Iterable[int]]:
    """
    Return the groups with members on each host, the largest first.
    """
    at: dict[str, dict[int, None]] = defaultdict(dict)
    for index, group in sorted(
        enumerate(job.groups), key=lambda item: -len(item[1].order)
    ):
        for rank in _members_with_dump(job.dumps, group):
            at[host_of(job.dumps, rank)][index] = None
    return at


def _members_with_dump(dumps: Dumps, group: Group) -> list[int]:
    return [rank for rank in group.order if rank in dumps.by_rank]


def _estimate_offsets(
    job: Job, index: int, known: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """
    Return offset and uncertainty of new hosts in a group with a known one.
    """
    members = _members_with_dump(job.dumps, job.groups[index])
    hosts = [host_of(job.dumps, rank) for rank in members]
    if known.keys() >= set(hosts):
        return {}

    ends = _common_ends(job, index, members)
    if ends is None:
        return {}

    offsets, doubt = clock_offsets_ns(ends, hosts)
    offset_by_host = dict(zip(hosts, offsets.tolist(), strict=True))
    shared = next(host for host in offset_by_host if host in known)
    base, base_doubt = known[shared]
    return {
        host: (base + offset - offset_by_host[shared], doubt + base_doubt)
        for host, offset in offset_by_host.items()
        if host not in known
    }


def _common_ends(
    job: Job, index: int, members: Sequence[int]
) -> NDArray[np.float64] | None:
    """
    Return the ends that all members noticed; ``None`` if there are too few.

    One row per member, one column per call, in nanoseconds.
    """
    ends: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for rank in members:
        stream = job.streams(rank).get(index)
        if stream is None:
            return None

        end = job.dumps[rank].entries.completed_ns[stream.row]
        seen = stream.synchronizes & stream.done & (end > 0)
        newest = np.flatnonzero(seen)[-_MAX_CALLS_PER_RANK:]
        ends.append((stream.seq[newest], end[newest]))

    common = common_numbers(seq for seq, _ in ends)[-_MAX_COMMON_CALLS:]
    if len(common) < _MIN_COMMON_CALLS:
        return None

    table: NDArray[np.float64] = np.array(
        [end[np.searchsorted(seq, common)] for seq, end in ends], float
    )
    return table


# Arrivals collected before those of the same call are merged.
_MERGE_SIZE = 1 << 20
#: Later than any time.
NEVER_NS = 1 << 62


@attrs.frozen(eq=False)
class Arrivals:
    """
    All collectives of the job, by group and sequence number.

    One array per attribute; times by the common clock, in nanoseconds.

    Attributes:
        group: Index of the group.

        seq: Sequence number in the group.

        first_ns: When the first rank arrived.

        last_ns: When the last rank arrived.

        last_rank: The last rank to arrive.

        end_ns: When the first rank noticed the end; a far future time if none
            did.

        count: Number of ranks that have it on record.
    """

    group: NDArray[np.int64]
    seq: NDArray[np.int64]
    first_ns: NDArray[np.int64]
    last_ns: NDArray[np.int64]
    last_rank: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    count: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.seq)

    def find(
        self, streams: Mapping[int, Stream], size: int
    ) -> NDArray[np.int64]:
        """
        Return the position of the collective of each record of a rank.

        Args:
            streams: Collectives of the rank, by group.

            size: Number of its records.

        Returns:
            One position per record; -1 if it begins no collective.
        """
        call = np.full(size, -1, np.int64)
        for group, stream in streams.items():
            begin, end = np.searchsorted(self.group, [group, group + 1])
            call[stream.row] = begin + np.searchsorted(
                self.seq[begin:end], stream.seq
            )
        return call


def collect_arrivals(
    job: Job,
    offsets: Mapping[int, int],
    on_progress: ProgressCallback,
) -> Arrivals:
    """
    Collect the arrivals of all ranks at all collectives.

    Memory grows with the number of collectives, not of records.

    Args:
        offsets: Nanoseconds to subtract from the times of each rank.

        on_progress: Called after each rank.
    """
    parts = [np.empty((len(attrs.fields(Arrivals)), 0), np.int64)]
    unmerged = 0
    for done, dump in enumerate(job.dumps, 1):
        e, ahead = dump.entries, offsets[dump.rank]
        ends = np.where(e.completed_ns, e.completed_ns, NEVER_NS)
        for group, stream in job.streams(dump.rank).items():
            at, one = stream.row, np.ones_like(stream.seq)
            arrived = e.created_ns[at] - ahead
            part = Arrivals(
                group=group * one,
                seq=stream.seq,
                first_ns=arrived,
                last_ns=arrived,
                last_rank=dump.rank * one,
                end_ns=ends[at] - ahead,
                count=one,
            )
            parts.append(np.array(attrs.astuple(part, recurse=False)))
            unmerged += len(one)
        if unmerged >= _MERGE_SIZE:
            parts, unmerged = [_merge_arrivals(parts)], 0
        on_progress("comparing ranks", done, len(job.dumps))

    return Arrivals(*_merge_arrivals(parts))


def _merge_arrivals(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """
    Merge the rows of the same collective, one attribute of `Arrivals` each.
    """
    rows = np.concatenate(parts, axis=1)
    if not rows.size:
        return rows

    group, seq, first_ns, last_ns, last_rank, end_ns, count = rows[
        :, np.lexsort((rows[3], rows[1], rows[0]))
    ]
    first = run_starts(group, seq)
    last = np.r_[first[1:], len(seq)] - 1
    return np.array(
        [
            group[first],
            seq[first],
            np.minimum.reduceat(first_ns, first),
            last_ns[last],
            last_rank[last],
            np.minimum.reduceat(end_ns, first),
            np.add.reduceat(count, first),
        ]
    )
