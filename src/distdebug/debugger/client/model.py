"""
Data model of the ranks: processes, stopped threads, selections, and answers.

All text received from a rank is cleaned here, because terminals show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs

from ..._render import Block, Lines, Shown, Table
from ..._text import clean, list_text, without_controls
from ...errors import DebuggerError
from ...processes import Worker
from ...ranks import RankSelection, fold_ranks, parse_ranks
from ...usercode import strip_install_prefix
from ..protocol import is_selected


_MAX_ROWS = 10_000

IDLE_GROUP = "idle"
"""The group of idle workers of Ray."""


def format_ranks(ranks: Iterable[int | None]) -> str:
    """
    Format ranks as ``"0-3,7"``, with ``"-"`` for unknown ranks.
    """
    every = set(ranks)
    known = fold_ranks(r for r in every if r is not None)
    return ",".join(filter(None, [known, "-" if None in every else ""]))


def format_rank_phrase(ranks: Iterable[int | None]) -> str:
    """
    Format ranks for a sentence, as ``"rank 3"`` or ``"ranks 0-3"``.
    """
    every = set(ranks)
    return f"rank{'s' * (len(every) != 1)} {format_ranks(every)}"


def clean_text(value: object) -> str:
    """
    Remove terminal control and invisible characters from a received text.

    Line breaks and tabs stay.
    """
    text = without_controls(str(value))
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


@attrs.frozen(kw_only=True)
class Session:
    """
    One stopped thread of a rank.

    Attributes:
        key: Unique: host, process, start of the process, thread, and number of
            the stop.

        number: The number of the stop in its process.

        reason: ``"breakpoint"``, ``"post mortem"``, or ``"interrupt"``.

        state: ``"stopped"``, or ``"running"`` while it runs a command.

        line: Counted from 1.

        left_s: Seconds until it continues by itself.

        patience_left_s: Seconds until the shortest timeout of a collective, if
            the other ranks began to wait when this thread stopped; ``None`` if
            unknown.

        labels: The *group*, *rank*, and *coords* at the time of the stop, if
            known.  A process of Monarch holds several actors, and the rank in
            a slice differs from the rank in the whole mesh.
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
        path: Its socket; on another node with the prefix ``host:``.

        rank: None, shown as ``-``, if no launcher sets it.

        coords: The index in each dimension of its mesh, by name.

        function: The function of the user's code that its main thread runs.

        line: Counted from 1.

        sessions: Its stopped threads.

        name: Set if the process is not the rank itself, but was started by it,
            as a worker of a data loader.
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
        Return whether one of its threads waits for a command.
        """
        return any(s.state == "stopped" for s in self.sessions)

    @property
    def place(self) -> tuple[str, int, str, int]:
        """
        Return the sort key of the process in a listing.
        """
        rank = -1 if self.rank is None else self.rank
        return self.group, rank, self.host, self.pid


def indexes_by_dimension(
    processes: Iterable[Process],
) -> dict[str, set[int]]:
    """
    Return the indexes that processes have in each dimension, by its name.
    """
    found: dict[str, set[int]] = {}
    for process in processes:
        for name, index in process.coords.items():
            found.setdefault(name, set()).add(index)
    return found


def coordinates_text(
    processes: Iterable[Process], separator: str = " "
) -> str:
    """
    Format the indexes of processes, as ``"dp=0-3 tp=1"``.
    """
    indexes = indexes_by_dimension(processes)
    return separator.join(f"{k}={fold_ranks(v)}" for k, v in indexes.items())


def _split_by_labels(processes: Iterable[Process]) -> tuple[Process, ...]:
    """
    Split processes whose threads stopped under different labels.
    """
    parts = (part for process in processes for part in _split_process(process))
    return tuple(sorted(parts, key=attrgetter("place")))


def _split_process(process: Process) -> list[Process]:
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
class SilentProcess:
    """
    A process that does not answer.

    Attributes:
        host: Its node; ``""`` for this one.

        rank: Its rank, if the name of its socket has one.

        reason: Why it does not answer, if it says so.
    """

    host: str
    pid: int
    rank: int | None = attrs.field(default=None, eq=False)
    reason: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}, "
        place = self.host and f" on {self.host}"
        return f"{rank}process {self.pid}{place}"


@attrs.frozen(kw_only=True, order=True)
class LostNode:
    """
    A node that cannot be asked.

    Attributes:
        reason: Why not, in one line.

        remedy: What to do, or ``""``.
    """

    host: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        advice = self.remedy and f" ({self.remedy})"
        return f"{self.host} cannot be asked: {self.reason}{advice}"


@attrs.frozen
class Row:
    """
    A row of a listing: a stopped thread, or a process without one.

    Attributes:
        number: The number of the thread in the listing, from 1; 0 without one.
    """

    process: Process
    session: Session | None
    number: int

    @property
    def place(self) -> Process | Session:
        """
        Return what knows the function, file, and line.
        """
        return self.session or self.process

    @property
    def thread_label(self) -> str:
        """
        Return the name that sets the thread apart in its rank.
        """
        return self.session.thread if self.session else self.process.name

    @property
    def state(self) -> str:
        """
        Return the state of the thread and the reason of its stop.
        """
        s = self.session
        return f"{s.state} ({s.reason})" if s else "not stopped"


@attrs.frozen(kw_only=True)
class Listing(Shown):
    """
    The ranks of a job and their stopped threads.

    Attributes:
        processes: The processes that answered, by group and rank.  A process
            whose threads stopped under several labels appears once per label.

        silent: The processes that did not answer.

        lost: The nodes that cannot be asked.

        idle: The nodes without a listening rank.
    """

    processes: tuple[Process, ...] = attrs.field(
        default=(), converter=_split_by_labels
    )
    silent: tuple[SilentProcess, ...] = ()
    lost: tuple[LostNode, ...] = ()
    idle: tuple[str, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.processes)

    @property
    def sessions(self) -> tuple[tuple[Process, Session], ...]:
        """
        Return all stopped threads, in the order of their numbers.
        """
        return tuple((p, s) for p in self.processes for s in p.sessions)

    def rows(self, chosen: Iterable[Process] | None = None) -> list[Row]:
        """
        Return a row for each stopped thread, and each process without one.

        Args:
            chosen: The only processes to return; by default all.
        """
        threads = enumerate(self.sessions, start=1)
        numbers = {session.key: number for number, (_, session) in threads}
        processes = self.processes if chosen is None else chosen
        return [
            Row(p, s, numbers[s.key] if s else 0)
            for p in processes
            for s in p.sessions or (None,)
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """
        Return sentences about what could not be asked.
        """
        hosts = list_text(self.idle, most=8)
        idle = [f"no process listens on {hosts}"] if hosts else []
        return (*idle, *_unasked_notes(self))

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return plain data, one row per process.
        """
        return [attrs.asdict(process) for process in self.processes]

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return attrs.asdict(self)

    def _blocks_(self) -> Iterable[Block]:
        if self.processes:
            rows = [row_cells([row]) for row in self.rows()]
            cells = [tuple(row.values()) for row in rows]
            yield Table([*rows[0]], cells, most=_MAX_ROWS, more="processes")
        else:
            yield "no rank listens here"
        yield Lines(self.notes, most=_MAX_ROWS)


def row_cells(rows: Sequence[Row]) -> dict[str, str]:
    """
    Return the cells of a table for rows that are alike, by column.
    """
    first, place = rows[0], rows[0].place
    numbers = fold_ranks(row.number for row in rows if row.number)
    hosts = {row.process.host for row in rows}
    return {
        "#": numbers and f"#{numbers}",
        "group": first.process.group,
        "rank": format_ranks(row.process.rank for row in rows),
        "coords": coordinates_text(row.process for row in rows),
        "host": hosts.pop() if len(hosts) == 1 else f"{len(hosts)} hosts",
        "thread": first.thread_label,
        "state": first.state,
        "function": place.function,
        "line": f"{place.file}:{place.line}",
    }


def _unasked_notes(asked: Listing | Answers) -> Iterable[str]:
    """
    Yield a note for each process that is silent, and each node that is lost.
    """
    for one in sorted(set(asked.silent)):
        reason = one.reason or (
            "native code, or a command that calls it, holds its interpreter, "
            "or it is suspended; see: stack"
        )
        yield f"{one} does not answer: {reason}"
    yield from map(str, sorted(set(asked.lost)))


RankSelector = RankSelection | str | None
"""A selection, its text, or ``None`` for all ranks."""

# A process without a rank is selected only together with all ranks.
_ALL_RANKS = parse_ranks("ranks(:)").by_rank[0]


def select_processes(
    listing: Listing, ranks: RankSelector, group: str | None
) -> tuple[Process, ...]:
    """
    Return the processes that a selection of ranks matches.

    Args:
        ranks: The selection; ``None`` selects all.

        group: The group; needed if there are several.

    Returns:
        The processes in the order of the listing, each once.

    Raises:
        DebuggerError: The selection is empty, or the group is ambiguous.

        RankSyntaxError: The selection is invalid.
    """
    selection = parse_ranks(ranks) if isinstance(ranks, str) else ranks
    processes = _processes_of_group(
        listing, group, is_needed=selection is not None
    )
    if selection is None:
        return processes

    selected = tuple(
        p for p in processes if _is_selected(selection, p.rank, p.coords)
    )
    if not selected:
        msg = f"{selection} selects no rank"
        known = dict.fromkeys(indexes_by_dimension(processes), 0)
        if unknown := selection.unknown_dimensions(known):
            msg = f"{msg}: there is no dimension {', '.join(unknown)}"
        raise DebuggerError(msg, remedy=_available_ranks_text(processes))

    return selected


def _is_selected(
    selection: RankSelection, rank: int | None, coords: Mapping[str, int]
) -> bool:
    if rank is None:
        return _ALL_RANKS in selection.by_rank

    return is_selected(selection.by_rank, selection.by_dimension, rank, coords)


def select_workers(
    workers: Iterable[Worker], ranks: RankSelector, group: str | None
) -> tuple[Worker, ...]:
    """
    Return the unarmed ranks that a selection matches.

    Args:
        ranks: The selection; ``None`` selects all.

        group: The group; unarmed ranks are in the default group, ``"job"``.

    Returns:
        The workers; may be empty.

    Raises:
        RankSyntaxError: The selection is invalid.
    """
    selection = parse_ranks(ranks) if isinstance(ranks, str) else ranks
    if group not in {None, "job"}:
        return ()
    if selection is None:
        return tuple(workers)

    return tuple(
        w
        for w in workers
        if w.rank is not None
        and _is_selected(selection, w.rank, dict(w.coordinates))
    )


def select_session(
    listing: Listing,
    *,
    rank: int | None = None,
    group: str | None = None,
    number: int | None = None,
) -> tuple[Process, Session]:
    """
    Return the stopped thread to attach to.

    Args:
        rank: Its rank.

        group: The group of that rank.

        number: Its number in the listing, from 1; replaces *rank*.

    Raises:
        DebuggerError: No such thread is stopped, or more than one is.
    """
    numbered = list(enumerate(listing.sessions, start=1))
    found = [
        (n, pair)
        for n, pair in numbered
        if (n == number if number is not None else pair[0].rank == rank)
        and (group is None or pair[0].group == group)
    ]
    label = f"#{number}" if number is not None else f"rank {rank}"
    if not found:
        raise _not_stopped_error(listing, label, rank, group)
    if len(found) > 1:
        names = ", ".join(
            f"#{n} ({p.group}, {s.thread})" for n, (p, s) in found
        )
        msg = f"{label} is stopped more than once: {names}"
        raise DebuggerError(msg, remedy=f"attach #{found[0][0]}")

    return found[0][1]


def _not_stopped_error(
    listing: Listing, label: str, rank: int | None, group: str | None
) -> DebuggerError:
    """
    Explain why there is no such stopped thread, and what to do.
    """
    processes = _processes_of_group(listing, group, is_needed=False)
    ranks = format_ranks(p.rank for p in processes if p.sessions) or "none"
    stopped = f"stopped are: {ranks}; see: list"
    if rank is None:
        return DebuggerError(f"{label} is not stopped", remedy=stopped)
    if all(p.rank != rank for p in processes):
        remedy = (
            f"{_available_ranks_text(processes)}; attach #N goes by the list"
        )
        return DebuggerError(f"there is no {label}", remedy=remedy)

    selection = f"{group} ranks({rank})" if group else f"ranks({rank})"
    remedy = f"to stop it: interrupt {selection}; {stopped}"
    return DebuggerError(f"{label} is not stopped", remedy=remedy)


def _processes_of_group(
    listing: Listing, group: str | None, *, is_needed: bool
) -> tuple[Process, ...]:
    groups = sorted({p.group for p in listing.processes})
    if not groups:
        msg = "no rank listens here"
        raise DebuggerError(
            msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
        )
    if group is None and is_needed:
        # Ray keeps idle workers for later tasks.
        groups = [name for name in groups if name != IDLE_GROUP] or groups
        group = groups[0] if len(groups) == 1 else None
    if group is None and len(groups) > 1 and is_needed:
        msg = f"there are several groups: {', '.join(groups)}"
        raise DebuggerError(
            msg,
            remedy=f"write the group before ranks(...): {groups[0]} ranks(:)",
        )
    if group is not None and group not in groups:
        msg = f"there is no group {group}"
        raise DebuggerError(msg, remedy=f"there are: {', '.join(groups)}")

    return tuple(p for p in listing.processes if group in {None, p.group})


def _available_ranks_text(processes: Iterable[Process]) -> str:
    by_group: dict[str, list[Process]] = {}
    for process in processes:
        by_group.setdefault(process.group, []).append(process)
    texts = []
    for group, members in by_group.items():
        coords = coordinates_text(members, ", ")
        text = f"{group} ranks {format_ranks(p.rank for p in members)}"
        texts.append(f"{text} ({coords})" if coords else text)
    return f"there are: {'; '.join(texts)}"


_MAX_LINES = 10_000


@attrs.frozen(kw_only=True)
class Output:
    """
    The answer of one rank.

    Attributes:
        rank: None if no launcher sets it.

        name: What sets it apart from other answers of this rank; mostly empty.

        text: The output, or the error.

        state: ``"stopped"``, ``"running"``, ``"ended"`` if the thread
            continues without the debugger, or ``""`` for a request that stops
            no thread.

        is_error: Whether the request failed.

        key: The key of the thread; ``""`` for the whole process.
    """

    group: str
    rank: int | None
    name: str = ""
    text: str = ""
    state: str = ""
    is_error: bool = False
    key: str = ""

    @property
    def display_text(self) -> str:
        """
        Return the text, with a note on the state.
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
    The answers of many ranks to one request.

    Attributes:
        outputs: The answers, by group and rank.

        not_stopped: The selected ranks that are not stopped.

        silent: The processes that did not answer in time.

        lost: The nodes that could not be asked.

        notes: Further sentences for the user.
    """

    outputs: tuple[Output, ...] = ()
    not_stopped: tuple[Process, ...] = ()
    silent: tuple[SilentProcess, ...] = ()
    lost: tuple[LostNode, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return attrs.asdict(self)

    def _blocks_(self) -> Iterable[Block]:
        groups = {o.group for o in self.outputs}
        several = len(groups | {p.group for p in self.not_stopped}) > 1
        parts = [
            _format_merged(labels, text)
            for labels, text in merge_outputs(self.outputs, groups=several)
        ]
        if self.not_stopped:
            parts.append(_format_not_stopped(self.not_stopped, groups=several))
            parts.append(_interrupt_hint(self.not_stopped[0], groups=several))
        lines = [*parts, *_unasked_notes(self), *self.notes]
        yield Lines("\n".join(lines).split("\n"), most=_MAX_LINES)


def ranks_by_text(
    items: Iterable[tuple[str, Process | Output]], *, groups: bool
) -> Iterable[tuple[str, str, list[int | None]]]:
    """
    Fold ranks of which the same is to be shown.

    Args:
        items: What is to be shown of each.

        groups: Whether to show the group of each rank, too.

    Yields:
        The text, the group with a blank or ``""``, and the ranks.
    """
    found: dict[tuple[str, str], list[int | None]] = {}
    for text, one in items:
        group = f"{one.group} " if groups else ""
        found.setdefault((text, group), []).append(one.rank)
    for (text, group), ranks in found.items():
        yield text, group, ranks


def _format_not_stopped(processes: Iterable[Process], *, groups: bool) -> str:
    """
    Format the ranks by place: most wait at the same line.
    """
    places = (
        (clean(f"at {p.file}:{p.line} in {p.function}"), p) for p in processes
    )
    where = [
        f"{group}{format_rank_phrase(ranks)} ({place})"
        for place, group, ranks in ranks_by_text(places, groups=groups)
    ]
    return f"selected but not stopped: {list_text(where, most=8)}"


def _interrupt_hint(process: Process, *, groups: bool) -> str:
    group = f"{process.group} " if groups else ""
    rank = ":" if process.rank is None else process.rank
    return f"to stop one that runs: interrupt {group}ranks({rank})"


def merge_outputs(
    outputs: Iterable[Output], *, groups: bool = False
) -> tuple[tuple[str, str], ...]:
    """
    Merge equal outputs of ranks.

    Args:
        groups: Whether to show the group of each rank.

    Returns:
        The folded ranks, and their output.  The rarest output comes first: it
        is the suspicious one.
    """
    same: dict[str, list[Output]] = {}
    for output in outputs:
        same.setdefault(output.display_text, []).append(output)
    return tuple(
        (_format_labels(group, groups=groups), text)
        for text, group in sorted(same.items(), key=_rarity)
    )


def _rarity(item: tuple[str, list[Output]]) -> tuple[int, int]:
    _, outputs = item
    rank = outputs[0].rank
    return len(outputs), -1 if rank is None else rank


def _format_labels(outputs: Iterable[Output], *, groups: bool) -> str:
    names = ((output.name and f" {output.name}", output) for output in outputs)
    return ", ".join(
        f"{group}{format_ranks(ranks)}{name}"
        for name, group, ranks in ranks_by_text(names, groups=groups)
    )


def _format_merged(labels: str, text: str) -> str:
    if "\n" not in text:
        return f"[{labels}] {text}".rstrip()

    lines = "\n".join(f"  {line}" for line in text.split("\n"))
    return f"[{labels}]\n{lines}"


_MAX_NUMBER = 1 << 62

_DEBUGGER_PATH = "/distdebug/debugger/inside/"


# The threads in which Python, Ray, and Monarch run the work.
_MAIN_THREADS = frozenset(
    {
        "MainThread",
        "AsyncIO Thread: default",
        "monarch-actor-driver",
        "monarch-actor-event-loop",
    }
)


def parse_stack_texts(answer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """
    Parse the answer of a relay to *outside*.
    """
    return tuple(map(clean_text, _list((answer or {}).get("told"))))


def thread_answer(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """
    Return the part of an answer for one thread, or all of it if there is none.
    """
    thread = _mapping(answer.get("stops")).get(key)
    return thread if isinstance(thread, dict) else answer


def process_key(process: Process, answer: Mapping[str, Any]) -> object:
    """
    Return a key that is unique for each process.

    Args:
        answer: Its answer to *list*.
    """
    start = _mapping(answer.get("process")).get("start")
    return process.host, process.pid, str(start)


def parse_process(path: str, answer: Mapping[str, Any]) -> Process:
    """
    Parse the answer of a process to *list*.

    Args:
        path: The socket of the process.
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
        patience_left_s=_optional_number(stop, "patience_left_s"),
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
    return _optional_number({"rank": 0, **data}, "rank")


def _optional_number(data: Mapping[str, Any], name: str) -> int | None:
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
    Parse the answer of a process, or of one of its threads.

    Args:
        session: The thread that was asked; None for the process.
    """
    error = answer.get("error")
    if "threads" in answer:
        text = stack_text(answer["threads"])
    else:
        text = clean_text(error or answer.get("output") or "").rstrip("\n")
    # Several threads of a rank may be stopped.
    is_main = session is None or session.thread in _MAIN_THREADS
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
    Format the stacks of a process, innermost frame last.

    Args:
        threads: The answer of the process to *stack*.
    """
    parts = []
    for thread in map(_mapping, _list(threads)):
        parts.append(f"{_text(thread, 'thread')}:")
        frames = [*_job_frames(reversed(_list(thread.get("frames"))))]
        parts += _frame_lines(frames) or ["  in the debugger; cast it: where"]
    return "\n".join(parts)


def _job_frames(frames: Iterable[Any]) -> Iterable[Any]:
    """
    Yield the frames, outermost first, without those of the debugger.
    """
    for frame in frames:
        if _DEBUGGER_PATH in _text(_mapping(frame), "file"):
            return
        yield frame


def _frame_lines(frames: Iterable[Any]) -> list[str]:
    lines = []
    for frame in map(_mapping, frames):
        file = strip_install_prefix(_text(frame, "file"))
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

    # The json module accepts Infinity and NaN.
    return int(value) if abs(value) < _MAX_NUMBER else 0
