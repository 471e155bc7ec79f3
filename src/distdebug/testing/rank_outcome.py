"""
Run a function on local ranks, and say why it fails: a hang, an exception, a
death, or collectives that differ from a kept schedule.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import tempfile

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, ModuleType

import attrs

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
from .local_ranks import (
    EXIT_S,
    LocalRanks,
    RankEnd,
    local_ranks,
    pickle_call,
)


_SNAPSHOT_S = 40.0
_DUMP_S = 5.0
_NUMBER = re.compile(r"\d+")


@attrs.frozen
class RanksOutcome:
    """
    How a function ended on local ranks.

    Attributes:
        failure: Why it failed, the verdict first; empty if it did not.

        ends: How it ended, by rank; a rank that hangs has no end.

        outputs: What it printed, at most the last 64 KiB, by rank.
    """

    failure: str
    ends: dict[int, RankEnd]
    outputs: dict[int, str]


def run_ranks(  # noqa: PLR0913 all but two can be left out
    function: Callable[..., object],
    count: int,
    *,
    arguments: Mapping[str, object] = MappingProxyType({}),
    modules: Iterable[ModuleType] = (),
    timeout_s: float = 60.0,
    folder: str | os.PathLike[str] | None = None,
    schedule: str | os.PathLike[str] | None = None,
    update: bool = False,
) -> RanksOutcome:
    """
    Run a function on local ranks, each a process in a Gloo process group, and
    diagnose why it fails.

    No rank is left, however it ends, nor what runs in the session of one.

    Example::

        outcome = run_ranks(check_sum, 4, timeout_s=30.0)
        assert not outcome.failure, outcome.failure

    Args:
        function: The function, which *cloudpickle* can pickle.

        count: The number of ranks.

        arguments: Its keyword arguments, which can be pickled, too.

        modules: Modules that the ranks may not be able to import: what is
            defined in them travels by value.

        timeout_s: How long it may take, in seconds, once it runs on all ranks.

        folder: An empty or new folder for dumps and logs; by default a
            temporary one.  It is kept only if the function fails, as the
            evidence.

        schedule: A kept schedule, with which the calls of ranks are compared.

        update: Whether to write the schedule instead.

    Raises:
        DistdebugError: The function, or an argument, cannot be pickled; it is
            a generator function, or would have no rank or no time limit; or
            the folder is not empty.

        OSError: A process cannot be started.
    """
    if count < 1 or not timeout_s >= 0:  # nor is nan
        msg = f"no function runs on {count} ranks, for {timeout_s:g} s"
        remedy = "name a count of 1 or more, and a time limit"
        raise DistdebugError(msg, remedy=remedy)
    if inspect.isgeneratorfunction(function):
        msg = "a generator function does nothing when it is called"
        raise DistdebugError(msg, remedy="leave out its yield")
    call = pickle_call(function, arguments, modules)
    folder = Path(folder or tempfile.mkdtemp(prefix="distdebug-ranks-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):  # nothing of others is removed
        msg = f"{folder} is not empty"
        raise DistdebugError(msg, remedy="name another folder, or none")
    failure = ""
    try:
        with local_ranks(call, count, folder) as ranks:
            ranks.wait(timeout_s)
            outputs = {rank: ranks.output(rank) for rank in range(count)}
            failure = _describe_failure(ranks, timeout_s)
            is_over = all(x.kind == "returned" for x in ranks.ends.values())
            if is_over and not failure and schedule is not None:
                kept = Path(schedule)
                failure = _check_schedule(ranks, kept, update=update)
        return RanksOutcome(failure, ranks.ends, outputs)
    finally:
        if not failure:
            shutil.rmtree(folder, ignore_errors=True)


def _describe_failure(ranks: LocalRanks, timeout_s: float) -> str:
    """
    Return why ranks failed that were waited for; empty if they did not.
    """
    if ranks.failed:
        return "\n\n".join(_failure_parts(ranks))
    if ranks.running:
        return _describe_hang(ranks, timeout_s)
    if len({end.kind for end in ranks.ends.values()}) == 1:
        return ""
    each = (f"rank {rank}: {end.kind}" for rank, end in ranks.ends.items())
    return f"the ranks ended differently: {', '.join(sorted(each))}"


def _describe_hang(ranks: LocalRanks, timeout_s: float) -> str:
    """
    Take a snapshot of ranks that hang, and return the verdict and the stacks.
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
    if len(ranks.ends) == len(ranks.processes):
        limit = (
            f"the function has returned on all ranks, but {ranks_text(pids)} "
            f"did not end within {time_text(EXIT_S)}"
        )
    return f"{taken}\n\nstacks:\n{tree}\n\n{limit}"


def _failure_parts(ranks: LocalRanks) -> Iterator[str]:
    """
    Return the tracebacks of ranks that failed, the first one first, and the
    verdict.
    """
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


def _check_schedule(ranks: LocalRanks, kept: Path, *, update: bool) -> str:
    """
    Compare what the ranks called with each other, and with a kept schedule.
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
