"""
What is known of the ranks?

Whatever a rank sent is cleaned here: it is shown on terminals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs

from ..._showing import Block, Lines, Shown, Table
from ..._text import without_controls
from ...ranks import fold_ranks


__all__ = [
    "IDLE",
    "Listing",
    "LostNode",
    "Process",
    "Session",
    "Silent",
    "loss_lines",
    "plain_text",
    "ranks_shown",
    "ranks_told",
    "silence_lines",
]


_MOST_ROWS = 10_000

IDLE = "idle"
"""The group of workers that have nothing to do, as Ray keeps them."""


def ranks_shown(ranks: Iterable[int | None]) -> str:
    """
    How are these ranks shown?

    Args:
        ranks: Their numbers; None where no launcher told one.

    Returns:
        Such as ``"0-3,7"``, with ``"-"`` for those without a number.
    """
    every = set(ranks)
    known = fold_ranks(r for r in every if r is not None)
    return ",".join(filter(None, [known, "-" if None in every else ""]))


def ranks_told(ranks: Iterable[int | None]) -> str:
    """
    How are these ranks named in a sentence?

    Args:
        ranks: Their numbers; None where no launcher told one.

    Returns:
        Such as ``"rank 3"`` or ``"ranks 0-3"``.
    """
    every = set(ranks)
    return f"rank{'s' * (len(every) != 1)} {ranks_shown(every)}"


def plain_text(value: object) -> str:
    """
    What may be shown of a text that a rank sent?

    Args:
        value: Anything.

    Returns:
        Its lines, without what a terminal would obey, and without what is
        invisible.
    """
    text = without_controls(str(value))
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


@attrs.frozen(kw_only=True)
class Session:
    """
    One thread of a rank that the debugger holds.

    Attributes:
        key: What tells it from all others: host, process, start of the
            process, thread, and number of the stop.

        number: The number of the stop in its process.

        thread: The name of the thread.

        reason: Why it stopped: ``"breakpoint"``, ``"post mortem"``, or
            ``"interrupt"``.

        state: ``"stopped"``, or ``"running"`` while it obeys a command.

        function: Where it is.

        file: The file of that line.

        line: The line, counted from 1.

        left_s: After how many seconds it goes on by itself.

        patience_left_s: After how many seconds others may give up waiting
            for it in a collective, if they began when it stopped; ``None`` if
            that is not known.

        labels: The *group*, *rank*, and *coords* under which it stopped, if it
            says so.  A process of Monarch holds several actors, and the rank
            of a slice is not that of the whole mesh.
    """

    key: str
    number: int
    thread: str
    reason: str
    state: str
    function: str
    file: str
    line: int
    left_s: int
    patience_left_s: int | None = None
    labels: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class Process:
    """
    One process that can be asked.

    Attributes:
        path: Its socket; on another node, behind the name of that and a colon.

        group: Under which group it is addressed.

        rank: Under which rank; None, shown as ``-``, where no launcher
            tells.

        coords: The index in each dimension of its mesh, as the job names them.

        host: Its node.

        pid: Its number there.

        function: Where its main thread is, in the user's own code.

        file: The file of that line.

        line: The line, counted from 1.

        sessions: Its threads that are held.

        name: What tells it from the rank itself, if that is another process:
            readers of data have the number of their rank.
    """

    path: str
    group: str
    rank: int | None
    coords: Mapping[str, int]
    host: str
    pid: int
    function: str = ""
    file: str = ""
    line: int = 0
    sessions: tuple[Session, ...] = ()
    name: str = ""

    @property
    def is_stopped(self) -> bool:
        """
        Whether one of its threads waits for a command.
        """
        return any(s.state == "stopped" for s in self.sessions)

    @property
    def place(self) -> tuple[str, int, str, int]:
        """
        Where it stands in a list.
        """
        rank = -1 if self.rank is None else self.rank
        return self.group, rank, self.host, self.pid


def _by_labels(processes: Iterable[Process]) -> tuple[Process, ...]:
    """
    Address threads as they were when they stopped.
    """
    before = tuple(processes)
    found = tuple(part for p in before for part in _parts(p))
    if found == before:
        return before
    return tuple(sorted(found, key=attrgetter("place")))


def _parts(process: Process) -> list[Process]:
    parts: dict[str, Process] = {}
    for session in process.sessions:
        labels = session.labels or {}
        part = parts.setdefault(
            repr(labels), attrs.evolve(process, **labels, sessions=())
        )
        parts[repr(labels)] = attrs.evolve(
            part, sessions=(*part.sessions, session)
        )
    return [*parts.values()] or [process]


@attrs.frozen(kw_only=True, order=True)
class Silent:
    """
    One process that does not answer.

    Attributes:
        host: Its node; ``""`` if that is this one.

        pid: Its number there.
    """

    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid}" + (self.host and f" on {self.host}")


@attrs.frozen(kw_only=True, order=True)
class LostNode:
    """
    One node that cannot be asked.

    Attributes:
        host: Its name.

        reason: Why not, in one line.

        remedy: What to do about it, or ``""``.
    """

    host: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        advice = self.remedy and f" ({self.remedy})"
        return f"{self.host} cannot be asked: {self.reason}{advice}"


@attrs.frozen(kw_only=True)
class Listing(Shown):
    """
    Which ranks can be asked, and which are stopped?

    Attributes:
        processes: All that answered, by group and rank.  One whose threads
            stopped under several labels stands there once for each.

        silent: The processes that did not.

        lost: The nodes that cannot be asked.

        idle: The nodes on which nobody listens.
    """

    processes: tuple[Process, ...] = attrs.field(
        default=(), converter=_by_labels
    )
    silent: tuple[Silent, ...] = ()
    lost: tuple[LostNode, ...] = ()
    idle: tuple[str, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.processes)

    @property
    def sessions(self) -> tuple[tuple[Process, Session], ...]:
        """
        All threads that are held, in the order in which they are shown.
        """
        return tuple((p, s) for p in self.processes for s in p.sessions)

    @property
    def notes(self) -> tuple[str, ...]:
        """
        Who could not be asked, in sentences.
        """
        return (
            *_idleness(self.idle),
            *silence_lines(self.silent),
            *loss_lines(self.lost),
        )

    def to_records(self) -> list[dict[str, Any]]:
        """
        Plain data, one row for each process.
        """
        return [attrs.asdict(process) for process in self.processes]

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return attrs.asdict(self)

    def _blocks_(self) -> Iterable[Block]:
        if self.processes:
            rows = list(_rows(self.processes))
            yield Table(_HEADERS, rows, most=_MOST_ROWS, more="processes")
        else:
            yield "no rank listens here"
        yield Lines(self.notes, most=_MOST_ROWS)


_HEADERS = (
    "#",
    "group",
    "rank",
    "coords",
    "host",
    "thread",
    "state",
    "function",
    "line",
)


def _rows(processes: Iterable[Process]) -> Iterable[tuple[object, ...]]:
    number = 0
    for p in processes:
        coords = " ".join(f"{k}={v}" for k, v in p.coords.items())
        labels = (p.group, ranks_shown([p.rank]), coords, p.host)
        if not p.sessions:
            where = (p.function, f"{p.file}:{p.line}")
            yield ("", *labels, p.name, "not stopped", *where)
        for s in p.sessions:
            number += 1
            state = f"{s.state} ({s.reason})"
            where = (s.function, f"{s.file}:{s.line}")
            yield (f"#{number}", *labels, s.thread, state, *where)


def silence_lines(silent: Iterable[Silent]) -> Iterable[str]:
    """
    Say who does not answer, and why that may be.

    Args:
        silent: Who.
    """
    for one in sorted(set(silent)):
        yield (
            f"{one} does not answer: native code holds its "
            "interpreter, or it is suspended; see: stack"
        )


def loss_lines(lost: Iterable[LostNode]) -> Iterable[str]:
    """
    Say which nodes cannot be asked, and why.

    Args:
        lost: Which.
    """
    yield from map(str, sorted(set(lost)))


def _idleness(hosts: Sequence[str]) -> Iterable[str]:
    if hosts:
        more = f", and {len(hosts) - 8} more" if len(hosts) > 8 else ""
        yield f"nobody listens on {', '.join(hosts[:8])}{more}"
