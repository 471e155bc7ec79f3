"""
By how much does the clock of each host differ?

Everybody notices the end of a collective at the same time, so the ends that
the members of a group noticed tell how their clocks are set.  Groups that
share a host pass that on to each other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._render import Block, Lines, Shown
from ..._text import clean, list_text, size_text
from ...findings import as_plain
from ...ranks import ranks_text
from ..analysis.membership import Group, Membership, Signatures
from ..analysis.progress import Stream, collective_streams
from ..analysis.stragglers import clock_offsets_ns
from ..reading.columns import Dumps


# So many characters of a sentence may name ranks.
_MOST_RANKS = 60


@attrs.frozen(kw_only=True)
class HostClock:
    """
    How is the clock of a host set, compared with that of the first rank?

    Attributes:
        host: The host; ``"rank 3"`` where a dump does not tell its host.

        ahead_ns: By how much it is ahead; ``None`` if no call tells.

        doubt_ns: How far off that may be; ``None`` likewise.

        corrected: Whether its times were shifted: only where it is ahead or
            behind by more than the doubt.
    """

    host: str
    ahead_ns: int | None
    doubt_ns: int | None
    corrected: bool


@attrs.frozen(kw_only=True)
class Timeline(Shown):
    """
    What is in a timeline that was written.

    Attributes:
        path: The file.

        size: Its size in bytes.

        ranks: The ranks that are in it, ascending.

        start_ns: The time that it calls zero, in nanoseconds since the epoch
            by the clock of the first rank.

        span_ns: From there to its end.

        slices: How many calls are in it, one slice each.

        tracks: How many tracks they lie on.

        open: How many of the calls were not complete when their dump was taken;
            a job that goes on has such calls, too.

        unended: How many ended when nobody recorded.

        late: How many times a last one to arrive is marked.

        arrows: How many arrows join slices of the same call.

        arrows_left_out: How many more there could be.

        records_left_out: How many records of these ranks were not asked for.

        clocks: How the clocks of the hosts are set, by their lowest rank.

        undated: Ranks of which it is not known when their dump was taken, so
            that their open calls reach to the newest record of the job.
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

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, for JSON.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterator[Block]:
        what = f"{self.slices:,} calls of {_ranks_text(self.ranks)}"
        span = f"{self.span_ns / 1e9:,.3f} s"
        counts = (
            f"{self.open:,} not complete when dumped",
            _count(self.late, "late arrival"),
            _count(self.arrows, "arrow"),
            _count(self.tracks, "track"),
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
        if self.records_left_out or self.arrows_left_out:
            lines.append(
                f"  left out: {self.records_left_out:,} records that were not "
                f"asked for, {self.arrows_left_out:,} arrows"
            )
        lines.append("  open it at https://ui.perfetto.dev")
        yield Lines(lines)


def _ranks_text(ranks: tuple[int, ...]) -> str:
    text = ranks_text(ranks)
    return text if len(text) <= _MOST_RANKS else f"{len(ranks):,} ranks"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
    # At least the one that the others are compared with.
    parts.append(f"{agree} taken as they are")
    return "; ".join(parts)


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


# So many arrivals are gathered before those in the same call are merged.
_BATCH = 1 << 20
_NEVER = 1 << 62

Columns = dict[str, NDArray[np.int64]]


@attrs.frozen(kw_only=True, eq=False)
class Arrivals:
    """
    Every collective of the job, by group and number: one array per field.

    Attributes:
        group: The group, as index.

        seq: Its number in the group.

        first_ns: When the first rank arrived, by the common clock.

        last_ns: When the last one did.

        last_rank: Who that was.

        end_ns: When the first rank noted its end; far away if none did.

        count: How many ranks have it on record.
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
        Which collective does each record of a rank stand for?

        Args:
            streams: The collectives of the rank, by group.

            size: How many records it has.

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


def gather_arrivals(
    dumps: Dumps,
    membership: Membership,
    signatures: Signatures,
    offsets: Mapping[int, int],
    tick: Callable[[], object] = lambda: None,
) -> Arrivals:
    """
    Go through all ranks and note who entered which collective when.

    Memory grows with the number of collectives, not of records.

    Args:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: What makes calls comparable.

        offsets: By how much the times of each rank are to be set back.

        tick: Called after each rank.

    Returns:
        When the ranks arrived, by the common clock.
    """
    found: list[Columns] = [_no_arrivals()]
    waiting = 0
    for dump in dumps:
        streams = collective_streams(
            dump, membership.by_code[dump.rank], signatures
        )
        entries, ahead = dump.entries, offsets[dump.rank]
        ends = np.where(entries.completed_ns, entries.completed_ns, _NEVER)
        for group, stream in streams.items():
            created = entries.created_ns[stream.row] - ahead
            ended = ends[stream.row] - ahead
            found.append(_arrivals(group, stream, dump.rank, created, ended))
            waiting += len(stream.seq)
        if waiting >= _BATCH:
            found, waiting = [_merged(found)], 0
        tick()

    return Arrivals(**_merged(found))


def _no_arrivals() -> Columns:
    return {f.name: np.empty(0, np.int64) for f in attrs.fields(Arrivals)}


def _arrivals(
    group: int,
    stream: Stream,
    rank: int,
    arrived: NDArray[np.int64],
    ended: NDArray[np.int64],
) -> Columns:
    size = len(arrived)
    return {
        "group": np.full(size, group, np.int64),
        "seq": stream.seq,
        "first_ns": arrived,
        "last_ns": arrived,
        "last_rank": np.full(size, rank, np.int64),
        "end_ns": ended,
        "count": np.ones(size, np.int64),
    }


def _merged(found: list[Columns]) -> Columns:
    """
    Put what was seen of the same collective into one row.
    """
    rows = {
        name: np.concatenate([part[name] for part in found])
        for name in found[0]
    }
    if not len(rows["seq"]):
        return rows

    order = np.lexsort((rows["last_ns"], rows["seq"], rows["group"]))
    rows = {name: column[order] for name, column in rows.items()}
    group, seq = rows["group"], rows["seq"]
    is_new = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(np.r_[True, is_new])
    last = np.r_[first[1:], len(seq)] - 1
    return {
        "group": group[first],
        "seq": seq[first],
        "first_ns": np.minimum.reduceat(rows["first_ns"], first),
        "last_ns": rows["last_ns"][last],
        "last_rank": rows["last_rank"][last],
        "end_ns": np.minimum.reduceat(rows["end_ns"], first),
        "count": np.add.reduceat(rows["count"], first),
    }
