"""
Describe why a test failed on its ranks: a hang, an exception, or a death.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .._io import output_to, write_whole
from .._text import clean, time_text
from ..causes import Cause
from ..diagnosis import diagnose
from ..errors import DistdebugError, ScheduleError
from ..flight_recorder import (
    Schedule,
    analyze_dumps,
    compare_schedules,
    make_schedule,
    read_dumps,
    read_schedule,
    request_dumps,
)
from ..ranks import ranks_text
from ..snapshots import snapshot
from ..stacks import merge_stacks, read_stacks
from .local_ranks import LocalRanks


_SNAPSHOT_S = 40.0
_DUMP_S = 5.0
_NUMBER = re.compile(r"\d+")


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
    tree = merge_stacks(read_stacks(taken.folder))
    limit = f"the time limit of {time_text(timeout_s)} is over"
    return f"{taken}\n\nstacks:\n{tree}\n\n{limit}"


def describe_failure(ranks: LocalRanks) -> str:
    """
    Return the tracebacks of ranks that failed, the first one first, and the
    verdict.
    """
    return "\n\n".join(_failure_parts(ranks))


def _failure_parts(ranks: LocalRanks) -> Iterator[str]:
    with suppress(DistdebugError):
        request_dumps(ranks.folder / "dumps", timeout_s=_DUMP_S)
    first, *_ = ranks.failed
    end = ranks.ends[first]
    yield f"rank {first}: {end.summary}"
    if end.traceback:
        yield end.traceback
    with suppress(DistdebugError):  # it may have left nothing
        yield str(diagnose(ranks.folder / "dumps", ranks.folder / "logs"))
    alike = defaultdict(list)
    for rank in ranks.failed[1:]:
        # Alike but for the addresses of peers.
        alike[_NUMBER.sub("N", ranks.ends[rank].summary)].append(rank)
    for members in alike.values():
        summary = clean(ranks.ends[members[0]].summary)
        yield f"then {ranks_text(members)}: {summary}"
    yield f"the evidence is in {ranks.folder}"


def check_schedule(ranks: LocalRanks, kept: Path, *, update: bool) -> str:
    """
    Compare what the ranks called with each other, and with a kept schedule.

    Args:
        kept: The file of the schedule.

        update: Whether to write the file instead.

    Returns:
        The differences; empty if there are none.
    """
    try:
        dumps = read_dumps(ranks.folder / "dumps")
        analysis = analyze_dumps(dumps).to_diagnosis()
        # Ranks without a call are no divergence, and not known to be healthy.
        if not analysis.is_healthy and analysis.verdict.cause != Cause.UNKNOWN:
            return f"the ranks diverge: {analysis}"
        schedule = make_schedule(dumps)
        if update:
            _write_schedule(kept, schedule)
            return ""
        differences = compare_schedules(read_schedule(kept), schedule)
    except ScheduleError as exc:
        return f"{exc}\nTry: pytest --update-schedules, which writes it"
    except DistdebugError as exc:
        return f"no schedule can be made: {exc}\nTry: {exc.remedy}"
    if not differences:
        return ""

    remedy = "Try: pytest --update-schedules, if this is intended"
    return "\n".join([*differences, f"the schedule is in {kept}", remedy])


def _write_schedule(path: Path, schedule: Schedule) -> None:
    with output_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, str(schedule).encode())
