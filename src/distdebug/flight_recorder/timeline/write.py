"""
Write a timeline of dumps to a JSON or Perfetto file.
"""

from __future__ import annotations

import gzip
import itertools
import os

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs

from ..._io import open_whole, output_to
from ..._text import clean
from ...errors import DistdebugError, NoDumpsError
from ...findings import Diagnosis, as_plain
from ..analysis.analyze import analyze_dumps
from ..analysis.membership import Signatures, find_groups
from ..analysis.report import FlightReport
from ..read import read_dumps
from ..reading.columns import Dumps, RankDump
from .clocks import (
    HostClock,
    Timeline,
    collect_arrivals,
    compare_clocks,
    rank_offsets,
)
from .formats import TraceEventFormat
from .slices import (
    AbsentRank,
    Arrow,
    PeerPairs,
    RankSlices,
    RecordTexts,
    SliceEnd,
    TimelineContext,
    choose_arrow_calls,
    dump_time_ns,
    find_absent_ranks,
    lay_out_rank,
    make_annotations,
    make_arrows,
    mark_joined_slices,
    newest_record_ns,
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
class TimelinePlan:
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


def plan_timeline(
    source: TimelineSource,
    *,
    ranks: Iterable[int] | None,
    groups: Iterable[str] | None,
    last: int | None,
    on_progress: ProgressCallback,
) -> TimelinePlan:
    """
    Select ranks and calls, and compare clocks.

    Args:
        ranks: Global ranks; ``None`` for all.

        groups: Names or descriptions of process groups; ``None`` for all.

        last: Number of newest calls of each rank; ``None`` for all.

        on_progress: Called with the stage, the number done, and their total.

    Raises:
        NoDumpsError: The selection is empty.
    """
    report = _load_report(source, on_progress)
    context, clocks = _make_context(report.dumps, groups, last, on_progress)
    shown = _select_ranks(context, ranks)
    return TimelinePlan(
        report=report,
        context=context,
        clocks=clocks,
        shown=shown,
        start_ns=min(_first_ns(context, rank) for rank in shown),
    )


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
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    clocks = compare_clocks(dumps, membership, signatures)
    offsets = rank_offsets(dumps, clocks)
    done = itertools.count(1)
    arrivals = collect_arrivals(
        dumps,
        membership,
        signatures,
        offsets,
        on_rank_done=lambda: on_progress(
            "comparing ranks", next(done), len(dumps)
        ),
    )
    doubt = max((clock.doubt_ns or 0 for clock in clocks), default=0)
    context = TimelineContext(
        dumps=dumps,
        membership=membership,
        signatures=signatures,
        peer_pairs=PeerPairs.of(signatures),
        arrivals=arrivals,
        offsets=offsets,
        dump_times_ns=_dump_times_ns(dumps, offsets),
        late_ns=max(_MIN_LATE_NS, _MIN_DOUBT_FACTOR * doubt),
        groups=None if groups is None else frozenset(groups),
        last=last,
    )
    return context, clocks


def _dump_times_ns(dumps: Dumps, offsets: Mapping[int, int]) -> dict[int, int]:
    """
    Return the time of each dump by the common clock; if unknown, the newest.
    """
    newest = max(
        (newest_record_ns(dump) - offsets[dump.rank] for dump in dumps),
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
        for rank in context.dumps.ranks
        if selected is None or rank in selected
    )
    if not any(
        len(select_rows(context, context.dumps[rank])) for rank in shown
    ):
        raise _no_calls_error(context.dumps)

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
    dump = context.dumps[rank]
    created = dump.entries.created_ns[select_rows(context, dump)]
    return int(created.min(initial=_NEVER)) - context.offsets[rank]


_SUFFIXES = (".json.gz", ".json", ".pftrace")
# Twice as fast as the default level, for 10 % more bytes.
_GZIP_LEVEL = 3


class _TimelineFormat(Protocol):
    """
    An encoder of timelines.
    """

    def head(self) -> bytes:
        """
        Return the beginning of the file.
        """

    def rank(self, rank_slices: RankSlices, lines: Sequence[str]) -> bytes:
        """
        Return all events of one rank.
        """

    def tail(
        self,
        arrows: Iterable[Arrow],
        absent_ranks: Iterable[AbsentRank],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        Return the events between ranks, and the metadata of the file.
        """


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
    plan = plan_timeline(
        dumps_or_path,
        ranks=ranks,
        groups=groups,
        last=last,
        on_progress=on_progress,
    )
    context = plan.context
    arrow_plan = choose_arrow_calls(
        context.arrivals, context.membership.groups, most_arrows
    )
    encoder = _make_format(file, plan)
    totals = _SliceTotals()
    with output_to(file), _open_output(file) as write:
        write(encoder.head())
        for done, rank in enumerate(plan.shown, 1):
            rank_slices = lay_out_rank(context, rank)
            rank_slices = mark_joined_slices(
                arrow_plan, context.arrivals, rank_slices
            )
            lines = (
                read_code_lines(context.dumps, rank_slices)
                if stack_traces
                else []
            )
            write(encoder.rank(rank_slices, lines))
            totals = totals.add(rank_slices, context.dumps[rank])
            on_progress("drawing ranks", done, len(plan.shown))
        arrows = make_arrows(arrow_plan)
        write(
            encoder.tail(
                arrows, _find_absent_ranks(plan), _file_metadata(plan)
            )
        )

    return _summarize(file, plan, totals, (len(arrows), arrow_plan.possible))


def _check_arguments(file: Path, last: int | None) -> Path:
    if not file.name.endswith(_SUFFIXES):
        msg = f"no format of timelines is called {file.name}"
        raise DistdebugError(msg, remedy=f"end it in {', '.join(_SUFFIXES)}")
    if last is not None and last < 1:
        msg = f"the last {last} calls are none"
        raise DistdebugError(msg, remedy="ask for at least one")

    return file


def _find_absent_ranks(plan: TimelinePlan) -> Iterable[AbsentRank]:
    dump_times_ns = plan.context.dump_times_ns
    return find_absent_ranks(
        plan.report, {rank: dump_times_ns[rank] for rank in plan.shown}
    )


def _summarize(
    file: Path,
    plan: TimelinePlan,
    totals: _SliceTotals,
    arrows: tuple[int, int],
) -> Timeline:
    drawn_arrows, possible = arrows
    with output_to(file):
        size = file.stat().st_size
    return Timeline(
        path=str(file),
        size=size,
        ranks=plan.shown,
        start_ns=plan.start_ns,
        span_ns=max(totals.end_ns - plan.start_ns, 0),
        slices=totals.slices,
        tracks=totals.tracks,
        open=totals.open,
        unended=totals.unended,
        late=totals.late,
        arrows=drawn_arrows,
        arrows_left_out=possible - drawn_arrows,
        records_left_out=totals.left_out,
        clocks=plan.clocks,
        undated=tuple(
            rank
            for rank in plan.shown
            if dump_time_ns(plan.context.dumps[rank]) is None
        ),
    )


def _ignore_progress(stage: str, done: int, total: int) -> None:
    """
    Ignore progress.
    """


def _make_format(file: Path, plan: TimelinePlan) -> _TimelineFormat:
    record_texts = RecordTexts.of(plan.context.dumps)
    rank_annotations = make_annotations(plan.report, plan.context.arrivals)
    if file.name.endswith(".pftrace"):
        from .formats import PerfettoFormat

        return PerfettoFormat(record_texts, rank_annotations, plan.start_ns)

    return TraceEventFormat(record_texts, rank_annotations, plan.start_ns)


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


@attrs.frozen
class _SliceTotals:
    """
    Totals of the slices written so far.
    """

    slices: int = 0
    tracks: int = 0
    open: int = 0
    unended: int = 0
    late: int = 0
    left_out: int = 0
    end_ns: int = 0

    def add(self, rank_slices: RankSlices, dump: RankDump) -> _SliceTotals:
        """
        Return the totals with one more rank.
        """
        end, size = rank_slices.end, len(rank_slices.rows)
        unended = (end == SliceEnd.ARRIVED) | (end == SliceEnd.UNKNOWN)
        return _SliceTotals(
            slices=self.slices + size,
            tracks=self.tracks + len(rank_slices.tracks),
            open=self.open + int((end == SliceEnd.OPEN).sum()),
            unended=self.unended + int(unended.sum()),
            late=self.late + int(rank_slices.is_late.sum()),
            left_out=self.left_out + len(dump.entries) - size,
            end_ns=max(self.end_ns, int(rank_slices.end_ns.max(initial=0))),
        )


def _file_metadata(plan: TimelinePlan) -> dict[str, Any]:
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
