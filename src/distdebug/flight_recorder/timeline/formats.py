"""
How is a timeline written as JSON, which every viewer of traces opens?

The Trace Event Format of Chrome: one event per line, times in microseconds.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import MissingDependencyError
from .slices import (
    Absence,
    Arrow,
    Drawing,
    End,
    Kind,
    Notes,
    Place,
    Words,
    say,
)


# Names of colours that viewers know.
_COLOURS = {End.OPEN: "terrible", End.ABORTED: "terrible"}
_LATE_COLOUR = "bad"


class ChromeFormat:
    """
    Writes what is drawn as JSON, rank by rank.

    Args:
        words: What the codes in records stand for.

        notes: What is known of ranks as a whole.

        start_ns: The time that is called zero.
    """

    def __init__(self, words: Words, notes: Notes, start_ns: int) -> None:
        self._words = words
        self._notes = notes
        self._start_ns = start_ns
        self._kept: dict[Kind, tuple[str, str]] = {}

    def head(self) -> bytes:
        """
        What the file begins with.
        """
        title = _event("M", 0, name="trace_name", args={"name": "distdebug"})
        return f'{{"displayTimeUnit":"ms","traceEvents":[\n{title}'.encode()

    def rank(self, drawing: Drawing, lines: Sequence[str]) -> bytes:
        """
        All events of one rank.

        Args:
            drawing: Its slices.

            lines: The line of code of each; empty if they were not read.
        """
        events = [*self._names(drawing), *self._slices(drawing, lines)]
        events += self._marks(drawing)
        return "".join(f",\n{event}" for event in events).encode()

    def tail(
        self,
        arrows: Iterable[Arrow],
        absences: Iterable[Absence],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        What joins ranks, and what the file is about.

        Args:
            arrows: Which slices are the same call.

            absences: Which ranks are waited for in vain.

            about: Plain data.
        """
        events = [*self._arrows(arrows), *map(self._absence, absences)]
        body = "".join(f",\n{event}" for event in events)
        other = json.dumps(about)
        return f'{body}\n],"otherData":{other}}}\n'.encode()

    def _time(self, ns: int) -> str:
        whole, part = divmod(ns - self._start_ns, 1000)
        return f"{whole}.{part:03d}"

    def _names(self, drawing: Drawing) -> Iterator[str]:
        rank = drawing.rank
        yield _event(
            "M", rank, name="process_name", args={"name": drawing.label}
        )
        yield _event(
            "M", rank, name="process_sort_index", args={"sort_index": rank}
        )
        if label := self._notes.labels.get(rank):
            yield _event(
                "M", rank, name="process_labels", args={"labels": label}
            )
        for track, name in enumerate(drawing.tracks):
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

    def _slices(self, drawing: Drawing, lines: Sequence[str]) -> Iterator[str]:
        e, pid = drawing.entries, drawing.rank
        said = say(drawing, self._words, _encoded, self._kept)
        numbers = np.where(e.is_p2p, e.p2p_seq, e.seq)
        extras = _extras(drawing, lines)
        for i, (begin, end, kind, track, late, seq, record) in enumerate(
            zip(
                drawing.start_ns.tolist(),
                drawing.end_ns.tolist(),
                drawing.end.tolist(),
                drawing.track.tolist(),
                drawing.is_late.tolist(),
                numbers.tolist(),
                e.record_id.tolist(),
                strict=True,
            )
        ):
            name, args = said[i]
            whole, part = divmod(end - begin, 1000)
            colour = _LATE_COLOUR if late else _COLOURS.get(kind)
            shade = f',"cname":"{colour}"' if colour else ""
            yield (
                f'{{"ph":"X","pid":{pid},"tid":{track + 1},'
                f'"ts":{self._time(begin)},"dur":{whole}.{part:03d},'
                f'"name":{name}{shade},"args":{{{args},'
                f'"seq":{seq},"record":{record}{extras.get(i, "")}}}}}'
            )

    def _marks(self, drawing: Drawing) -> Iterator[str]:
        for i in np.flatnonzero(drawing.is_late).tolist():
            name, args = self._notes.lateness(drawing, i)
            yield _event(
                "i",
                drawing.rank,
                tid=int(drawing.track[i]) + 1,
                ts=self._time(int(drawing.start_ns[i])),
                name=name,
                args=args,
                s="t",
            )

    def _arrows(self, arrows: Iterable[Arrow]) -> Iterator[str]:
        for number, arrow in enumerate(arrows, 1):
            yield self._end(number, "s", arrow.source)
            yield self._end(number, "f", arrow.target, bp="e")

    def _end(self, number: int, ph: str, place: Place, **more: str) -> str:
        return _event(
            ph,
            place.rank,
            tid=place.track + 1,
            ts=self._time(place.ns),
            name="same call",
            cat="call",
            id=number,
            **more,
        )

    def _absence(self, absence: Absence) -> str:
        return _event(
            "i",
            absence.rank,
            tid=0,
            ts=self._time(absence.ns),
            name="did not arrive",
            args=dict(absence.args),
            s="p",
        )


def _encoded(name: str, args: Mapping[str, Any]) -> tuple[str, str]:
    return json.dumps(name), json.dumps(args, separators=(",", ":"))[1:-1]


def _extras(drawing: Drawing, lines: Sequence[str]) -> dict[int, str]:
    """
    What only some slices have: starts, durations, lines of code.
    """
    e = drawing.entries
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


# One writer wrote all of it, so a text needs to be told once.
_SEQUENCE = 1
_STARTS_AFRESH, _NEEDS_TEXTS = 1, 2
_ROOT = 1
# Each rank has one track, and below it room for so many.
_TRACKS_PER_RANK = 1 << 24


class NativeFormat:
    """
    Writes what is drawn as packets, rank by rank.

    Slices of the same call are joined in the order in which they begin.

    Args:
        words: What the codes in records stand for.

        notes: What is known of ranks as a whole.

        start_ns: The time that is called zero.

    Raises:
        MissingDependencyError: The package *perfetto* is not installed.
    """

    def __init__(self, words: Words, notes: Notes, start_ns: int) -> None:
        self._proto: Any = _messages()
        self._words = words
        self._notes = notes
        self._start_ns = start_ns
        self._kept: dict[Kind, tuple[str, Mapping[str, Any]]] = {}
        self._texts: dict[tuple[str, str], int] = {}

    def head(self) -> bytes:
        """
        What the file begins with.
        """
        trace = self._proto.Trace()
        self._track(trace, _ROOT, "ranks")
        trace.packet[0].sequence_flags = _STARTS_AFRESH
        return _bytes(trace)

    def rank(self, drawing: Drawing, lines: Sequence[str]) -> bytes:
        """
        All packets of one rank.

        Args:
            drawing: Its slices.

            lines: The line of code of each; empty if they were not read.
        """
        trace = self._proto.Trace()
        self._tracks(trace, drawing)
        said = say(drawing, self._words, _unchanged, self._kept)
        columns = (drawing.start_ns, drawing.end_ns, drawing.track)
        for i, (begin, end, track) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            name, args = said[i]
            uuid = _uuid(drawing.rank, track + 1)
            more = _more_args(drawing, i, lines)
            event = self._event(trace, begin, uuid, "TYPE_SLICE_BEGIN")
            self._tell(trace, event, name, {**args, **more})
            if drawing.is_joined[i]:
                event.flow_ids.append(int(drawing.call[i]) + 1)
            if drawing.is_late[i]:
                mark = self._event(trace, begin, uuid, "TYPE_INSTANT")
                self._tell(trace, mark, *self._notes.lateness(drawing, i))
            self._event(trace, end, uuid, "TYPE_SLICE_END")
        return _bytes(trace)

    def tail(
        self,
        arrows: Iterable[Arrow],  # noqa: ARG002 slices carry their flows
        absences: Iterable[Absence],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        What is not about one rank, and what the file is about.

        Args:
            arrows: Which slices are the same call.

            absences: Which ranks are waited for in vain.

            about: Plain data.
        """
        trace = self._proto.Trace()
        for absence in absences:
            uuid = _uuid(absence.rank, 0)
            event = self._event(trace, absence.ns, uuid, "TYPE_INSTANT")
            self._tell(trace, event, "did not arrive", absence.args)
        event = self._event(trace, self._start_ns, _ROOT, "TYPE_INSTANT")
        plain = {key: json.dumps(value) for key, value in about.items()}
        self._tell(trace, event, "about this timeline", plain)
        return _bytes(trace)

    def _packet(self, trace: Any) -> Any:
        packet = trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDS_TEXTS
        return packet

    def _tracks(self, trace: Any, drawing: Drawing) -> None:
        rank = drawing.rank
        whole = self._track(trace, _uuid(rank, 0), drawing.label)
        whole.parent_uuid, whole.sibling_order_rank = _ROOT, rank
        if label := self._notes.labels.get(rank):
            whole.description = label
        for i, name in enumerate(drawing.tracks):
            part = self._track(trace, _uuid(rank, i + 1), name)
            part.parent_uuid, part.sibling_order_rank = _uuid(rank, 0), i
            # Lanes of one name are tracks of their own.
            part.sibling_merge_behavior = part.SIBLING_MERGE_BEHAVIOR_NONE

    def _track(self, trace: Any, uuid: int, name: str) -> Any:
        track = self._packet(trace).track_descriptor
        track.uuid, track.name = uuid, name
        track.child_ordering = track.EXPLICIT
        return track

    def _event(self, trace: Any, ns: int, uuid: int, kind: str) -> Any:
        packet = self._packet(trace)
        packet.timestamp = max(ns - self._start_ns, 0)
        event = packet.track_event
        event.track_uuid = uuid
        event.type = getattr(event, kind)
        return event

    def _tell(
        self, trace: Any, event: Any, name: str, args: Mapping[str, Any]
    ) -> None:
        """
        Give an event a name and arguments; each text is written only once.
        """
        new = trace.packet[-1].interned_data
        event.name_iid = self._known(new.event_names, "name", name)
        for key, value in args.items():
            note = event.debug_annotations.add()
            note.name_iid = self._known(new.debug_annotation_names, "key", key)
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value_iid = self._known(
                    new.debug_annotation_string_values, "value", str(value)
                )

    def _known(self, new: Any, kind: str, text: str) -> int:
        number = self._texts.get((kind, text))
        if number is not None:
            return number

        number = self._texts[kind, text] = len(self._texts) + 1
        entry = new.add()
        entry.iid = number
        if kind == "value":
            entry.str = text.encode()
        else:
            entry.name = text
        return number


def _messages() -> Any:
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


def _bytes(trace: Any) -> bytes:
    data: bytes = trace.SerializeToString()
    return data


def _uuid(rank: int, track: int) -> int:
    return (rank + 1) * _TRACKS_PER_RANK + track


def _unchanged(
    name: str, args: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    return name, args


def _more_args(
    drawing: Drawing, i: int, lines: Sequence[str]
) -> dict[str, Any]:
    """
    What differs between slices of the same kind.
    """
    e = drawing.entries
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
