"""
Find slow ranks and links by what NCCL Inspector recorded.

It records only calls that completed, so it shows delays, and no hang.  The rank
whose call took the shortest came last, and the others waited for it: that is
what `stragglers` compares, and `links` for transfers.

Only a verbose file says when a call was made.  Without that it is not known
whether the host or the device is slow, nor in which order a rank used several
communicators; so only the rank that costs most is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from ...causes import Cause
from ...findings import Evidence, Finding, Missing
from ...ranks import ranks_text
from ..reading.columns import Dumps
from .job import Job
from .links import find_slow_links
from .stragglers import find_stragglers


# Files are written now and then, and clocks of hosts differ.
_MIN_SILENCE_NS = 60_000_000_000
_MOST_SILENT = 4
_SILENT_REMEDY = (
    "see whether these processes still run, and take their stacks: they were "
    "killed or stopped, or their records were lost"
)


def find_delays(dumps: Dumps) -> list[Finding]:
    """
    Find slow links, stragglers, and ranks that stopped recording.

    Returns:
        The findings, the most expensive first; none without such files.
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
            Evidence(
                kind="dump",
                source=job.dumps[rank].path,
                location=f"rank {rank}, the last record",
                quote=_newest_text(job.dumps, rank),
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
