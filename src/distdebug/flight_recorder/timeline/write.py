"""
Write a timeline of dumps as Trace Event Format (JSON) or as Perfetto packets.

Trace Event Format (Chrome): one event per line, times in microseconds.
Perfetto: serialised ``perfetto.protos.Trace`` messages, times in nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import os

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from numpy.typing import NDArray

from ..._io import open_whole, output_to
from ..._render import as_plain
from ..._text import clean
from ...errors import DistdebugError, MissingDependencyError, NoDumpsError
from ...findings import Diagnosis
from ...ranks import RankChoice
from ..analysis.analyze import analyze_dumps
from ..analysis.job import Job
from ..analysis.report import FlightReport
from ..analysis.stragglers import MIN_DOUBT_FACTOR
from ..read import check_recorded, read_dumps
from ..reading.columns import Dumps, Labels, RankDump
from .clocks import (
    NEVER_NS,
    ProgressCallback,
    Timeline,
    collect_arrivals,
    compare_clocks,
    rank_offsets,
)
from .slices import (
    Absence,
    Arrow,
    ArrowPlan,
    RankSlices,
    SliceEnd,
    SliceKind,
    SlicePoint,
    TimelineContext,
    choose_arrow_calls,
    describe_kind,
    describe_lateness,
    dump_time_ns,
    find_absences,
    iter_slices,
    label_ranks,
    lay_out_rank,
    make_arrows,
    mark_joined_slices,
    number_channels,
    read_code_lines,
    select_rows,
)


# Cached kinds of slices; jobs repeat their calls, so nearly all fit.
_MAX_CACHED = 1 << 16


class _Encoder:
    """
    An encoder of timelines: a head, all events rank by rank, and a tail.

    Args:
        context: What the file shows.
    """

    def __init__(self, context: TimelineContext) -> None:
        self._labels = Labels.of(context.job.dumps)
        self._rank_labels = label_ranks(context.report)
        self._arrivals = context.arrivals
        self._start_ns = context.start_ns
        self._describe = lru_cache(_MAX_CACHED)(self._describe_kind)

    def _describe_kind(self, kind: SliceKind) -> tuple[str, Any]:
        """
        Return name and arguments that slices of one kind share, encoded.
        """
        return describe_kind(self._labels, kind)


# Reserved color names of the trace viewer.
_COLORS: Mapping[int, str] = {
    SliceEnd.OPEN: "terrible",
    SliceEnd.ABORTED: "terrible",
}
_LATE_COLOR = "bad"
_ABSENT = "did not arrive"


class TraceEventFormat(_Encoder):
    """
    Encoder of Trace Event Format (JSON), rank by rank.
    """

    def head(self) -> bytes:
        """
        Return the beginning of the file.
        """
        title = _metadata(0, "trace_name", "distdebug")
        return f'{{"displayTimeUnit":"ms","traceEvents":[\n{title}'.encode()

    def rank(self, rank_slices: RankSlices, lines: Sequence[str]) -> bytes:
        """
        Return all events of one rank.

        Args:
            rank_slices: Its slices.

            lines: Line of code of each slice; empty if they were not read.
        """
        return _join_events(
            [
                *self._metadata_events(rank_slices),
                *self._slice_events(rank_slices, lines),
            ]
        ).encode()

    def tail(
        self,
        arrows: Iterable[Arrow],
        absences: Iterable[Absence],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        Return the events between ranks, and the metadata of the file.

        Args:
            arrows: Arrows between slices of the same call.

            absences: Ranks that others wait for.

            about: Plain data about the file.
        """
        body = _join_events(
            [
                *self._arrow_events(arrows),
                *(self._instant("p", at, _ABSENT, x) for at, x in absences),
            ]
        )
        return f'{body}\n],"otherData":{json.dumps(about)}}}\n'.encode()

    def _describe_kind(self, kind: SliceKind) -> tuple[str, str]:
        name, args = describe_kind(self._labels, kind)
        return json.dumps(name), _fields(args)

    def _timestamp_us(self, ns: int) -> str:
        whole, part = divmod(ns - self._start_ns, 1000)
        return f"{whole}.{part:03d}"

    def _metadata_events(self, rank_slices: RankSlices) -> Iterator[str]:
        rank = rank_slices.rank
        yield _metadata(rank, "process_name", rank_slices.label)
        yield _metadata(rank, "process_sort_index", rank)
        if label := self._rank_labels.get(rank):
            yield _metadata(rank, "process_labels", label)
        for tid, name in enumerate(rank_slices.tracks, 1):
            yield _metadata(rank, "thread_name", name, tid=tid)
            yield _metadata(rank, "thread_sort_index", tid, tid=tid)

    def _slice_events(
        self, rank_slices: RankSlices, lines: Sequence[str]
    ) -> Iterator[str]:
        rank = rank_slices.rank
        for x in iter_slices(rank_slices, lines):
            name, args = self._describe(x.kind)
            whole, part = divmod(x.end_ns - x.start_ns, 1000)
            color = _LATE_COLOR if x.is_late else _COLORS.get(x.end)
            color_field = f',"cname":"{color}"' if color else ""
            more = f",{_fields(x.more)}" if x.more else ""
            yield (
                f'{{"ph":"X","pid":{rank},"tid":{x.track + 1},'
                f'"ts":{self._timestamp_us(x.start_ns)},'
                f'"dur":{whole}.{part:03d},"name":{name}{color_field},'
                f'"args":{{{args},"seq":{x.seq},"record":{x.record}{more}}}}}'
            )
            if x.is_late:
                mark = describe_lateness(self._arrivals, x.call)
                at = SlicePoint(rank, x.track, x.start_ns)
                yield self._instant("t", at, *mark)

    def _instant(
        self,
        scope: str,
        at: SlicePoint,
        name: str,
        args: Mapping[str, Any],
    ) -> str:
        ts = self._timestamp_us(at.ns)
        more = {"name": name, "args": dict(args), "s": scope}
        return _event("i", at.rank, ts=ts, tid=at.track + 1, **more)

    def _arrow_events(self, arrows: Iterable[Arrow]) -> Iterator[str]:
        for number, (source, target) in enumerate(arrows, 1):
            yield self._arrow_end("s", number, source)
            yield self._arrow_end("f", number, target, bp="e")

    def _arrow_end(
        self, ph: str, number: int, at: SlicePoint, **more: str
    ) -> str:
        ts = self._timestamp_us(at.ns)
        more |= {"name": "same call", "cat": "call"}
        return _event(ph, at.rank, ts=ts, tid=at.track + 1, id=number, **more)


def _fields(args: Mapping[str, Any]) -> str:
    return json.dumps(args, separators=(",", ":"))[1:-1]


def _join_events(events: Iterable[str]) -> str:
    return "".join(f",\n{event}" for event in events)


def _metadata(pid: int, name: str, value: object, **more: Any) -> str:
    # The argument of process_sort_index is called sort_index.
    args = {name.partition("_")[2]: value}
    return _event("M", pid, **more, name=name, args=args)


def _event(ph: str, pid: int, *, ts: str | None = None, **more: Any) -> str:
    text = _fields({"ph": ph, "pid": pid, **more})
    return f"{{{text}}}" if ts is None else f'{{{text},"ts":{ts}}}'


# All packets are of one sequence, so each text is interned once.
_SEQUENCE_ID = 1
_INCREMENTAL_STATE_CLEARED, _NEEDS_INCREMENTAL_STATE = 1, 2
_ROOT_UUID = 1
# Track uuids are numbered by rank, with room for this many below each.
_TRACKS_PER_RANK = 1 << 24


class PerfettoFormat(_Encoder):
    """
    Encoder of Perfetto packets, rank by rank.

    Slices of the same call are one flow, in the order in which they begin.

    Raises:
        MissingDependencyError: The package *perfetto* is not installed.
    """

    def __init__(self, context: TimelineContext) -> None:
        super().__init__(context)
        self._interned: dict[tuple[str, str], int] = {}
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        except ImportError as exc:
            msg = "Perfetto's own format needs the package perfetto"
            raise MissingDependencyError(
                msg,
                remedy="pip install perfetto, or write .json.gz, "
                "which Perfetto opens, too",
            ) from exc

        self._new_trace = perfetto_trace_pb2.Trace
        # The packets that are yet to be written.
        self._trace: Any = self._new_trace()

    def head(self) -> bytes:
        """
        Return the beginning of the file.
        """
        self._add_track(_ROOT_UUID, "ranks")
        first = self._trace.packet[0]
        first.sequence_flags = _INCREMENTAL_STATE_CLEARED
        return self._take_packets()

    def rank(self, rank_slices: RankSlices, lines: Sequence[str]) -> bytes:
        """
        Return all events of one rank.
        """
        self._add_tracks(rank_slices)
        for x in iter_slices(rank_slices, lines):
            name, shared = self._describe(x.kind)
            uuid = _uuid(rank_slices.rank, x.track + 1)
            args = {**shared, "seq": x.seq, "record": x.record, **x.more}
            event = self._add_event(x.start_ns, uuid, "TYPE_SLICE_BEGIN")
            self._annotate(event, name, args)
            if x.is_joined:
                event.flow_ids.append(x.call + 1)
            if x.is_late:
                mark = describe_lateness(self._arrivals, x.call)
                self._add_instant(x.start_ns, uuid, *mark)
            self._add_event(x.end_ns, uuid, "TYPE_SLICE_END")
        return self._take_packets()

    def tail(
        self,
        arrows: Iterable[Arrow],  # noqa: ARG002 slices carry their flows
        absences: Iterable[Absence],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        Return the events between ranks, and the metadata of the file.
        """
        for at, args in absences:
            uuid = _uuid(at.rank, at.track + 1)
            self._add_instant(at.ns, uuid, _ABSENT, args)
        plain = {key: json.dumps(value) for key, value in about.items()}
        self._add_instant(
            self._start_ns, _ROOT_UUID, "about this timeline", plain
        )
        return self._take_packets()

    def _take_packets(self) -> bytes:
        data: bytes = self._trace.SerializeToString()
        self._trace = self._new_trace()
        return data

    def _add_packet(self) -> Any:
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE_ID
        packet.sequence_flags = _NEEDS_INCREMENTAL_STATE
        return packet

    def _add_tracks(self, rank_slices: RankSlices) -> None:
        rank = rank_slices.rank
        whole = self._add_track(_uuid(rank, 0), rank_slices.label)
        whole.parent_uuid, whole.sibling_order_rank = _ROOT_UUID, rank
        if label := self._rank_labels.get(rank):
            whole.description = label
        for i, name in enumerate(rank_slices.tracks):
            part = self._add_track(_uuid(rank, i + 1), name)
            part.parent_uuid, part.sibling_order_rank = _uuid(rank, 0), i
            # Do not merge lanes of the same name into one track.
            part.sibling_merge_behavior = part.SIBLING_MERGE_BEHAVIOR_NONE

    def _add_track(self, uuid: int, name: str) -> Any:
        track = self._add_packet().track_descriptor
        track.uuid, track.name = uuid, name
        track.child_ordering = track.EXPLICIT
        return track

    def _add_event(self, ns: int, uuid: int, kind: str) -> Any:
        packet = self._add_packet()
        packet.timestamp = max(ns - self._start_ns, 0)
        event = packet.track_event
        event.track_uuid = uuid
        event.type = getattr(event, kind)
        return event

    def _add_instant(
        self, ns: int, uuid: int, name: str, args: Mapping[str, Any]
    ) -> None:
        event = self._add_event(ns, uuid, "TYPE_INSTANT")
        self._annotate(event, name, args)

    def _annotate(
        self, event: Any, name: str, args: Mapping[str, Any]
    ) -> None:
        """
        Set name and arguments of the last event; write each text only once.
        """
        new = self._trace.packet[-1].interned_data
        event.name_iid = self._intern(new.event_names, "name", name)
        for key, value in args.items():
            note = event.debug_annotations.add()
            note.name_iid = self._intern(
                new.debug_annotation_names, "key", key
            )
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value_iid = self._intern(
                    new.debug_annotation_string_values, "value", str(value)
                )

    def _intern(self, new: Any, kind: str, text: str) -> int:
        number = self._interned.get((kind, text))
        if number is not None:
            return number

        number = self._interned[kind, text] = len(self._interned) + 1
        entry = new.add()
        entry.iid = number
        if kind == "value":
            entry.str = text.encode()
        else:
            entry.name = text
        return number


def _uuid(rank: int, track: int) -> int:
    return (rank + 1) * _TRACKS_PER_RANK + track


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
            source, progress=partial(on_progress, "reading dumps")
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
    doubt = max((clock.doubt_ns or 0 for clock in clocks), default=0)
    created = _first_created_ns(dumps, ranks, is_group_shown, last)
    return TimelineContext(
        report=report,
        job=job,
        shown=tuple(created),
        start_ns=min(ns - offsets[rank] for rank, ns in created.items()),
        clocks=clocks,
        channels=number_channels(job),
        arrivals=collect_arrivals(job, offsets, on_progress),
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
    on_progress = tell or (lambda *_: None)
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
