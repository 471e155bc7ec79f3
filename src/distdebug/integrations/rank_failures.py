"""
Describe why a test failed on its ranks: a hang, an exception, or a death.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

from .._text import clean, time_text
from ..diagnosis import diagnose
from ..errors import DistdebugError
from ..ranks import ranks_text
from ..snapshots import snapshot
from ..stacks import merge_stacks, read_stacks
from .local_ranks import LocalRanks


_SNAPSHOT_S = 40.0


def describe_hang(ranks: LocalRanks, timeout_s: float) -> str:
    """
    Take a snapshot of ranks that hang, and return the verdict and the stacks.

    Args:
        timeout_s: The time limit of the test, in seconds.
    """
    pids = ranks.running
    taken = snapshot(
        ranks.folder / "snapshot",
        dump_dir=ranks.folder / "dumps",
        pids=pids.values(),
        logs=map(ranks.log, pids),
        timeout_s=_SNAPSHOT_S,
    )
    done = [rank for rank, end in ranks.ends.items() if not end.is_failure]
    parts = [
        f"the ranks hang: the test has run for {time_text(timeout_s)}",
        f"{ranks_text(done)}: the test function has returned" if done else "",
        str(taken),
        str(merge_stacks(read_stacks(taken.folder))),
    ]
    return "\n\n".join(filter(None, parts))


def describe_failure(ranks: LocalRanks) -> str:
    """
    Return the tracebacks of ranks that failed, the first one first, and the
    verdict.
    """
    return "\n\n".join(_failure_parts(ranks))


def _failure_parts(ranks: LocalRanks) -> Iterator[str]:
    first, *_ = ranks.failed
    end = ranks.ends[first]
    yield f"rank {first}: {end.summary}"
    if end.traceback:
        yield end.traceback
    with suppress(DistdebugError):  # it may have left nothing
        yield str(diagnose(ranks.folder / "dumps", ranks.folder / "logs"))
    alike = defaultdict(list)
    for rank in ranks.failed[1:]:
        alike[ranks.ends[rank].summary].append(rank)
    for summary, members in alike.items():
        yield f"then {ranks_text(members)}: {clean(summary)}"
    if ranks.running:
        yield f"still running after that: {ranks_text(ranks.running)}"
