"""
What is drawn, of whom, and by which clock?
"""

from __future__ import annotations

import itertools
import os

from collections.abc import Callable, Iterable, Mapping

import attrs

from ...errors import NoDumpsError
from ...findings import Diagnosis
from ..analysis.analyze import analyze_dumps
from ..analysis.membership import find_groups
from ..analysis.operations import Signatures
from ..analysis.report import FlightReport
from ..columns import Dumps
from ..read import read_dumps
from .arrivals import gather_arrivals
from .clocks import compare_clocks, rank_offsets
from .drawing import Scene, chosen_rows
from .ends import known_until, newest_ns
from .model import HostClock
from .tracks import Channels


__all__ = ["Plan", "Source", "Tell", "make_plan"]

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
