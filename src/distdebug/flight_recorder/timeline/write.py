"""
How is a timeline made of dumps, and written to a file?
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
    compare_clocks,
    gather_arrivals,
    rank_offsets,
)
from .formats import ChromeFormat
from .slices import (
    Absence,
    Arrow,
    Channels,
    Drawing,
    End,
    Scene,
    Words,
    absences,
    choose_calls,
    chosen_rows,
    draw_rank,
    join_slices,
    known_until,
    lines_of_code,
    make_arrows,
    newest_ns,
    take_notes,
)


_LEAST_LATE_NS = 5_000_000
# More than this many times the doubt about clocks is no matter of clocks.
_SURE = 4
_NEVER = 1 << 62

Source = Dumps | FlightReport | Diagnosis | str | os.PathLike[str]
Tell = Callable[[str, int, int], object]


@attrs.frozen(kw_only=True)
class Plan:
    """
    What a timeline is made of.

    Attributes:
        report: What the dumps say.

        scene: What all ranks have in common.

        clocks: How the clocks of the hosts are set.

        shown: The ranks that are drawn, ascending.

        start_ns: The time that is called zero, by the common clock.
    """

    report: FlightReport
    scene: Scene
    clocks: tuple[HostClock, ...]
    shown: tuple[int, ...]
    start_ns: int


def make_plan(
    source: Source,
    *,
    ranks: Iterable[int] | None,
    groups: Iterable[str] | None,
    last: int | None,
    tell: Tell,
) -> Plan:
    """
    What is drawn, of whom, and by which clock?

    Args:
        source: Dumps, or what was made of them.

        ranks: Draw these; None for all.

        groups: Draw only calls in these process groups; None for all.

        last: Draw so many of the newest calls of each rank; None for all.

        tell: Called with what is being done, and how many of how many are.

    Raises:
        NoDumpsError: Nothing of that is in the dumps.
    """
    report = _report_of(source, tell)
    scene, clocks = _survey(report.dumps, groups, last, tell)
    shown = _shown(scene, ranks)
    return Plan(
        report=report,
        scene=scene,
        clocks=clocks,
        shown=shown,
        start_ns=min(_first_ns(scene, rank) for rank in shown),
    )


def _report_of(source: Source, tell: Tell) -> FlightReport:
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
            progress=lambda done, all_: tell("reading dumps", done, all_),
        )
    return analyze_dumps(source)


def _survey(
    dumps: Dumps, groups: Iterable[str] | None, last: int | None, tell: Tell
) -> tuple[Scene, tuple[HostClock, ...]]:
    """
    Find out what all ranks have in common.
    """
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    clocks = compare_clocks(dumps, membership, signatures)
    offsets = rank_offsets(dumps, clocks)
    done = itertools.count(1)
    arrivals = gather_arrivals(
        dumps,
        membership,
        signatures,
        offsets,
        tick=lambda: tell("comparing ranks", next(done), len(dumps)),
    )
    doubt = max((clock.doubt_ns or 0 for clock in clocks), default=0)
    scene = Scene(
        dumps=dumps,
        membership=membership,
        signatures=signatures,
        channels=Channels.of(signatures),
        arrivals=arrivals,
        offsets=offsets,
        until=_until(dumps, offsets),
        late_ns=max(_LEAST_LATE_NS, _SURE * doubt),
        groups=None if groups is None else frozenset(groups),
        last=last,
    )
    return scene, clocks


def _until(dumps: Dumps, offsets: Mapping[int, int]) -> dict[int, int]:
    """
    Until when does each rank know, by the common clock?
    """
    newest = max(
        (newest_ns(dump) - offsets[dump.rank] for dump in dumps), default=0
    )
    until = {dump.rank: known_until(dump) for dump in dumps}
    return {
        rank: newest if ns is None else ns - offsets[rank]
        for rank, ns in until.items()
    }


def _shown(scene: Scene, ranks: Iterable[int] | None) -> tuple[int, ...]:
    """
    The ranks that are drawn: all that were asked for and left a dump.
    """
    wanted = None if ranks is None else set(ranks)
    shown = tuple(
        rank for rank in scene.dumps.ranks if wanted is None or rank in wanted
    )
    if not any(len(chosen_rows(scene, scene.dumps[rank])) for rank in shown):
        raise _nothing_to_draw(scene.dumps)

    return shown


def _nothing_to_draw(dumps: Dumps) -> NoDumpsError:
    unread = [missing for missing in dumps.problems if missing.what == "dump"]
    if unread and not any(len(dump.entries) for dump in dumps):
        msg = f"no dump could be read: {unread[0].reason}"
        remedy = "list what is missing with: distdebug analyze"
        return NoDumpsError(msg, remedy=remedy)

    msg = "no call that was asked for is in the dumps"
    return NoDumpsError(msg, remedy="ask for other ranks or groups")


def _first_ns(scene: Scene, rank: int) -> int:
    dump = scene.dumps[rank]
    created = dump.entries.created_ns[chosen_rows(scene, dump)]
    return int(created.min(initial=_NEVER)) - scene.offsets[rank]


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
        from .formats import NativeFormat

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
