"""
What is known of the ranks, and what did they answer?

Whatever a rank sent is cleaned here: it is shown on terminals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..._text import clean, text_table, without_controls
from ...ranks import fold_ranks


__all__ = [
    "Answers",
    "Listing",
    "Output",
    "Process",
    "Session",
    "merge_outputs",
    "plain_text",
]


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


@attrs.frozen(kw_only=True)
class Process:
    """
    One process that can be asked.

    Attributes:
        path: Its socket.

        group: Under which group it is addressed.

        rank: Under which rank.

        coords: The index in each dimension of its mesh, as the job names them.

        host: Its node.

        pid: Its number there.

        function: Where its main thread is, in the user's own code.

        file: The file of that line.

        line: The line, counted from 1.

        sessions: Its threads that are held.
    """

    path: str
    group: str
    rank: int
    coords: Mapping[str, int]
    host: str
    pid: int
    function: str = ""
    file: str = ""
    line: int = 0
    sessions: tuple[Session, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """
        Whether one of its threads waits for a command.
        """
        return any(s.state == "stopped" for s in self.sessions)


@attrs.frozen(kw_only=True)
class Listing:
    """
    Which ranks can be asked, and which are stopped?

    Attributes:
        processes: All that answered, by group and rank.

        silent: The numbers of the processes that did not.
    """

    processes: tuple[Process, ...] = ()
    silent: tuple[int, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.processes)

    @property
    def sessions(self) -> tuple[tuple[Process, Session], ...]:
        """
        All threads that are held, in the order in which they are shown.
        """
        return tuple((p, s) for p in self.processes for s in p.sessions)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Plain data, one row for each process.
        """
        return [attrs.asdict(process) for process in self.processes]

    def __str__(self) -> str:
        if not self.processes:
            rows = "no rank listens here"
        else:
            rows = text_table(_HEADERS, _rows(self.processes))
        return "\n".join([rows, *_silence(self.silent)])


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
        labels = (p.group, p.rank, coords, p.host)
        if not p.sessions:
            where = (p.function, f"{p.file}:{p.line}")
            yield ("", *labels, "", "not stopped", *where)
        for s in p.sessions:
            number += 1
            state = f"{s.state} ({s.reason})"
            where = (s.function, f"{s.file}:{s.line}")
            yield (f"#{number}", *labels, s.thread, state, *where)


@attrs.frozen(kw_only=True)
class Output:
    """
    What one rank answered.

    Attributes:
        group: Its group.

        rank: Its rank.

        name: What else tells it from others of this rank; mostly empty.

        text: What it printed, or why it could not.

        state: ``"stopped"``, ``"running"``, ``"ended"`` if it goes on without
            us, or ``""`` for a question that stops nobody.

        is_error: Whether it could not do what was asked.

        key: Which thread; ``""`` for the whole process.
    """

    group: str
    rank: int
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
class Answers:
    """
    What many ranks answered to one question.

    Attributes:
        outputs: What each said, by group and rank.

        not_stopped: Ranks that were selected, but are not stopped.

        silent: The numbers of the processes that did not answer in time.

        notes: What else there is to say.
    """

    outputs: tuple[Output, ...] = ()
    not_stopped: tuple[Process, ...] = ()
    silent: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return attrs.asdict(self)

    def __str__(self) -> str:
        several = len({o.group for o in self.outputs}) > 1
        parts = [
            _merged(who, text)
            for who, text in merge_outputs(self.outputs, groups=several)
        ]
        if self.not_stopped:
            where = ", ".join(
                f"{p.rank} (at {clean(p.file)}:{p.line} in {p.function})"
                for p in self.not_stopped[:8]
            )
            more = len(self.not_stopped) - 8
            rest = f", and {more} more" if more > 0 else ""
            parts.append(f"selected but not stopped: rank {where}{rest}")
        return "\n".join([*parts, *_silence(self.silent), *self.notes])


def _silence(pids: Iterable[int]) -> Iterable[str]:
    for pid in sorted(set(pids)):
        yield (
            f"process {pid} does not answer: native code holds its "
            "interpreter, or it is suspended; see: stack"
        )


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
        for text, group in sorted(
            same.items(), key=lambda item: (len(item[1]), item[1][0].rank)
        )
    )


def _who(outputs: Iterable[Output], *, groups: bool) -> str:
    plain: dict[str, list[int]] = {}
    for output in outputs:
        name = output.name and f" {output.name}"
        group = f"{output.group} " if groups else ""
        plain.setdefault(f"{group}%s{name}", []).append(output.rank)
    return ", ".join(name % fold_ranks(ranks) for name, ranks in plain.items())


def _merged(who: str, text: str) -> str:
    if "\n" not in text:
        return f"[{who}] {text}".rstrip()

    lines = "\n".join(f"  {line}" for line in text.split("\n"))
    return f"[{who}]\n{lines}"
