"""
Encode a timeline as Trace Event Format (JSON) or as Perfetto packets.

Trace Event Format (Chrome): one event per line, times in microseconds.
Perfetto: serialised ``perfetto.protos.Trace`` messages, times in nanoseconds.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import MissingDependencyError
from .slices import (
    AbsentRank,
    Arrow,
    RankAnnotations,
    RankSlices,
    RecordTexts,
    SliceEnd,
    SliceKind,
    SlicePoint,
    describe_slices,
)


# Reserved color names of the trace viewer.
_COLORS = {SliceEnd.OPEN: "terrible", SliceEnd.ABORTED: "terrible"}
_LATE_COLOR = "bad"


class TraceEventFormat:
    """
    Encoder of Trace Event Format (JSON), rank by rank.

    Args:
        record_texts: Texts for the codes in records.

        rank_annotations: Labels of ranks and marks of late arrivals.

        start_ns: Time zero of the file.
    """

    def __init__(
        self,
        record_texts: RecordTexts,
        rank_annotations: RankAnnotations,
        start_ns: int,
    ) -> None:
        self._record_texts = record_texts
        self._rank_annotations = rank_annotations
        self._start_ns = start_ns
        self._cache: dict[SliceKind, tuple[str, str]] = {}

    def head(self) -> bytes:
        """
        Return the beginning of the file.
        """
        title = _event("M", 0, name="trace_name", args={"name": "distdebug"})
        return f'{{"displayTimeUnit":"ms","traceEvents":[\n{title}'.encode()

    def rank(self, rank_slices: RankSlices, lines: Sequence[str]) -> bytes:
        """
        Return all events of one rank.

        Args:
            rank_slices: Its slices.

            lines: Line of code of each slice; empty if they were not read.
        """
        events = [
            *self._metadata_events(rank_slices),
            *self._slice_events(rank_slices, lines),
        ]
        events += self._late_events(rank_slices)
        return "".join(f",\n{event}" for event in events).encode()

    def tail(
        self,
        arrows: Iterable[Arrow],
        absent_ranks: Iterable[AbsentRank],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        Return the events between ranks, and the metadata of the file.

        Args:
            arrows: Arrows between slices of the same call.

            absent_ranks: Ranks that others wait for.

            about: Plain data about the file.
        """
        events = [
            *self._arrow_events(arrows),
            *map(self._absent_event, absent_ranks),
        ]
        body = "".join(f",\n{event}" for event in events)
        other = json.dumps(about)
        return f'{body}\n],"otherData":{other}}}\n'.encode()

    def _timestamp_us(self, ns: int) -> str:
        whole, part = divmod(ns - self._start_ns, 1000)
        return f"{whole}.{part:03d}"

    def _metadata_events(self, rank_slices: RankSlices) -> Iterator[str]:
        rank = rank_slices.rank
        yield _event(
            "M", rank, name="process_name", args={"name": rank_slices.label}
        )
        yield _event(
            "M", rank, name="process_sort_index", args={"sort_index": rank}
        )
        if label := self._rank_annotations.labels.get(rank):
            yield _event(
                "M", rank, name="process_labels", args={"labels": label}
            )
        for track, name in enumerate(rank_slices.tracks):
            tid = track + 1
            yield _event(
                "M", rank, tid=tid, name="thread_name", args={"name": name}
            )
            yield _event(
                "M",
                rank,
                tid=tid,
                name="thread_sort_index",
                args={"sort_index": tid},
            )

    def _slice_events(
        self, rank_slices: RankSlices, lines: Sequence[str]
    ) -> Iterator[str]:
        e, pid = rank_slices.entries, rank_slices.rank
        texts = describe_slices(
            rank_slices, self._record_texts, _encode_json, self._cache
        )
        numbers = np.where(e.is_p2p, e.p2p_seq, e.seq)
        extras = _extra_args(rank_slices, lines)
        for i, (begin, end, kind, track, late, seq, record) in enumerate(
            zip(
                rank_slices.start_ns.tolist(),
                rank_slices.end_ns.tolist(),
                rank_slices.end.tolist(),
                rank_slices.track.tolist(),
                rank_slices.is_late.tolist(),
                numbers.tolist(),
                e.record_id.tolist(),
                strict=True,
            )
        ):
            name, args = texts[i]
            whole, part = divmod(end - begin, 1000)
            color = _LATE_COLOR if late else _COLORS.get(kind)
            color_field = f',"cname":"{color}"' if color else ""
            yield (
                f'{{"ph":"X","pid":{pid},"tid":{track + 1},'
                f'"ts":{self._timestamp_us(begin)},"dur":{whole}.{part:03d},'
                f'"name":{name}{color_field},"args":{{{args},'
                f'"seq":{seq},"record":{record}{extras.get(i, "")}}}}}'
            )

    def _late_events(self, rank_slices: RankSlices) -> Iterator[str]:
        for i in np.flatnonzero(rank_slices.is_late).tolist():
            name, args = self._rank_annotations.describe_lateness(
                rank_slices, i
            )
            yield _event(
                "i",
                rank_slices.rank,
                tid=int(rank_slices.track[i]) + 1,
                ts=self._timestamp_us(int(rank_slices.start_ns[i])),
                name=name,
                args=args,
                s="t",
            )

    def _arrow_events(self, arrows: Iterable[Arrow]) -> Iterator[str]:
        for number, arrow in enumerate(arrows, 1):
            yield self._arrow_event(number, "s", arrow.source)
            yield self._arrow_event(number, "f", arrow.target, bp="e")

    def _arrow_event(
        self, number: int, ph: str, point: SlicePoint, **more: str
    ) -> str:
        return _event(
            ph,
            point.rank,
            tid=point.track + 1,
            ts=self._timestamp_us(point.ns),
            name="same call",
            cat="call",
            id=number,
            **more,
        )

    def _absent_event(self, absent: AbsentRank) -> str:
        return _event(
            "i",
            absent.rank,
            tid=0,
            ts=self._timestamp_us(absent.ns),
            name="did not arrive",
            args=dict(absent.args),
            s="p",
        )


def _encode_json(name: str, args: Mapping[str, Any]) -> tuple[str, str]:
    return json.dumps(name), json.dumps(args, separators=(",", ":"))[1:-1]


def _extra_args(
    rank_slices: RankSlices, lines: Sequence[str]
) -> dict[int, str]:
    """
    Return the arguments that only some slices have, as JSON by index.
    """
    e = rank_slices.entries
    extras: dict[int, str] = {}
    for i in np.flatnonzero(e.started_ns > 0).tolist():
        after = int(e.started_ns[i] - e.created_ns[i]) / 1e6
        extras[i] = f',"start noticed after ms":{after}'
    for i in np.flatnonzero(np.isfinite(e.duration_ms)).tolist():
        took = float(e.duration_ms[i])
        extras[i] = f'{extras.get(i, "")},"on device ms":{took}'
    for i, line in enumerate(lines):
        if line:
            extras[i] = f'{extras.get(i, "")},"line":{json.dumps(line)}'
    return extras


def _event(ph: str, pid: int, *, ts: str | None = None, **more: Any) -> str:
    event = {"ph": ph, "pid": pid, **more}
    text = json.dumps(event, separators=(",", ":"))
    return text if ts is None else f'{text[:-1]},"ts":{ts}}}'


# All packets are of one sequence, so each text is interned once.
_SEQUENCE_ID = 1
_INCREMENTAL_STATE_CLEARED, _NEEDS_INCREMENTAL_STATE = 1, 2
_ROOT_UUID = 1
# Track uuids are numbered by rank, with room for this many below each.
_TRACKS_PER_RANK = 1 << 24


class PerfettoFormat:
    """
    Encoder of Perfetto packets, rank by rank.

    Slices of the same call are one flow, in the order in which they begin.

    Args:
        record_texts: Texts for the codes in records.

        rank_annotations: Labels of ranks and marks of late arrivals.

        start_ns: Time zero of the file.

    Raises:
        MissingDependencyError: The package *perfetto* is not installed.
    """

    def __init__(
        self,
        record_texts: RecordTexts,
        rank_annotations: RankAnnotations,
        start_ns: int,
    ) -> None:
        self._proto: Any = _import_protos()
        self._record_texts = record_texts
        self._rank_annotations = rank_annotations
        self._start_ns = start_ns
        self._cache: dict[SliceKind, tuple[str, Mapping[str, Any]]] = {}
        self._interned: dict[tuple[str, str], int] = {}

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
        Return all packets of one rank.

        Args:
            rank_slices: Its slices.

            lines: Line of code of each slice; empty if they were not read.
        """
        trace = self._proto.Trace()
        self._add_tracks(trace, rank_slices)
        texts = describe_slices(
            rank_slices, self._record_texts, _as_tuple, self._cache
        )
        columns = (rank_slices.start_ns, rank_slices.end_ns, rank_slices.track)
        for i, (begin, end, track) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            name, args = texts[i]
            uuid = _uuid(rank_slices.rank, track + 1)
            more = _slice_args(rank_slices, i, lines)
            event = self._add_event(trace, begin, uuid, "TYPE_SLICE_BEGIN")
            self._annotate(trace, event, name, {**args, **more})
            if rank_slices.is_joined[i]:
                event.flow_ids.append(int(rank_slices.call[i]) + 1)
            if rank_slices.is_late[i]:
                instant = self._add_event(trace, begin, uuid, "TYPE_INSTANT")
                self._annotate(
                    trace,
                    instant,
                    *self._rank_annotations.describe_lateness(rank_slices, i),
                )
            self._add_event(trace, end, uuid, "TYPE_SLICE_END")
        return _serialize(trace)

    def tail(
        self,
        arrows: Iterable[Arrow],  # noqa: ARG002 slices carry their flows
        absent_ranks: Iterable[AbsentRank],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        Return the packets beside those of ranks, and the metadata of the file.

        Args:
            arrows: Ignored; slices carry their flow ids.

            absent_ranks: Ranks that others wait for.

            about: Plain data about the file.
        """
        trace = self._proto.Trace()
        for absent in absent_ranks:
            uuid = _uuid(absent.rank, 0)
            event = self._add_event(trace, absent.ns, uuid, "TYPE_INSTANT")
            self._annotate(trace, event, "did not arrive", absent.args)
        event = self._add_event(
            trace, self._start_ns, _ROOT_UUID, "TYPE_INSTANT"
        )
        plain = {key: json.dumps(value) for key, value in about.items()}
        self._annotate(trace, event, "about this timeline", plain)
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
        if label := self._rank_annotations.labels.get(rank):
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


def _import_protos() -> Any:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as exc:
        msg = "Perfetto's own format needs the package perfetto"
        raise MissingDependencyError(
            msg,
            remedy="pip install 'distdebug[perfetto]', or write .json.gz, "
            "which Perfetto opens, too",
        ) from exc

    return perfetto_trace_pb2


def _serialize(trace: Any) -> bytes:
    data: bytes = trace.SerializeToString()
    return data


def _uuid(rank: int, track: int) -> int:
    return (rank + 1) * _TRACKS_PER_RANK + track


def _as_tuple(
    name: str, args: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    return name, args


def _slice_args(
    rank_slices: RankSlices, i: int, lines: Sequence[str]
) -> dict[str, Any]:
    """
    Return the arguments that differ between slices of the same kind.
    """
    e = rank_slices.entries
    args: dict[str, Any] = {
        "seq": int((e.p2p_seq if e.is_p2p[i] else e.seq)[i]),
        "record": int(e.record_id[i]),
    }
    if e.started_ns[i] > 0:
        after = int(e.started_ns[i] - e.created_ns[i])
        args["start noticed after ms"] = after / 1e6
    if np.isfinite(e.duration_ms[i]):
        args["on device ms"] = float(e.duration_ms[i])
    if lines and lines[i]:
        args["line"] = lines[i]
    return args
