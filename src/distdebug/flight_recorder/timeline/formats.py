"""
Encode a timeline as Trace Event Format (JSON) or as Perfetto packets.

Trace Event Format (Chrome): one event per line, times in microseconds.
Perfetto: serialised ``perfetto.protos.Trace`` messages, times in nanoseconds.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ...errors import MissingDependencyError
from ..reading.columns import Labels
from .slices import (
    Absence,
    Arrow,
    RankSlices,
    SliceEnd,
    SliceKind,
    SlicePoint,
    TimelineContext,
    describe_kind,
    describe_lateness,
    iter_slices,
    label_ranks,
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

    def _lateness(self, of: RankSlices, i: int) -> tuple[str, dict[str, Any]]:
        return describe_lateness(self._arrivals, int(of.call[i]))


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
        for i, x in enumerate(iter_slices(rank_slices, lines)):
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
                mark = self._lateness(rank_slices, i)
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

        self._proto: Any = perfetto_trace_pb2

    def head(self) -> bytes:
        """
        Return the beginning of the file.
        """
        trace = self._proto.Trace()
        self._add_track(trace, _ROOT_UUID, "ranks")
        trace.packet[0].sequence_flags = _INCREMENTAL_STATE_CLEARED
        return _serialize(trace)

    def rank(self, rank_slices: RankSlices, lines: Sequence[str]) -> bytes:
        """
        Return all events of one rank.
        """
        trace = self._proto.Trace()
        self._add_tracks(trace, rank_slices)
        for i, x in enumerate(iter_slices(rank_slices, lines)):
            name, shared = self._describe(x.kind)
            uuid = _uuid(rank_slices.rank, x.track + 1)
            args = {**shared, "seq": x.seq, "record": x.record, **x.more}
            event = self._add_event(
                trace, x.start_ns, uuid, "TYPE_SLICE_BEGIN"
            )
            self._annotate(trace, event, name, args)
            if rank_slices.is_joined[i]:
                event.flow_ids.append(int(rank_slices.call[i]) + 1)
            if x.is_late:
                mark = self._lateness(rank_slices, i)
                self._add_instant(trace, x.start_ns, uuid, *mark)
            self._add_event(trace, x.end_ns, uuid, "TYPE_SLICE_END")
        return _serialize(trace)

    def tail(
        self,
        arrows: Iterable[Arrow],  # noqa: ARG002 slices carry their flows
        absences: Iterable[Absence],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        Return the events between ranks, and the metadata of the file.
        """
        trace = self._proto.Trace()
        for at, args in absences:
            uuid = _uuid(at.rank, at.track + 1)
            self._add_instant(trace, at.ns, uuid, _ABSENT, args)
        plain = {key: json.dumps(value) for key, value in about.items()}
        self._add_instant(
            trace, self._start_ns, _ROOT_UUID, "about this timeline", plain
        )
        return _serialize(trace)

    def _add_packet(self, trace: Any) -> Any:
        packet = trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE_ID
        packet.sequence_flags = _NEEDS_INCREMENTAL_STATE
        return packet

    def _add_tracks(self, trace: Any, rank_slices: RankSlices) -> None:
        rank = rank_slices.rank
        whole = self._add_track(trace, _uuid(rank, 0), rank_slices.label)
        whole.parent_uuid, whole.sibling_order_rank = _ROOT_UUID, rank
        if label := self._rank_labels.get(rank):
            whole.description = label
        for i, name in enumerate(rank_slices.tracks):
            part = self._add_track(trace, _uuid(rank, i + 1), name)
            part.parent_uuid, part.sibling_order_rank = _uuid(rank, 0), i
            # Do not merge lanes of the same name into one track.
            part.sibling_merge_behavior = part.SIBLING_MERGE_BEHAVIOR_NONE

    def _add_track(self, trace: Any, uuid: int, name: str) -> Any:
        track = self._add_packet(trace).track_descriptor
        track.uuid, track.name = uuid, name
        track.child_ordering = track.EXPLICIT
        return track

    def _add_event(self, trace: Any, ns: int, uuid: int, kind: str) -> Any:
        packet = self._add_packet(trace)
        packet.timestamp = max(ns - self._start_ns, 0)
        event = packet.track_event
        event.track_uuid = uuid
        event.type = getattr(event, kind)
        return event

    def _add_instant(
        self,
        trace: Any,
        ns: int,
        uuid: int,
        name: str,
        args: Mapping[str, Any],
    ) -> None:
        event = self._add_event(trace, ns, uuid, "TYPE_INSTANT")
        self._annotate(trace, event, name, args)

    def _annotate(
        self, trace: Any, event: Any, name: str, args: Mapping[str, Any]
    ) -> None:
        """
        Set name and arguments of an event; write each text only once.
        """
        new = trace.packet[-1].interned_data
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


def _serialize(trace: Any) -> bytes:
    data: bytes = trace.SerializeToString()
    return data


def _uuid(rank: int, track: int) -> int:
    return (rank + 1) * _TRACKS_PER_RANK + track
