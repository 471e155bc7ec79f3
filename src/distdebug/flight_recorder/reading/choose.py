"""
Which files count?

Several files can claim to be the dump of one rank, and some are left over from
earlier.  One file per rank is used; about the others there is a note, unless
they are simply earlier dumps of the same process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from statistics import median
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...findings import Missing
from ..columns import COMPLETED, Entries, RankDump
from ..sidecar import Sidecar
from .assemble import UnusableError, infer_rank
from .files import DumpFile, Found


_SECOND = 1_000_000_000

# Clocks differ by seconds, and what is written last may be a minute old.
_MARGIN_NS = 60 * _SECOND

# Where the ring lost the beginning, less is certain.
_WRAPPED_MARGIN_NS = 600 * _SECOND

# How long calls may wait for others if the dump does not say.
_PATIENCE_NS = 1800 * _SECOND

# A stale dump is compared with that many others.
_WITNESSES = 16


def current_job(sidecars: Iterable[Sidecar]) -> str:
    """
    Which run is the newest?

    Args:
        sidecars: Of any runs.

    Returns:
        Its identifier, or ``""`` if there is none.
    """
    started = defaultdict(list)
    for sidecar in sidecars:
        if sidecar.job:
            started[sidecar.job].append(sidecar.started)

    # The median, because the clock of one host may be wrong.
    return max(started, key=lambda job: median(started[job]), default="")


def find_stale(dumps: Sequence[RankDump]) -> dict[int, float]:
    """
    Find dumps of an earlier run by the times in them.

    The majority decides which run is the current one.

    Args:
        dumps: One per rank.

    Returns:
        By rank, how many seconds the dump is older than the others.
    """
    ends = {d.rank: last_activity(d) for d in dumps if len(d.entries)}
    if len(ends) < 3:
        return {}

    newest = median(ends.values())
    suspects = [
        d for d in dumps if 0 < ends.get(d.rank, 0) < newest - _MARGIN_NS
    ]
    others = [d for d in dumps if ends.get(d.rank, 0) >= newest - _MARGIN_NS]
    witnesses = others[:: len(others) // _WITNESSES + 1]
    return {
        d.rank: (newest - ends[d.rank]) / _SECOND
        for d in suspects
        if d.sidecar is None and _is_stale(d, ends[d.rank], witnesses)
    }


def last_activity(dump: RankDump) -> int:
    """
    When was the last thing recorded, in nanoseconds since the epoch?
    """
    e = dump.entries
    if not len(e):
        return 0

    return int(
        max(e.created_ns.max(), e.started_ns.max(), e.completed_ns.max())
    )


def _is_stale(dump: RankDump, end: int, witnesses: Sequence[RankDump]) -> bool:
    whole = [w for w in witnesses if not w.wrapped]
    margin = (
        _MARGIN_NS if len(whole) * 2 > len(witnesses) else _WRAPPED_MARGIN_NS
    )
    gaps = [_gap(dump.entries, w.entries) for w in witnesses]
    told = [gap for gap in gaps if gap is not None]
    if told:
        return bool(median(told) > margin)

    # They have no calls in common, so only the distance in time is left.
    firsts = [int(w.entries.created_ns[0]) for w in whole]
    return len(whole) * 2 > len(witnesses) and end + margin + _patience(
        dump.entries
    ) < median(firsts)


def _gap(one: Entries, other: Entries) -> int | None:
    """
    By how many nanoseconds did *one* enter the same calls earlier?

    A rank can enter one call long before the others, and wait there; so what
    counts is the call that they entered most closely together.  If that is
    the only one that was left, it may have waited as long as it had patience.
    """
    rows, other_rows = _common(one, other)
    if not len(rows):
        return None

    left = (one.state[rows] == COMPLETED) | one.retired[rows]
    seen = np.maximum(one.created_ns[rows], one.completed_ns[rows])
    gaps = other.created_ns[other_rows] - seen
    if np.count_nonzero(left) > 1:
        return int(gaps[left].min())

    return int(gaps.min()) - _patience(one)


def _common(one: Entries, other: Entries) -> tuple[NDArray[np.int64], ...]:
    """
    The rows at which two ranks recorded the same collectives.
    """
    _, rows, other_rows = np.intersect1d(
        _keys(one), _keys(other), return_indices=True
    )
    # What has no collective number was replaced by -1.
    is_call = (_keys(one)[rows] >= 0) if len(rows) else rows.astype(np.bool_)
    return rows[is_call], other_rows[is_call]


def _keys(entries: Entries) -> NDArray[np.int64]:
    keys = entries.group.astype(np.int64) << 40 | entries.seq & (1 << 40) - 1
    return np.where(entries.is_p2p, -1, keys)


def _patience(entries: Entries) -> int:
    """
    How long would its calls have waited for others, in nanoseconds?
    """
    limit = int(entries.timeout_ms.max(initial=0)) * 1_000_000
    return limit if limit > 0 else _PATIENCE_NS


class Plan(NamedTuple):
    """
    What should be read?

    Attributes:
        chains: Files of which the first readable one is wanted.

        sidecars: The newest side-car of each rank.

        earlier: Those that the same process wrote before, oldest first.

        problems: Why other files are not read.

        skipped: How many dumps belong to ranks that are not wanted.
    """

    chains: list[list[DumpFile]]
    sidecars: dict[int, Sidecar]
    earlier: dict[int, tuple[Sidecar, ...]]
    problems: list[Missing]
    skipped: int


class Decoded(NamedTuple):
    """
    A file that was read.

    Attributes:
        file: Where it lies.

        dump: What it holds.

        unreadable: How many of its records are not.

        damage: Why there are not more.
    """

    file: DumpFile
    dump: RankDump
    unreadable: int
    damage: str


def plan_reading(found: Found, wanted: Collection[int] | None) -> Plan:
    """
    Decide which files to read, by their names and side-cars.

    Args:
        found: What there is.

        wanted: The ranks to read; `None` for all.
    """
    job = current_job(found.sidecars)
    chains: dict[int | str, list[DumpFile]] = defaultdict(list)
    problems = []
    skipped = 0
    for file in found.files:
        if not _is_wanted(file.rank, wanted):
            skipped += file.is_expected
        elif file.sidecar is None:
            chains[file.path].append(file)
        elif file.sidecar.job in {"", job}:
            chains[file.sidecar.rank].append(file)
        else:
            problems.append(
                _problem(file, "stale: an earlier run of the job left it")
            )

    for chain in chains.values():
        chain.sort(key=lambda file: _age(file.sidecar), reverse=True)
        problems += [
            _problem(file, f"stale: {_name(chain[0])} is of a later process")
            for file in chain[1:]
            if _process(file) != _process(chain[0])
        ]

    notes: dict[int, list[Sidecar]] = defaultdict(list)
    for s in sorted(found.sidecars, key=lambda s: (s.rank, *_age(s))):
        if s.job in {"", job} and _is_wanted(s.rank, wanted):
            notes[s.rank].append(s)
    return Plan(
        chains=list(chains.values()),
        sidecars={rank: of_rank[-1] for rank, of_rank in notes.items()},
        earlier={
            rank: tuple(s for s in of_rank[:-1] if _is_same(s, of_rank[-1]))
            for rank, of_rank in notes.items()
        },
        problems=problems,
        skipped=skipped,
    )


def choose_dumps(
    decoded: Iterable[Decoded],
) -> tuple[dict[int, RankDump], list[Missing]]:
    """
    Choose one dump per rank, and none of an earlier run.

    Args:
        decoded: What was read.

    Returns:
        The dumps by ascending rank, and why others were not chosen.
    """
    problems = []
    claims = defaultdict(list)
    for one in decoded:
        rank = one.file.rank
        if rank is None:
            rank = infer_rank(one.dump)
        if rank is None:
            problems.append(_problem(one.file, _NO_RANK))
        else:
            dump = attrs.evolve(one.dump, rank=rank)
            claims[rank].append(one._replace(dump=dump))

    by_rank = {}
    for rank, rivals in sorted(claims.items()):
        best = max(rivals, key=_preference)
        by_rank[rank] = best.dump
        problems += [
            _problem(r.file, f"not used: {_name(best.file)} is newer", rank)
            for r in rivals
            if r is not best and not _is_same_dump(r, best)
        ]

    for rank, seconds in find_stale(list(by_rank.values())).items():
        reason = (
            f"stale: its last record is {seconds:,.0f} s before the others"
        )
        problems.append(
            Missing(
                what="dump",
                reason=reason,
                rank=rank,
                source=by_rank.pop(rank).path,
            )
        )
    return by_rank, problems


def announce_failures(
    failed: Sequence[tuple[DumpFile, UnusableError]],
    decoded: Sequence[Decoded],
) -> list[Missing]:
    """
    Say which files are broken, but not which are no dumps and need not be.

    Args:
        failed: What could not be read.

        decoded: What could; it tells how the dumps of this job are called.
    """
    families = {one.file.name.family for one in decoded}
    return [
        _problem(file, str(failure))
        for file, failure in failed
        if not failure.is_alien
        or file.sidecar is not None
        or file.name.family in families
        or (file.name.is_dump_like and not families)
    ]


def announce_losses(decoded: Iterable[Decoded]) -> list[Missing]:
    """
    Say which files were read, but not as a whole.
    """
    problems = []
    for one in decoded:
        count = len(one.dump.entries)
        if one.damage:
            reason = f"damaged: only {count:,} records could be read: "
            problems.append(_problem(one.file, reason + one.damage))
        if one.unreadable:
            reason = (
                f"{one.unreadable:,} of {count + one.unreadable:,} records "
                "cannot be read"
            )
            problems.append(_problem(one.file, reason))

    return problems


_NO_RANK = (
    "neither its name nor its content tells the rank: name it like rank_3"
)


def _is_wanted(rank: int | None, wanted: Collection[int] | None) -> bool:
    return wanted is None or rank is None or rank in wanted


def _age(sidecar: Sidecar | None) -> tuple[float, float]:
    return (sidecar.started, sidecar.written) if sidecar else (0.0, 0.0)


def _process(file: DumpFile) -> tuple[object, ...] | None:
    s = file.sidecar
    return None if s is None else (s.host, s.pid, s.started)


def _is_same(one: Sidecar, other: Sidecar) -> bool:
    """
    Whether one process wrote both.
    """
    return (one.host, one.pid, one.started) == (
        other.host,
        other.pid,
        other.started,
    )


def _preference(one: Decoded) -> tuple[object, ...]:
    return (
        *_age(one.file.sidecar),
        last_activity(one.dump),
        len(one.dump.entries),
        # The same dump as JSON has no stacks.
        ".json" not in one.file.path.lower(),
        one.file.modified,
        one.file.path,
    )


def _is_same_dump(one: Decoded, other: Decoded) -> bool:
    """
    Whether one file merely repeats the other in another form.
    """
    return _process(one.file) == _process(other.file) and (
        last_activity(one.dump),
        len(one.dump.entries),
    ) == (last_activity(other.dump), len(other.dump.entries))


def _problem(file: DumpFile, reason: str, rank: int | None = None) -> Missing:
    return Missing(
        what="dump",
        reason=clean(reason),
        rank=file.rank if rank is None else rank,
        source=file.path,
    )


def _name(file: DumpFile) -> str:
    return PurePath(file.path).name
