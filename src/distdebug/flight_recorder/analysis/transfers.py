"""
Do both ends of a transfer agree on its size?

In an all-to-all, what rank *a* sends to *b* must be what *b* expects from *a*;
between a send and its receive, likewise.  There is no majority here: whoever
departs from its own habit is the one to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from numpy.typing import NDArray

from ...findings import Cause, CollectiveRef, Finding
from ...ranks import ranks_text
from ..columns import Shape
from .job import Channel, Job, Side
from .stuck import StuckCall, record_evidence


# How many calls before the stuck one are looked at, too.
_LOOK_BACK = 16
_REMEDY = "compare how both sides compute the size of this transfer"


def find_pair_mismatches(
    job: Job, calls: Sequence[StuckCall]
) -> list[Finding]:
    """
    Find transfers whose two ends disagree.

    Args:
        job: What is known about the job.

        calls: All stuck calls; all-to-alls are looked at where they are stuck.

    Returns:
        One finding for each pair of ranks, or all-to-all, that disagrees.
    """
    numel = job.dumps.shapes.elements
    found = [_compare_channel(job, c, numel) for c in job.channels]
    transfers = [t for t in found if t is not None]
    job.read_stacks(place for t in transfers for place in t.places)
    uneven = [_compare_all_to_all(job, c) for c in calls if not c.p2p]
    return [
        *(_channel_finding(job, t) for t in transfers),
        *(f for f in uneven if f is not None),
    ]


class _Transfer(NamedTuple):
    """
    The first transfer of a channel whose ends disagree.

    Attributes:
        channel: Between whom.

        places: Ranks and positions of their records, the sender's first.

        sent: How many elements are sent.

        got: How many are expected.

        culprits: Who departs from its habit, or both.
    """

    channel: Channel
    places: tuple[tuple[int, int], tuple[int, int]]
    sent: int
    got: int
    culprits: tuple[int, ...]


def _compare_channel(
    job: Job, c: Channel, numel: NDArray[np.int64]
) -> _Transfer | None:
    if c.send is None or c.recv is None:
        return None

    a, b = _aligned(c.send, c.recv)
    sent = _amounts(job, c.source, a, numel, 0)
    got = _amounts(job, c.target, b, numel, 1)
    differs = np.flatnonzero(sent != got)
    if not len(differs):
        return None

    k = int(differs[0])
    return _Transfer(
        channel=c,
        places=((c.source, int(a[k])), (c.target, int(b[k]))),
        sent=int(sent[k]),
        got=int(got[k]),
        culprits=_odd_ones(c, sent, got, k),
    )


def _channel_finding(job: Job, t: _Transfer) -> Finding:
    c, (_, row) = t.channel, t.places[0]
    return Finding(
        cause=Cause.SIZE_MISMATCH,
        ranks=t.culprits,
        summary=f"rank {c.source} sends {t.sent:,} elements to rank "
        f"{c.target}, which expects {t.got:,}",
        confidence="certain" if len(t.culprits) == 1 else "possible",
        remedy=_REMEDY,
        group=job.membership.groups[c.group].ref,
        collective=CollectiveRef(
            op="send",
            seq=int(job.dumps[c.source].entries.p2p_seq[row]),
            p2p=True,
        ),
        evidence=tuple(record_evidence(job, *place) for place in t.places),
    )


def _aligned(
    send: Side, recv: Side
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    The sends and receives that belong together, as far as that is sure.
    """
    if send.is_whole and recv.is_whole:
        n = min(len(send.rows), len(recv.rows))
        return send.rows[:n], recv.rows[:n]

    n = min(send.pending, recv.pending)
    first, last = len(send.rows) - send.pending, len(recv.rows) - recv.pending
    return send.rows[first : first + n], recv.rows[last : last + n]


def _amounts(
    job: Job,
    rank: int,
    rows: NDArray[np.int64],
    numel: NDArray[np.int64],
    side: int,
) -> NDArray[np.int64]:
    both = numel[job.dumps[rank].entries.shape[rows]]
    # Some versions log the tensor of a receive as its input, too.
    return np.where(both[:, side] > 0, both[:, side], both[:, 1 - side])


def _odd_ones(
    c: Channel, sent: NDArray[np.int64], got: NDArray[np.int64], k: int
) -> tuple[int, ...]:
    habit = Counter(np.concatenate([sent[:k], got[:k]]).tolist())
    usual_send, usual_recv = habit[int(sent[k])], habit[int(got[k])]
    if usual_send == usual_recv:
        return tuple(sorted({c.source, c.target}))

    return (c.source,) if usual_send < usual_recv else (c.target,)


def _compare_all_to_all(job: Job, call: StuckCall) -> Finding | None:
    group = job.membership.groups[call.group]
    for seq in range(max(call.seq - _LOOK_BACK, 1), call.seq + 1):
        # Most calls are something else, as any one of those inside can tell.
        witness = next(iter(call.waiting))
        if not _all_to_all(job, _rows_at(job, call.group, [witness], seq)):
            continue
        rows = _rows_at(job, call.group, group.order, seq)
        if len(rows) < len(group.order) or not _all_to_all(job, rows):
            continue
        shapes = [
            job.dumps.shapes[job.dumps[r].entries.shape[rows[r]]]
            for r in group.order
        ]
        bad = _bad_pairs(shapes)
        if bad:
            return _pair_finding(job, call, seq, rows, bad)

    return None


def _rows_at(
    job: Job, group: int, ranks: Iterable[int], seq: int
) -> dict[int, int]:
    streams = {rank: job.stream(rank, group) for rank in ranks}
    return {
        rank: int(s.row[at])
        for rank, s in streams.items()
        if s is not None and (at := s.find(seq)) is not None
    }


def _all_to_all(job: Job, rows: dict[int, int]) -> bool:
    return bool(rows) and all(
        "to_all" in job.operation(rank, row).name.replace("alltoall", "to_all")
        for rank, row in rows.items()
    )


def _bad_pairs(shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """
    The (sender, receiver) pairs, by rank in the group, that disagree.
    """
    n = len(shapes)
    if not all(len(s.input_sizes) == len(s.output_sizes) == n for s in shapes):
        return []

    return [
        (a, b)
        for a in range(n)
        for b in range(n)
        if prod(shapes[a].input_sizes[b]) != prod(shapes[b].output_sizes[a])
    ]


def _pair_finding(
    job: Job,
    call: StuckCall,
    seq: int,
    rows: dict[int, int],
    bad: Sequence[tuple[int, int]],
) -> Finding:
    order = job.membership.groups[call.group].order
    votes = Counter(r for pair in bad for r in set(pair))
    most = max(votes.values())
    culprits = tuple(sorted(order[r] for r, n in votes.items() if n == most))
    a, b = (order[r] for r in bad[0])
    summary = (
        f"in all_to_all #{seq}, rank {a} does not send what rank {b} expects"
    )
    if len(bad) > 1:
        summary += (
            f" ({len(bad)} such pairs, most with {ranks_text(culprits)})"
        )
    return Finding(
        cause=Cause.SIZE_MISMATCH,
        ranks=culprits,
        summary=summary,
        confidence="likely" if len(culprits) == 1 else "possible",
        remedy=_REMEDY,
        group=job.membership.groups[call.group].ref,
        collective=CollectiveRef(op="all_to_all", seq=seq),
        evidence=tuple(record_evidence(job, r, rows[r]) for r in (a, b)),
    )
