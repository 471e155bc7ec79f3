"""
How are many ranks listed, so that a person sees what matters?

A job has more ranks than a screen has lines, so rows that are alike become one,
and columns that tell nothing are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ..._text import clean, text_table, time_text
from ...ranks import fold_ranks
from .model import Listing, Process, Session, ranks_shown, ranks_told


_MOST_APART = 40  # what one looks through
_MOST_ROWS = 200
_MOST_LINES = 200
_SOON_S = 300
# What can be done without first, where a terminal is narrow.
_SPARE = ("function", "coords", "host", "thread")


@attrs.frozen(kw_only=True)
class _Row:
    """
    One thread that is held, or a process without one.
    """

    number: int | None
    process: Process
    session: Session | None

    @property
    def place(self) -> Process | Session:
        return self.session or self.process

    @property
    def who(self) -> str:
        """
        What tells it from the main thread of the rank.
        """
        return self.session.thread if self.session else self.process.name

    @property
    def likeness(self) -> tuple[Any, ...]:
        s = self.session
        held = (s.state, s.reason) if s else ()
        where = (self.place.function, self.place.file, self.place.line)
        return self.process.group, self.who, *held, *where


def listing_text(
    listing: Listing,
    *,
    chosen: Iterable[Process] | None = None,
    width: int | None = None,
) -> str:
    """
    How is a listing shown to a person?

    Args:
        listing: All there are; threads that are held are numbered as in it.

        chosen: To show only these, each in a row of its own.

        width: How many columns the terminal has; any number, if `None`.

    Returns:
        A table, without a line break at its end.
    """
    rows = _rows(listing, chosen)
    if not rows:
        return str(listing)

    apart = [[row] for row in rows]
    is_folded = chosen is None and len(rows) > _MOST_APART
    alike = _alike(rows) if is_folded else apart
    table = _table(alike[:_MOST_ROWS], width)
    notes = [*_patience(rows), *listing.notes]
    if len(alike) > _MOST_ROWS:
        notes.append(f"… and {len(alike) - _MOST_ROWS} more rows")
    if is_folded:
        notes.append(f"{len(rows)} in {len(alike)} rows; each: list ranks(:)")
    return "\n".join([table, *notes])


def _rows(listing: Listing, chosen: Iterable[Process] | None) -> list[_Row]:
    numbers = {s.key: n for n, (_, s) in enumerate(listing.sessions, start=1)}
    processes = listing.processes if chosen is None else chosen
    return [
        _Row(process=p, session=s, number=numbers[s.key] if s else None)
        for p in processes
        for s in p.sessions or (None,)
    ]


def _alike(rows: Iterable[_Row]) -> list[list[_Row]]:
    found: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        found.setdefault(row.likeness, []).append(row)
    return list(found.values())


def _table(rows: list[list[_Row]], width: int | None) -> str:
    names = _short_names({r.place.file for row in rows for r in row})
    columns: dict[str, Callable[[list[_Row]], str]] = {
        "#": _numbers,
        "group": lambda row: row[0].process.group,
        "rank": lambda row: ranks_shown(r.process.rank for r in row),
        "coords": lambda row: _coords([r.process for r in row]),
        "host": lambda row: _host({r.process.host for r in row}),
        "thread": lambda row: row[0].who,
        "state": _state,
        "function": lambda row: row[0].place.function,
        "line": lambda row: _line(row[0].place, names),
    }
    cells = {name: [of(row) for row in rows] for name, of in columns.items()}
    left = {k: v for k, v in cells.items() if _tells(k, set(v))}
    without: list[str] = []
    for name in ("", *_SPARE):
        if left.pop(name, None):
            without.append(name)
        table = text_table([*left], zip(*left.values(), strict=True))
        if width is None or max(map(len, table.splitlines())) <= width:
            break
    hint = "left out, as the terminal is narrow: " + ", ".join(without)
    return f"{table}\n{hint}" if without else table


def _patience(rows: Iterable[_Row]) -> Iterable[str]:
    """
    Who gives up before a person has looked?
    """
    held = [row.session for row in rows if row.session]
    known = [
        s.patience_left_s
        for s in held
        if s.patience_left_s is not None and s.patience_left_s < s.left_s
    ]
    if known:
        left = time_text(min(known))
        yield (
            f"others may give up waiting in a collective in {left}: that is "
            "the shortest time-out, counted from when the ranks stopped"
        )


def _tells(column: str, cells: set[str]) -> bool:
    if column == "host":
        return len(cells) > 1
    if column in {"#", "coords"}:
        return cells != {""}
    return column != "thread" or not cells <= {"", "MainThread"}


def _numbers(row: list[_Row]) -> str:
    folded = fold_ranks(r.number for r in row if r.number is not None)
    return folded and f"#{folded}"


def _coords(processes: Iterable[Process]) -> str:
    indexes: dict[str, set[int]] = {}
    for process in processes:
        for name, index in process.coords.items():
            indexes.setdefault(name, set()).add(index)
    return " ".join(f"{k}={fold_ranks(v)}" for k, v in indexes.items())


def _host(hosts: set[str]) -> str:
    return hosts.pop() if len(hosts) == 1 else f"{len(hosts)} hosts"


def _state(row: list[_Row]) -> str:
    held = [r.session for r in row if r.session]
    if not held:
        return "not stopped"

    left = min(s.left_s for s in held)
    soon = f", {time_text(left)} left" if left < _SOON_S else ""
    return f"{held[0].state} ({held[0].reason}{soon})"


def _line(place: Process | Session, names: Mapping[str, str]) -> str:
    return f"{names[place.file]}:{place.line}"


def _short_names(files: set[str]) -> dict[str, str]:
    """
    As much of the end of each path as tells it from the others.
    """
    depth = 1
    while True:
        names = {f: "/".join(f.split("/")[-depth:]) for f in files}
        if len(set(names.values())) == len(files):
            return names
        depth += 1


def place_text(place: Process | Session) -> str:
    """
    Where is a rank, in a sentence?

    Args:
        place: A process, or a thread of it.

    Returns:
        Such as ``"train.py:14 in step"``.
    """
    file = place.file.rpartition("/")[2]
    return f"{file}:{place.line} in {place.function}"


def news_text(before: Listing, after: Listing) -> str:
    """
    Who has stopped since, who goes on, and who is gone?

    Args:
        before: What was shown last.

        after: What is so now.

    Returns:
        A line for each that is alike; ``""`` if nothing has changed.
    """
    old = {s.key for _, s in before.sessions}
    there = {p.path for p in after.processes}
    again = {p.path for p, s in after.sessions if s.key not in old}
    kept = {s.key for _, s in after.sessions}
    several = len({p.group for p in (*before, *after)}) > 1
    found: dict[tuple[str, str], list[int | None]] = {}

    def note(what: str, process: Process) -> None:
        group = f"{process.group} " if several else ""
        found.setdefault((what, group), []).append(process.rank)

    for process, session in after.sessions:
        if session.key not in old:
            note(
                f"stopped ({session.reason}) at {place_text(session)}", process
            )
    for process, session in before.sessions:
        if session.key not in kept and process.path in there - again:
            note("goes on", process)
    for process in before.processes:
        if process.path not in there:
            note("has ended", process)
    return "\n".join(
        f"[{group}{ranks_shown(ranks)}] {clean(what)}"
        for (what, group), ranks in found.items()
    )


def first_lines(text: str) -> str:
    """
    What of a long text is shown to a person?

    Args:
        text: Any number of lines.

    Returns:
        Those that one may scroll through, and how many there are more.
    """
    lines = text.split("\n", _MOST_LINES)
    if len(lines) <= _MOST_LINES:
        return text

    more = lines.pop().count("\n") + 1
    note = f"… and {more} more lines; to have all of them: dbg -c COMMAND"
    return "\n".join([*lines, note])


def held_text(listing: Listing) -> str:
    """
    Whom does a person leave behind who leaves now?

    Args:
        listing: Who is there.

    Returns:
        A line; ``""`` if nobody is stopped.
    """
    if not listing.sessions:
        return ""

    ranks = ranks_told(p.rank for p, _ in listing.sessions)
    left = time_text(max(s.left_s for _, s in listing.sessions))
    return f"still stopped, for {left} at most: {ranks}"
