"""
Which of the ranks that listen are meant?
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import DebuggerError
from ...processes.model import Worker
from ...ranks import RankSelection, fold_ranks, parse_ranks
from ..selecting import is_selected
from .model import IDLE, Listing, Process, Session, ranks_shown


__all__ = ["choose", "choose_session", "choose_workers"]

# Who has no number is meant where all are.
_EVERYBODY = parse_ranks("ranks(:)").by_rank[0]


def choose(
    listing: Listing, ranks: RankSelection | str | None, group: str | None
) -> tuple[Process, ...]:
    """
    Which processes does a selection mean?

    Args:
        listing: All there are.

        ranks: The selection; all if it is ``None``.

        group: Of which group; it may be left out if there is only one.

    Returns:
        The processes, in the order of the listing, each once.

    Raises:
        DebuggerError: It means none, or it is not clear of which group.

        RankSyntaxError: The selection cannot be read.
    """
    selection = parse_ranks(ranks) if isinstance(ranks, str) else ranks
    there = _of_group(listing, group, is_needed=selection is not None)
    if selection is None:
        return there

    found = tuple(p for p in there if _is_meant(p, selection))
    if not found:
        msg = f"{selection} selects nobody{_unknown(selection, there)}"
        raise DebuggerError(msg, remedy=_what_exists(there))

    return found


def _is_meant(process: Process, selection: RankSelection) -> bool:
    if process.rank is None:
        return _EVERYBODY in selection.by_rank

    return is_selected(
        selection.by_rank,
        selection.by_dimension,
        process.rank,
        process.coords,
    )


def choose_workers(
    workers: Iterable[Worker],
    ranks: RankSelection | str | None,
    group: str | None,
) -> tuple[Worker, ...]:
    """
    Which ranks that are not armed does a selection mean?

    Args:
        workers: Those there are.

        ranks: The selection; all if it is ``None``.

        group: Of which group; who is not armed belongs to none but that which
            has no other name.

    Returns:
        The workers; none is no mistake.

    Raises:
        RankSyntaxError: The selection cannot be read.
    """
    selection = parse_ranks(ranks) if isinstance(ranks, str) else ranks
    if group not in {None, "job"}:
        return ()

    return tuple(
        worker
        for worker in workers
        if selection is None
        or (
            worker.rank is not None
            and is_selected(
                selection.by_rank,
                selection.by_dimension,
                worker.rank,
                dict(worker.coordinates),
            )
        )
    )


def choose_session(
    listing: Listing,
    *,
    rank: int | None = None,
    group: str | None = None,
    number: int | None = None,
) -> tuple[Process, Session]:
    """
    Which session does a person want to attach to?

    Args:
        listing: All there are.

        rank: Its rank.

        group: The group of that.

        number: Or its number in the listing, counted from 1.

    Returns:
        The process, and its thread.

    Raises:
        DebuggerError: There is no such session, or more than one.
    """
    everyone = list(enumerate(listing.sessions, start=1))
    found = [
        (n, pair)
        for n, pair in everyone
        if (n == number if number is not None else pair[0].rank == rank)
        and (group is None or pair[0].group == group)
    ]
    what = f"#{number}" if number is not None else f"rank {rank}"
    if not found:
        raise _not_stopped(listing, what, rank, group)
    if len(found) > 1:
        names = ", ".join(
            f"#{n} ({p.group}, {s.thread})" for n, (p, s) in found
        )
        msg = f"{what} is stopped more than once: {names}"
        raise DebuggerError(msg, remedy=f"attach #{found[0][0]}")

    return found[0][1]


def _not_stopped(
    listing: Listing, what: str, rank: int | None, group: str | None
) -> DebuggerError:
    """
    Why can nobody attach to that, and what helps?
    """
    there = _of_group(listing, group, is_needed=False)
    ranks = ranks_shown(p.rank for p in there if p.sessions) or "none"
    stopped = f"stopped are: {ranks}; see: list"
    if rank is None:
        return DebuggerError(f"{what} is not stopped", remedy=stopped)
    if all(p.rank != rank for p in there):
        remedy = f"{_what_exists(there)}; attach #N goes by the list"
        return DebuggerError(f"there is no {what}", remedy=remedy)

    who = f"{group} ranks({rank})" if group else f"ranks({rank})"
    remedy = f"to stop it: interrupt {who}; {stopped}"
    return DebuggerError(f"{what} is not stopped", remedy=remedy)


def _of_group(
    listing: Listing, group: str | None, *, is_needed: bool
) -> tuple[Process, ...]:
    groups = sorted({p.group for p in listing.processes})
    if not groups:
        msg = "no rank listens here"
        raise DebuggerError(
            msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
        )
    if group is None and is_needed:
        # Ray keeps workers for tasks to come.
        groups = [name for name in groups if name != IDLE] or groups
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


def _unknown(selection: RankSelection, there: Iterable[Process]) -> str:
    known = {name for p in there for name in p.coords}
    names = [name for name, _ in selection.by_dimension if name not in known]
    return f": there is no dimension {', '.join(names)}" if names else ""


def _what_exists(there: Iterable[Process]) -> str:
    by_group: dict[str, list[Process]] = {}
    for process in there:
        by_group.setdefault(process.group, []).append(process)
    return "there are: " + "; ".join(
        f"{group} ranks {ranks_shown(p.rank for p in found)}{_sizes(found)}"
        for group, found in by_group.items()
    )


def _sizes(processes: Iterable[Process]) -> str:
    indexes: dict[str, set[int]] = {}
    for process in processes:
        for name, index in process.coords.items():
            indexes.setdefault(name, set()).add(index)
    text = ", ".join(f"{k}={fold_ranks(v)}" for k, v in indexes.items())
    return f" ({text})" if text else ""
