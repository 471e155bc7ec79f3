"""
How is a timeline written as JSON, which every viewer of traces opens?

The Trace Event Format of Chrome: one event per line, times in microseconds.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

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


__all__ = ["ChromeFormat"]

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
