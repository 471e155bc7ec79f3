"""
What is known of the ranks?

Whatever a rank sent is cleaned here: it is shown on terminals.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import attrs

from ..._render import Block, Lines, Shown, Table
from ..._text import clean, list_text, without_controls
from ...ranks import fold_ranks


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


_MOST_LINES = 10_000


@attrs.frozen(kw_only=True)
class Output:
    """
    What one rank answered.

    Attributes:
        group: Its group.

        rank: Its rank; None where no launcher tells.

        name: What else tells it from others of this rank; mostly empty.

        text: What it printed, or why it could not.

        state: ``"stopped"``, ``"running"``, ``"ended"`` if it goes on without
            us, or ``""`` for a question that stops nobody.

        is_error: Whether it could not do what was asked.

        key: Which thread; ``""`` for the whole process.
    """

    group: str
    rank: int | None
    name: str = ""
    text: str = ""
    state: str = ""
    is_error: bool = False
    key: str = ""

    @property
    def shown(self) -> str:
        """
        The text, and what cannot be told from it.
        """
        note = {"running": "(still running)", "ended": "(goes on)"}
        parts = [self.text.rstrip("\n")]
        if not self.is_error:
            parts.append(note.get(self.state, ""))
        text = "\n".join(part for part in parts if part)
        return f"*** {text}" if self.is_error else text


@attrs.frozen(kw_only=True)
class Answers(Shown):
    """
    What many ranks answered to one question.

    Attributes:
        outputs: What each said, by group and rank.

        not_stopped: Ranks that were selected, but are not stopped.

        silent: The processes that did not answer in time.

        lost: The nodes that could not be asked.

        notes: What else there is to say.
    """

    outputs: tuple[Output, ...] = ()
    not_stopped: tuple[Process, ...] = ()
    silent: tuple[Silent, ...] = ()
    lost: tuple[LostNode, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return attrs.asdict(self)

    def _blocks_(self) -> Iterable[Block]:
        groups = {o.group for o in self.outputs}
        several = len(groups | {p.group for p in self.not_stopped}) > 1
        parts = [
            _merged(who, text)
            for who, text in merge_outputs(self.outputs, groups=several)
        ]
        if self.not_stopped:
            parts.append(_not_stopped(self.not_stopped, groups=several))
            parts.append(_how_to_stop(self.not_stopped[0], groups=several))
        lines = [
            *parts,
            *silence_lines(self.silent),
            *loss_lines(self.lost),
            *self.notes,
        ]
        yield Lines("\n".join(lines).split("\n"), most=_MOST_LINES)


def _not_stopped(processes: Iterable[Process], *, groups: bool) -> str:
    """
    Most of them wait at the same line for the others.
    """
    by_place: dict[tuple[str, str], list[int | None]] = {}
    for p in processes:
        group = f"{p.group} " if groups else ""
        place = clean(f"at {p.file}:{p.line} in {p.function}")
        by_place.setdefault((group, place), []).append(p.rank)
    where = [
        f"{group}{ranks_told(ranks)} ({place})"
        for (group, place), ranks in by_place.items()
    ]
    return f"selected but not stopped: {list_text(where, most=8)}"


def _how_to_stop(process: Process, *, groups: bool) -> str:
    group = f"{process.group} " if groups else ""
    rank = ":" if process.rank is None else process.rank
    return f"to stop one that runs: interrupt {group}ranks({rank})"


def merge_outputs(
    outputs: Iterable[Output], *, groups: bool = False
) -> tuple[tuple[str, str], ...]:
    """
    Who said the same?

    Args:
        outputs: What each rank said.

        groups: Whether to name the group of each rank.

    Returns:
        Who, as folded ranks, and what they said.  What few said comes first,
        because that is the odd one.
    """
    same: dict[str, list[Output]] = {}
    for output in outputs:
        same.setdefault(output.shown, []).append(output)
    return tuple(
        (_who(group, groups=groups), text)
        for text, group in sorted(same.items(), key=_oddness)
    )


def _oddness(item: tuple[str, list[Output]]) -> tuple[int, int]:
    _, outputs = item
    rank = outputs[0].rank
    return len(outputs), -1 if rank is None else rank


def _who(outputs: Iterable[Output], *, groups: bool) -> str:
    plain: dict[str, list[int | None]] = {}
    for output in outputs:
        name = output.name and f" {output.name}"
        group = f"{output.group} " if groups else ""
        plain.setdefault(f"{group}%s{name}", []).append(output.rank)
    return ", ".join(
        name % ranks_shown(ranks) for name, ranks in plain.items()
    )


def _merged(who: str, text: str) -> str:
    if "\n" not in text:
        return f"[{who}] {text}".rstrip()

    lines = "\n".join(f"  {line}" for line in text.split("\n"))
    return f"[{who}]\n{lines}"


_MOST_NUMBER = 1 << 62

_OWN = "/distdebug/debugger/inside/"
# Where a package is installed tells nothing; which one it is does.
_LIBRARIES = re.compile(r".*/(?:site-packages|dist-packages)/")


# Where Python, Ray, and Monarch run the work of a process.
_WORK = frozenset(
    {
        "MainThread",
        "AsyncIO Thread: default",
        "monarch-actor-driver",
        "monarch-actor-event-loop",
    }
)


class Known(NamedTuple):
    """
    Whom a relay knows on its node.

    Attributes:
        folder: Where their sockets are.

        ranks: The process and the user of each, by the name of its socket.

        silent: Processes that do not answer it.
    """

    folder: str
    ranks: Mapping[str, tuple[int, int]]
    silent: tuple[int, ...]


def ranks_known(answer: Mapping[str, Any]) -> Known | None:
    """
    Whom does a relay know?

    Args:
        answer: What it said to ``who``.

    Returns:
        Them; ``None`` if it is no answer to that.
    """
    ranks, silent = answer.get("ranks"), answer.get("silent")
    if not isinstance(ranks, dict) or not isinstance(silent, list):
        return None

    known = {
        name: (told[0], told[1])
        for name, told in ranks.items()
        if name.isprintable()
        and isinstance(told, list)
        and list(map(type, told)) == [int, int]
    }
    return Known(
        folder=_text(answer, "folder"),
        ranks=known,
        silent=tuple(pid for pid in silent if type(pid) is int),
    )


def texts_told(answer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """
    What does a relay say of processes that do not answer?

    Args:
        answer: What it said to ``outside``, if anything.

    Returns:
        Some texts, of some lines each.
    """
    return tuple(map(plain_text, _list((answer or {}).get("told"))))


def outputs_of(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """
    What did a process say of one of its threads?

    Args:
        answer: What it said of several.

        key: Which thread is meant.

    Returns:
        That, or all that it said, if it tells nothing of this one.
    """
    told = _mapping(answer.get("stops")).get(key)
    return told if isinstance(told, dict) else answer


def process_key(process: Process, answer: Mapping[str, Any]) -> object:
    """
    What tells a process from all others?

    Args:
        process: The process.

        answer: What it said to ``list``.
    """
    start = _mapping(answer.get("process")).get("start")
    return process.host, process.pid, str(start)


def process_of(path: str, answer: Mapping[str, Any]) -> Process:
    """
    Which process answered?

    Args:
        path: Its socket.

        answer: What it said to ``list``.

    Returns:
        The process, with the threads that are held.
    """
    process = _mapping(answer.get("process"))
    return Process(
        path=path,
        **_labels(process),
        host=_text(process, "host"),
        pid=_number(process, "pid"),
        sessions=tuple(
            _session(_mapping(stop)) for stop in _list(answer.get("stops"))
        ),
        **_place(_mapping(answer.get("main"))),
    )


def _session(stop: Mapping[str, Any]) -> Session:
    return Session(
        key=str(stop.get("key")),
        number=_number(stop, "number"),
        thread=_text(stop, "thread"),
        reason=_text(stop, "reason"),
        state=_text(stop, "state"),
        left_s=_number(stop, "left_s"),
        patience_left_s=_known(stop, "patience_left_s"),
        labels=_labels(stop["labels"]) if stop.get("labels") else None,
        **_place(stop),
    )


def _labels(data: object) -> dict[str, Any]:
    labels = _mapping(data)
    coords = _mapping(labels.get("coords"))
    return {
        "group": _text(labels, "group") or "job",
        "rank": _rank(labels),
        "coords": {clean(str(k)): _number(coords, k) for k in coords},
    }


def _rank(data: Mapping[str, Any]) -> int | None:
    return _known({"rank": 0, **data}, "rank")


def _known(data: Mapping[str, Any], name: str) -> int | None:
    return None if data.get(name) is None else _number(data, name)


def _place(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "function": _text(data, "function"),
        "file": _text(data, "file"),
        "line": _number(data, "line"),
    }


def read_output(
    process: Process,
    answer: Mapping[str, Any],
    *,
    session: Session | None = None,
) -> Output:
    """
    What did a process, or one of its threads, answer?

    Args:
        process: Who.

        answer: What it said.

        session: Which thread was asked, if one was.

    Returns:
        Its output.
    """
    error = answer.get("error")
    if "threads" in answer:
        text = stack_text(answer["threads"])
    else:
        text = plain_text(error or answer.get("output") or "").rstrip("\n")
    # One rank may be held in several threads.
    is_main = session is None or session.thread in _WORK
    return Output(
        group=process.group,
        rank=process.rank,
        name=process.name if is_main or session is None else session.thread,
        text=text,
        state=_text(answer, "state"),
        is_error=error is not None,
        key="" if session is None else session.key,
    )


def stack_text(threads: object) -> str:
    """
    How do the stacks of one process read?

    Args:
        threads: What it said to ``stack``.

    Returns:
        The lines, as in a traceback: the innermost last.
    """
    parts = []
    for thread in map(_mapping, _list(threads)):
        parts.append(f"{_text(thread, 'thread')}:")
        frames = [*_of_the_job(reversed(_list(thread.get("frames"))))]
        parts += _frame_lines(frames) or ["  in the debugger; cast it: where"]
    return "\n".join(parts)


def _of_the_job(frames: Iterable[Any]) -> Iterable[Any]:
    """
    The frames, outermost first, up to where the debugger holds the thread.
    """
    for frame in frames:
        if _OWN in _text(_mapping(frame), "file"):
            return
        yield frame


def _frame_lines(frames: Iterable[Any]) -> list[str]:
    lines = []
    for frame in map(_mapping, frames):
        file = _LIBRARIES.sub("", _text(frame, "file"))
        place = f"{file}:{_number(frame, 'line')}"
        lines.append(f"  {place} in {_text(frame, 'function')}")
        if code := _text(frame, "code"):
            lines.append(f"    {code}")
    return lines


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(data: Mapping[str, Any], name: str) -> str:
    return clean(str(data.get(name) or ""), limit=1000)


def _number(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int | float):
        return 0

    # JSON, as Python reads it, knows infinite numbers and such that are none.
    return int(value) if abs(value) < _MOST_NUMBER else 0
