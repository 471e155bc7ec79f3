"""
Format ranks and stopped threads as tables for the terminal.

A job has more ranks than a terminal has lines: equal rows are folded into one,
and columns without information are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..._text import clean, text_table, time_text
from ...ranks import fold_ranks
from .model import (
    Listing,
    Process,
    Row,
    Session,
    format_rank_phrase,
    format_ranks,
    indexes_by_dimension,
)


_MAX_UNFOLDED_ROWS = 40  # a person can still scan so many
_MAX_ROWS = 200
_MAX_LINES = 200
_LOW_TIME_S = 300
# The columns to drop on a narrow terminal, in this order.
_OPTIONAL_COLUMNS = ("function", "coords", "host", "thread")


def listing_text(
    listing: Listing,
    *,
    chosen: Iterable[Process] | None = None,
    width: int | None = None,
) -> str:
    """
    Format a listing as a table.

    Args:
        listing: All ranks; stopped threads keep their numbers from it.

        chosen: The only processes to show, each in a row of its own.

        width: The width of the terminal in columns; `None` for no limit.
    """
    rows = listing.rows(chosen)
    if not rows:
        return str(listing)

    unfolded = [[row] for row in rows]
    is_folded = chosen is None and len(rows) > _MAX_UNFOLDED_ROWS
    folded = _fold_rows(rows) if is_folded else unfolded
    table = _table(folded[:_MAX_ROWS], width)
    notes = [*_timeout_notes(rows), *listing.notes]
    if len(folded) > _MAX_ROWS:
        notes.append(f"… and {len(folded) - _MAX_ROWS} more rows")
    if is_folded:
        notes.append(f"{len(rows)} in {len(folded)} rows; each: list ranks(:)")
    return "\n".join([table, *notes])


def _fold_key(row: Row) -> tuple[str, ...]:
    place = row.place
    where = (place.function, place.file, str(place.line))
    return row.process.group, row.thread_label, row.state, *where


def _fold_rows(rows: Iterable[Row]) -> list[list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(_fold_key(row), []).append(row)
    return list(found.values())


def _table(rows: list[list[Row]], width: int | None) -> str:
    names = _short_names({r.place.file for row in rows for r in row})
    columns: dict[str, Callable[[list[Row]], str]] = {
        "#": _numbers,
        "group": lambda row: row[0].process.group,
        "rank": lambda row: format_ranks(r.process.rank for r in row),
        "coords": lambda row: _coords([r.process for r in row]),
        "host": lambda row: _host({r.process.host for r in row}),
        "thread": lambda row: row[0].thread_label,
        "state": _state,
        "function": lambda row: row[0].place.function,
        "line": lambda row: _line(row[0].place, names),
    }
    cells = {name: [of(row) for row in rows] for name, of in columns.items()}
    shown = {k: v for k, v in cells.items() if _is_informative(k, set(v))}
    dropped: list[str] = []
    for name in ("", *_OPTIONAL_COLUMNS):
        if shown.pop(name, None):
            dropped.append(name)
        table = text_table([*shown], zip(*shown.values(), strict=True))
        if width is None or max(map(len, table.splitlines())) <= width:
            break
    hint = "left out, as the terminal is narrow: " + ", ".join(dropped)
    return f"{table}\n{hint}" if dropped else table


def _timeout_notes(rows: Iterable[Row]) -> Iterable[str]:
    """
    Yield a note if a collective times out before the limit of the stop.
    """
    stopped = [row.session for row in rows if row.session]
    timeouts = [
        s.patience_left_s
        for s in stopped
        if s.patience_left_s is not None and s.patience_left_s < s.left_s
    ]
    if timeouts:
        left = time_text(min(timeouts))
        yield (
            f"others may give up waiting in a collective in {left}: that is "
            "the shortest timeout, counted from when the ranks stopped"
        )


def _is_informative(column: str, cells: set[str]) -> bool:
    if column == "host":
        return len(cells) > 1
    if column in {"#", "coords"}:
        return cells != {""}
    return column != "thread" or not cells <= {"", "MainThread"}


def _numbers(row: list[Row]) -> str:
    folded = fold_ranks(r.number for r in row if r.number)
    return folded and f"#{folded}"


def _coords(processes: Iterable[Process]) -> str:
    indexes = indexes_by_dimension(processes)
    return " ".join(f"{k}={fold_ranks(v)}" for k, v in indexes.items())


def _host(hosts: set[str]) -> str:
    return hosts.pop() if len(hosts) == 1 else f"{len(hosts)} hosts"


def _state(row: list[Row]) -> str:
    stopped = [r.session for r in row if r.session]
    if not stopped:
        return "not stopped"

    left = min(s.left_s for s in stopped)
    soon = f", {time_text(left)} left" if left < _LOW_TIME_S else ""
    return f"{stopped[0].state} ({stopped[0].reason}{soon})"


def _line(place: Process | Session, names: Mapping[str, str]) -> str:
    return f"{names[place.file]}:{place.line}"


def _short_names(files: set[str]) -> dict[str, str]:
    """
    Return the shortest ends of the paths that are all different.
    """
    depth = 1
    while True:
        names = {f: "/".join(f.split("/")[-depth:]) for f in files}
        if len(set(names.values())) == len(files):
            return names
        depth += 1


def place_summary(place: Process | Session) -> str:
    """
    Format the place of a process or thread, as ``"train.py:14 in step"``.
    """
    file = place.file.rpartition("/")[2]
    return f"{file}:{place.line} in {place.function}"


def changes_text(before: Listing, after: Listing) -> str:
    """
    Format which ranks stopped, continued, or ended between two listings.

    Returns:
        One line for each kind of change; ``""`` if nothing changed.
    """
    old = {s.key for _, s in before.sessions}
    present = {p.path for p in after.processes}
    restopped = {p.path for p, s in after.sessions if s.key not in old}
    still_stopped = {s.key for _, s in after.sessions}
    several = len({p.group for p in (*before, *after)}) > 1
    found: dict[tuple[str, str], list[int | None]] = {}

    def note(what: str, process: Process) -> None:
        group = f"{process.group} " if several else ""
        found.setdefault((what, group), []).append(process.rank)

    for process, session in after.sessions:
        if session.key not in old:
            note(
                f"stopped ({session.reason}) at {place_summary(session)}",
                process,
            )
    for process, session in before.sessions:
        if (
            session.key not in still_stopped
            and process.path in present - restopped
        ):
            note("goes on", process)
    for process in before.processes:
        if process.path not in present:
            note("has ended", process)
    return "\n".join(
        f"[{group}{format_ranks(ranks)}] {clean(what)}"
        for (what, group), ranks in found.items()
    )


def truncate_lines(text: str) -> str:
    """
    Truncate a long text, and note how many lines are left out.
    """
    lines = text.split("\n", _MAX_LINES)
    if len(lines) <= _MAX_LINES:
        return text

    more = lines.pop().count("\n") + 1
    note = f"… and {more} more lines; to have all of them: dbg -c COMMAND"
    return "\n".join([*lines, note])


def stopped_text(listing: Listing) -> str:
    """
    Format which ranks are still stopped, and for how long at most.

    Returns:
        One line; ``""`` if no rank is stopped.
    """
    if not listing.sessions:
        return ""

    ranks = format_rank_phrase(p.rank for p, _ in listing.sessions)
    left = time_text(max(s.left_s for _, s in listing.sessions))
    return f"still stopped, for {left} at most: {ranks}"
