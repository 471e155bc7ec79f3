"""
How is a timeline made of dumps, and written to a file?
"""

from __future__ import annotations

import gzip
import os

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs

from ..._files import open_whole, output_to
from ..._text import clean
from ...errors import DistdebugError
from ...findings import as_plain
from ..columns import RankDump
from .arrows import Arrow, choose_calls, join_slices, make_arrows
from .chrome import ChromeFormat
from .drawing import Drawing, draw_rank
from .ends import End, known_until
from .model import Timeline
from .notes import Absence, absences, take_notes
from .plan import Plan, Source, Tell, make_plan
from .words import Words, lines_of_code


__all__ = ["write_timeline"]

_SUFFIXES = (".json.gz", ".json", ".pftrace")
# Twice as fast as the usual level, for a tenth more bytes.
_LEVEL = 3


class _Format(Protocol):
    """
    How a timeline becomes bytes.
    """

    def head(self) -> bytes:
        """
        What the file begins with.
        """

    def rank(self, drawing: Drawing, lines: Sequence[str]) -> bytes:
        """
        All events of one rank.
        """

    def tail(
        self,
        arrows: Iterable[Arrow],
        absences: Iterable[Absence],
        about: Mapping[str, Any],
    ) -> bytes:
        """
        What joins ranks, and what the file is about.
        """


def write_timeline(  # noqa: PLR0913
    dumps_or_path: Source,
    path: str | os.PathLike[str],
    *,
    ranks: Iterable[int] | None = None,
    groups: Iterable[str] | None = None,
    last: int | None = None,
    stack_traces: bool = False,
    most_arrows: int = 10_000,
    tell: Tell | None = None,
) -> Timeline:
    """
    How do the calls of all ranks look side by side in time?

    Each rank is a process, each group (and each peer that it exchanges messages
    with) a track, each call a slice from when it was enqueued until torch
    noticed its end.  What an end really is, is said in every slice.  Arrows
    lead from the last rank that arrived in a call to those that waited.

    Open the file at https://ui.perfetto.dev, or in ``chrome://tracing``.

    Args:
        dumps_or_path: What :func:`read_dumps`, :func:`analyze_dumps`, or
            :func:`diagnose` returned, or a folder of dumps.

        path: The file.  It ends in ``.json.gz`` or ``.json`` (the Trace
            Event Format), or in ``.pftrace`` (Perfetto's own, which needs the
            package *perfetto*).

        ranks: Draw these; by default all.

        groups: Draw only calls in these process groups, by name or
            description; by default in all.

        last: Draw so many of the newest calls of each rank; by default all.

        stack_traces: Whether to read the line of code of every call, for which
            all dumps are read once more.

        most_arrows: How many arrows to draw; those of the longest waits are.

        tell: Called with what is being done, and how many ranks of how many
            are.

    Returns:
        What is in the file, and what was left out.

    Raises:
        NoDumpsError: There are no dumps, or none of what was chosen is in
            them.

        DistdebugError: The name of the file says no format that we know.

        MissingDependencyError: A package is not installed that writes it.

        OutputError: It cannot be written.
    """
    file = _checked(Path(path), last)
    tell = tell or _tell_nobody
    plan = make_plan(
        dumps_or_path, ranks=ranks, groups=groups, last=last, tell=tell
    )
    scene = plan.scene
    joints = choose_calls(scene.arrivals, scene.membership.groups, most_arrows)
    form = _format_of(file, plan)
    drawn = _Drawn()
    with output_to(file), _opened(file) as put:
        put(form.head())
        for done, rank in enumerate(plan.shown, 1):
            drawing = draw_rank(scene, rank)
            drawing = join_slices(joints, scene.arrivals, drawing)
            lines = lines_of_code(scene.dumps, drawing) if stack_traces else []
            put(form.rank(drawing, lines))
            drawn = drawn.and_also(drawing, scene.dumps[rank])
            tell("drawing ranks", done, len(plan.shown))
        arrows = make_arrows(joints)
        put(form.tail(arrows, _absences(plan), _about(plan)))

    return _result(file, plan, drawn, (len(arrows), joints.possible))


def _checked(file: Path, last: int | None) -> Path:
    if not file.name.endswith(_SUFFIXES):
        msg = f"no format of timelines is called {file.name}"
        raise DistdebugError(msg, remedy=f"end it in {', '.join(_SUFFIXES)}")
    if last is not None and last < 1:
        msg = f"the last {last} calls are none"
        raise DistdebugError(msg, remedy="ask for at least one")

    return file


def _absences(plan: Plan) -> Iterable[Absence]:
    until = plan.scene.until
    return absences(plan.report, {rank: until[rank] for rank in plan.shown})


def _result(
    file: Path, plan: Plan, drawn: _Drawn, arrows: tuple[int, int]
) -> Timeline:
    made, possible = arrows
    with output_to(file):
        size = file.stat().st_size
    return Timeline(
        path=str(file),
        size=size,
        ranks=plan.shown,
        start_ns=plan.start_ns,
        span_ns=max(drawn.end_ns - plan.start_ns, 0),
        slices=drawn.slices,
        tracks=drawn.tracks,
        open=drawn.open,
        unended=drawn.unended,
        late=drawn.late,
        arrows=made,
        arrows_left_out=possible - made,
        records_left_out=drawn.left_out,
        clocks=plan.clocks,
        undated=tuple(
            rank
            for rank in plan.shown
            if known_until(plan.scene.dumps[rank]) is None
        ),
    )


def _tell_nobody(stage: str, done: int, total: int) -> None:
    """
    Nobody wants to know how far it is.
    """


def _format_of(file: Path, plan: Plan) -> _Format:
    words = Words.of(plan.scene.dumps)
    notes = take_notes(plan.report, plan.scene.arrivals)
    if file.name.endswith(".pftrace"):
        from .native import NativeFormat

        return NativeFormat(words, notes, plan.start_ns)

    return ChromeFormat(words, notes, plan.start_ns)


@contextmanager
def _opened(file: Path) -> Iterator[Callable[[bytes], object]]:
    """
    Open a file such that what is written is compressed, if its name says so.
    """
    with open_whole(file) as raw:
        if not file.name.endswith(".gz"):
            yield raw.write
            return

        with gzip.GzipFile(
            "", "wb", compresslevel=_LEVEL, fileobj=raw, mtime=0
        ) as packed:
            yield packed.write


@attrs.frozen
class _Drawn:
    """
    How much was drawn so far.
    """

    slices: int = 0
    tracks: int = 0
    open: int = 0
    unended: int = 0
    late: int = 0
    left_out: int = 0
    end_ns: int = 0

    def and_also(self, drawing: Drawing, dump: RankDump) -> _Drawn:
        """
        The same with one more rank.
        """
        end, size = drawing.end, len(drawing.rows)
        unended = (end == End.ARRIVED) | (end == End.UNKNOWN)
        return _Drawn(
            slices=self.slices + size,
            tracks=self.tracks + len(drawing.tracks),
            open=self.open + int((end == End.OPEN).sum()),
            unended=self.unended + int(unended.sum()),
            late=self.late + int(drawing.is_late.sum()),
            left_out=self.left_out + len(dump.entries) - size,
            end_ns=max(self.end_ns, int(drawing.end_ns.max(initial=0))),
        )


def _about(plan: Plan) -> dict[str, Any]:
    """
    What the file says of itself.
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
