"""
Write a timeline of dumps to a JSON or Perfetto file.
"""

from __future__ import annotations

import gzip
import itertools
import os

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ..._io import open_whole, output_to
from ..._text import clean
from ...errors import DistdebugError, NoDumpsError
from ...findings import Diagnosis, as_plain
from ..analysis.analyze import analyze_dumps
from ..analysis.job import Job
from ..analysis.report import FlightReport
from ..read import read_dumps
from ..reading.columns import Dumps, Labels, RankDump
from .clocks import (
    HostClock,
    Timeline,
    collect_arrivals,
    compare_clocks,
    rank_offsets,
)
from .formats import PerfettoFormat, TimelineFormat, TraceEventFormat
from .slices import (
    ArrowPlan,
    PeerPairs,
    RankSlices,
    SliceEnd,
    TimelineContext,
    choose_arrow_calls,
    dump_time_ns,
    find_absent_ranks,
    lay_out_rank,
    make_annotations,
    make_arrows,
    mark_joined_slices,
    read_code_lines,
    select_rows,
)


_MIN_LATE_NS = 5_000_000
# A larger multiple of the clock uncertainty is a real delay.
_MIN_DOUBT_FACTOR = 4
_NEVER = 1 << 62

TimelineSource = Dumps | FlightReport | Diagnosis | str | os.PathLike[str]
ProgressCallback = Callable[[str, int, int], object]


@attrs.frozen(kw_only=True)
class _TimelinePlan:
    """
    Everything that a timeline is made of.

    Attributes:
        report: Analysis of the dumps.

        shown: Selected ranks, ascending.

        start_ns: Time zero of the file, by the common clock.
    """

    report: FlightReport
    context: TimelineContext
    clocks: tuple[HostClock, ...]
    shown: tuple[int, ...]
    start_ns: int
    arrows: ArrowPlan


def _load_report(
    source: TimelineSource, on_progress: ProgressCallback
) -> FlightReport:
    if isinstance(source, Diagnosis):
        flight = getattr(source.seen, "flight", None)
        if not isinstance(flight, FlightReport):
            msg = "this diagnosis rests on no dumps, or was made elsewhere"
            raise NoDumpsError(msg, remedy="give the folder of the dumps")
        return flight
    if isinstance(source, FlightReport):
        return source
    if not isinstance(source, Dumps):
        source = read_dumps(
            source,
            progress=lambda done, all_: on_progress(
                "reading dumps", done, all_
            ),
        )
    return analyze_dumps(source)


def _make_context(
    dumps: Dumps,
    groups: Iterable[str] | None,
    last: int | None,
    on_progress: ProgressCallback,
) -> tuple[TimelineContext, tuple[HostClock, ...]]:
    """
    Compute what all ranks share.
    """
    job = Job(dumps)
    clocks = compare_clocks(job)
    offsets = rank_offsets(dumps, clocks)
    done = itertools.count(1)
    arrivals = collect_arrivals(
        job,
        offsets,
        on_rank_done=lambda: on_progress(
            "comparing ranks", next(done), len(dumps)
        ),
    )
    doubt = max((clock.doubt_ns or 0 for clock in clocks), default=0)
    context = TimelineContext(
        job=job,
        peer_pairs=PeerPairs.of(job),
        arrivals=arrivals,
        offsets=offsets,
        dump_times_ns=_dump_times_ns(dumps, offsets),
        late_ns=max(_MIN_LATE_NS, _MIN_DOUBT_FACTOR * doubt),
        is_group_shown=dumps.match_groups(groups),
        last=last,
    )
    return context, clocks


def _dump_times_ns(dumps: Dumps, offsets: Mapping[int, int]) -> dict[int, int]:
    """
    Return the time of each dump by the common clock; if unknown, the newest.
    """
    newest = max(
        (dump.last_activity_ns - offsets[dump.rank] for dump in dumps),
        default=0,
    )
    dump_times_ns = {dump.rank: dump_time_ns(dump) for dump in dumps}
    return {
        rank: newest if ns is None else ns - offsets[rank]
        for rank, ns in dump_times_ns.items()
    }


def _select_ranks(
    context: TimelineContext, ranks: Iterable[int] | None
) -> tuple[int, ...]:
    """
    Return the selected ranks with a dump.
    """
    selected = None if ranks is None else set(ranks)
    shown = tuple(
        rank
        for rank in context.job.dumps.ranks
        if selected is None or rank in selected
    )
    if not any(
        len(select_rows(context, context.job.dumps[rank])) for rank in shown
    ):
        raise _no_calls_error(context.job.dumps)

    return shown


def _no_calls_error(dumps: Dumps) -> NoDumpsError:
    unread = [missing for missing in dumps.problems if missing.what == "dump"]
    if unread and not any(len(dump.entries) for dump in dumps):
        msg = f"no dump could be read: {unread[0].reason}"
        remedy = "list what is missing with: distdebug analyze"
        return NoDumpsError(msg, remedy=remedy)

    msg = "no call that was asked for is in the dumps"
    return NoDumpsError(msg, remedy="ask for other ranks or groups")


def _first_ns(context: TimelineContext, rank: int) -> int:
    dump = context.job.dumps[rank]
    created = dump.entries.created_ns[select_rows(context, dump)]
    return int(created.min(initial=_NEVER)) - context.offsets[rank]


_SUFFIXES = (".json.gz", ".json", ".pftrace")
# Twice as fast as the default level, for 10 % more bytes.
_GZIP_LEVEL = 3


def write_timeline(  # noqa: PLR0913
    dumps_or_path: TimelineSource,
    path: str | os.PathLike[str],
    *,
    ranks: Iterable[int] | None = None,
    groups: Iterable[str] | None = None,
    last: int | None = None,
    stack_traces: bool = False,
    most_arrows: int = 10_000,
    tell: ProgressCallback | None = None,
) -> Timeline:
    """
    Write a timeline of the calls of all ranks, for Perfetto or Chrome.

    Each rank is a process, each group (and each peer that it exchanges
    messages with) a track, each call a slice from when it was enqueued until
    torch noticed its end.  Every slice says what its end is.  Arrows lead from
    the last rank that arrived in a call to those that waited.

    Open the file at https://ui.perfetto.dev, or in ``chrome://tracing``.

    Args:
        dumps_or_path: The result of :func:`read_dumps`, :func:`analyze_dumps`,
            or :func:`diagnose`, or a folder of dumps.

        path: The file.  Its suffix selects the format: ``.json.gz`` or
            ``.json`` (Trace Event Format), or ``.pftrace`` (Perfetto, which
            needs the package *perfetto*).

        ranks: Global ranks; by default all.

        groups: Only calls in these process groups, by name or description; by
            default in all.

        last: Number of newest calls of each rank; by default all.

        stack_traces: Whether to add the line of code of every call, for which
            all dumps are read once more.

        most_arrows: Maximum number of arrows; the longest waits come first.

        tell: Called with the stage, the number of ranks done, and their total.

    Returns:
        The content of the file, and what was left out.

    Raises:
        NoDumpsError: There are no dumps, or the selection is empty.

        DistdebugError: The suffix of the file is unknown, or *last* is below
            1.

        MissingDependencyError: The package for this format is not installed.

        OutputError: The file cannot be written.
    """
    file = _check_arguments(Path(path), last)
    on_progress = tell or _ignore_progress
    report = _load_report(dumps_or_path, on_progress)
    context, clocks = _make_context(report.dumps, groups, last, on_progress)
    shown = _select_ranks(context, ranks)
    plan = _TimelinePlan(
        report=report,
        context=context,
        clocks=clocks,
        shown=shown,
        start_ns=min(_first_ns(context, rank) for rank in shown),
        arrows=choose_arrow_calls(
            context.arrivals, context.job.groups, most_arrows
        ),
    )
    encoder = _make_format(file, plan)
    with output_to(file), _open_output(file) as write:
        totals = _write_events(
            plan,
            encoder,
            write,
            stack_traces=stack_traces,
            on_progress=on_progress,
        )

    return _summarize(file, plan, totals)


def _write_events(
    plan: _TimelinePlan,
    encoder: TimelineFormat,
    write: Callable[[bytes], object],
    *,
    stack_traces: bool,
    on_progress: ProgressCallback,
) -> Counter[str]:
    """
    Write all events; return the totals of the timeline, by attribute.
    """
    dumps, totals = plan.context.job.dumps, Counter[str]()
    write(encoder.head())
    for done, rank in enumerate(plan.shown, 1):
        rank_slices = mark_joined_slices(
            plan.arrows,
            plan.context.arrivals,
            lay_out_rank(plan.context, rank),
        )
        lines = read_code_lines(dumps, rank_slices) if stack_traces else []
        write(encoder.rank(rank_slices, lines))
        totals.update(_count_slices(rank_slices, dumps[rank]))
        newest_ns = int(rank_slices.end_ns.max(initial=plan.start_ns))
        totals["span_ns"] = max(totals["span_ns"], newest_ns - plan.start_ns)
        on_progress("drawing ranks", done, len(plan.shown))
    arrows = make_arrows(plan.arrows)
    totals["arrows"] = len(arrows)
    totals["arrows_left_out"] = plan.arrows.possible - len(arrows)
    absent_ranks = find_absent_ranks(
        plan.report,
        {rank: plan.context.dump_times_ns[rank] for rank in plan.shown},
    )
    write(encoder.tail(arrows, absent_ranks, _file_metadata(plan)))
    return totals


def _count_slices(
    rank_slices: RankSlices, dump: RankDump
) -> Mapping[str, int]:
    end, size = rank_slices.end, len(rank_slices.rows)
    unended = (end == SliceEnd.ARRIVED) | (end == SliceEnd.UNKNOWN)
    return {
        "slices": size,
        "tracks": len(rank_slices.tracks),
        "open": int((end == SliceEnd.OPEN).sum()),
        "unended": int(unended.sum()),
        "late": int(rank_slices.is_late.sum()),
        "records_left_out": len(dump.entries) - size,
    }


def _check_arguments(file: Path, last: int | None) -> Path:
    if not file.name.endswith(_SUFFIXES):
        msg = f"no format of timelines is called {file.name}"
        raise DistdebugError(msg, remedy=f"end it in {', '.join(_SUFFIXES)}")
    if last is not None and last < 1:
        msg = f"the last {last} calls are none"
        raise DistdebugError(msg, remedy="ask for at least one")

    return file


def _summarize(
    file: Path, plan: _TimelinePlan, totals: Mapping[str, int]
) -> Timeline:
    with output_to(file):
        size = file.stat().st_size
    return Timeline(
        path=str(file),
        size=size,
        ranks=plan.shown,
        start_ns=plan.start_ns,
        clocks=plan.clocks,
        undated=tuple(
            rank
            for rank in plan.shown
            if dump_time_ns(plan.context.job.dumps[rank]) is None
        ),
        **totals,
    )


def _ignore_progress(stage: str, done: int, total: int) -> None:
    """
    Ignore progress.
    """


def _make_format(file: Path, plan: _TimelinePlan) -> TimelineFormat:
    is_native = file.name.endswith(".pftrace")
    return (PerfettoFormat if is_native else TraceEventFormat)(
        Labels.of(plan.report.dumps),
        make_annotations(plan.report, plan.context.arrivals),
        plan.start_ns,
    )


@contextmanager
def _open_output(file: Path) -> Iterator[Callable[[bytes], object]]:
    """
    Open a file for writing, compressed if its suffix is ``.gz``.
    """
    with open_whole(file) as raw:
        if not file.name.endswith(".gz"):
            yield raw.write
            return

        with gzip.GzipFile(
            "", "wb", compresslevel=_GZIP_LEVEL, fileobj=raw, mtime=0
        ) as packed:
            yield packed.write


def _file_metadata(plan: _TimelinePlan) -> dict[str, Any]:
    """
    Return the metadata of the file.
    """
    return {
        "tool": "distdebug",
        "verdict": clean(plan.report.verdict.summary, limit=400),
        "cause": str(plan.report.verdict.cause),
        "zero_ns_since_epoch": plan.start_ns,
        "clocks": [as_plain(clock) for clock in plan.clocks],
        "clocks_are": "set back by ahead_ns where corrected; estimated from "
        "when the ranks noticed the ends of the same collectives",
    }
