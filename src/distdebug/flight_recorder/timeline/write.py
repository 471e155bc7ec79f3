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

import numpy as np

from numpy.typing import NDArray

from ..._io import open_whole, output_to
from ..._render import as_plain
from ..._text import clean
from ...errors import DistdebugError, NoDumpsError
from ...findings import Diagnosis
from ...ranks import RankChoice
from ..analysis.analyze import analyze_dumps
from ..analysis.job import Job
from ..analysis.report import FlightReport
from ..analysis.stragglers import MIN_DOUBT_FACTOR
from ..read import check_recorded, read_dumps
from ..reading.columns import Dumps, RankDump
from .clocks import (
    NEVER_NS,
    Timeline,
    collect_arrivals,
    compare_clocks,
    rank_offsets,
)
from .formats import PerfettoFormat, TraceEventFormat
from .slices import (
    ArrowPlan,
    PeerPairs,
    ProgressCallback,
    RankSlices,
    SliceEnd,
    TimelineContext,
    choose_arrow_calls,
    dump_time_ns,
    find_absences,
    lay_out_rank,
    make_arrows,
    mark_joined_slices,
    read_code_lines,
    select_rows,
)


_MIN_LATE_NS = 5_000_000

TimelineSource = Dumps | FlightReport | Diagnosis | str | os.PathLike[str]


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
    report: FlightReport,
    ranks: RankChoice | None,
    is_group_shown: NDArray[np.bool_],
    last: int | None,
    on_progress: ProgressCallback,
) -> TimelineContext:
    """
    Compute what all ranks share.
    """
    dumps, job = report.dumps, Job(report.dumps)
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
    created = _first_created_ns(dumps, ranks, is_group_shown, last)
    return TimelineContext(
        report=report,
        job=job,
        shown=tuple(created),
        start_ns=min(ns - offsets[rank] for rank, ns in created.items()),
        clocks=clocks,
        peer_pairs=PeerPairs.of(job),
        arrivals=arrivals,
        offsets=offsets,
        dump_times_ns=_dump_times_ns(dumps, offsets),
        late_ns=max(_MIN_LATE_NS, MIN_DOUBT_FACTOR * doubt),
        is_group_shown=is_group_shown,
        last=last,
        on_progress=on_progress,
    )


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


def _first_created_ns(
    dumps: Dumps,
    ranks: RankChoice | None,
    is_group_shown: NDArray[np.bool_],
    last: int | None,
) -> dict[int, int]:
    """
    Return when each selected rank enqueued the first call that is shown.
    """
    created: dict[int, int] = {}
    selected = dumps.select_ranks(ranks)
    for dump in dumps:
        if selected is None or dump.rank in selected:
            rows = select_rows(dump, is_group_shown, last)
            times = dump.entries.created_ns[rows]
            created[dump.rank] = int(times.min(initial=NEVER_NS))
    if min(created.values(), default=NEVER_NS) == NEVER_NS:
        raise _no_calls_error(dumps)

    return created


def _no_calls_error(dumps: Dumps) -> NoDumpsError:
    unread = [missing for missing in dumps.problems if missing.what == "dump"]
    if unread and not any(len(dump.entries) for dump in dumps):
        msg = f"no dump could be read: {unread[0].reason}"
        remedy = "list what is missing with: distdebug analyze"
        return NoDumpsError(msg, remedy=remedy)

    check_recorded(dumps)
    msg = "no call that was asked for is in the dumps"
    return NoDumpsError(msg, remedy="ask for other ranks or groups")


_SUFFIXES = (".json.gz", ".json", ".pftrace")
# Twice as fast as the default level, for 10 % more bytes.
_GZIP_LEVEL = 3


def write_timeline(  # noqa: PLR0913
    dumps_or_path: TimelineSource,
    path: str | os.PathLike[str],
    *,
    ranks: RankChoice | None = None,
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

        ranks: Global ranks, or a selection; by default all.

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
    is_group_shown = report.dumps.match_groups(groups)
    context = _make_context(report, ranks, is_group_shown, last, on_progress)
    plan = choose_arrow_calls(
        context.arrivals, context.job.groups, most_arrows
    )
    encoder: PerfettoFormat | TraceEventFormat = (
        PerfettoFormat(context)
        if file.name.endswith(".pftrace")
        else TraceEventFormat(context)
    )
    with output_to(file), _open_output(file) as write:
        totals = _write_events(
            context, plan, encoder, write, stack_traces=stack_traces
        )

    return _summarize(file, context, totals)


def _write_events(
    context: TimelineContext,
    plan: ArrowPlan,
    encoder: PerfettoFormat | TraceEventFormat,
    write: Callable[[bytes], object],
    *,
    stack_traces: bool,
) -> Counter[str]:
    """
    Write all events; return the totals of the timeline, by attribute.
    """
    dumps, totals = context.job.dumps, Counter[str]()
    write(encoder.head())
    for done, rank in enumerate(context.shown, 1):
        rank_slices = mark_joined_slices(
            plan, context.arrivals, lay_out_rank(context, rank)
        )
        lines = read_code_lines(dumps, rank_slices) if stack_traces else []
        write(encoder.rank(rank_slices, lines))
        totals.update(_count_slices(rank_slices, dumps[rank]))
        span_ns = rank_slices.end_ns - context.start_ns
        totals["span_ns"] = int(span_ns.max(initial=totals["span_ns"]))
        context.on_progress("drawing ranks", done, len(context.shown))
    arrows = make_arrows(plan)
    totals["arrows"] = len(arrows)
    totals["arrows_left_out"] = plan.possible - len(arrows)
    absences = find_absences(context)
    write(encoder.tail(arrows, absences, _file_metadata(context)))
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
    file: Path, context: TimelineContext, totals: Mapping[str, int]
) -> Timeline:
    with output_to(file):
        size = file.stat().st_size
    return Timeline(
        path=str(file),
        size=size,
        ranks=context.shown,
        start_ns=context.start_ns,
        clocks=context.clocks,
        undated=tuple(
            rank
            for rank in context.shown
            if dump_time_ns(context.job.dumps[rank]) is None
        ),
        **totals,
    )


def _ignore_progress(stage: str, done: int, total: int) -> None:
    """
    Ignore progress.
    """


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


def _file_metadata(context: TimelineContext) -> dict[str, Any]:
    """
    Return the metadata of the file.
    """
    return {
        "tool": "distdebug",
        "verdict": clean(context.report.verdict.summary, limit=400),
        "cause": str(context.report.verdict.cause),
        "zero_ns_since_epoch": context.start_ns,
        "clocks": [as_plain(clock) for clock in context.clocks],
        "clocks_are": "set back by ahead_ns where corrected; estimated from "
        "when the ranks noticed the ends of the same collectives",
    }
