"""
Who printed what into the output of a driver, and what failed?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Iterator, Mapping

import attrs

from ..._lines import BROKEN, LogLine, read_lines
from ...errors import DistdebugError, LogError, NoLogsError
from ...findings import Missing
from ..deaths.ranks import rank_of
from .blocks import gather_blocks
from .ends import Counts, completed, count_own, failures_in
from .model import DriverLog, DriverSource, Failure
from .tallies import Tallies, count_line, sources_of


__all__ = ["driver_lines", "read_driver_log"]

_MOST_FAILURES = 10_000


def driver_lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    """
    Read the output of a driver line by line.

    Colors and Ray's prefixes are taken off, states of progress bars that are
    glued by carriage returns become lines, and what Ray folded (``[repeated
    17x across cluster]``) becomes a count.

    Args:
        source: The file, or its lines.

    Yields:
        The lines, with who printed them.

    Raises:
        LogError: The file cannot be read, or not on.

        NoLogsError: There is no such file.
    """
    try:
        yield from _lines(source)
    except DistdebugError:
        raise
    except BROKEN as exc:
        msg = f"cannot read {_path(source) or 'the lines'}: {exc}"
        raise LogError(
            msg,
            remedy="see whether it is whole, a text in UTF-8, and may be read",
        ) from exc


def _lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    try:
        yield from read_lines(source)
    except FileNotFoundError:
        msg = f"no such file: {source}"
        raise NoLogsError(msg, remedy="name the file it was sent to") from None


def read_driver_log(
    source: str | os.PathLike[str] | Iterable[str],
) -> DriverLog:
    """
    Tell who printed into the output of a driver, and what failed.

    An exception in a method of an actor is told nowhere else: the log of the
    actor does not have it.

    Args:
        source: The file that the output was sent to, or its lines.

    Returns:
        What it tells.  A file that breaks off is in *missing*.

    Raises:
        NoLogsError: There is no such file.
    """
    path = _path(source)
    tallies: Tallies = {}
    missing: list[Missing] = []
    counts = Counts()

    def counted() -> Iterator[LogLine]:
        try:
            for line in _lines(source):
                count_own(counts, line)
                count_line(tallies, line)
                yield line
        except NoLogsError:
            raise
        except BROKEN as exc:
            missing.append(Missing.log(path, exc))

    failures = failures_in(gather_blocks(counted()), counts)
    sources = sources_of(tallies)
    failures += _seen_to_crash(sources, failures)
    by_pid = {(x.origin.pid, x.origin.ip): x for x in sources}
    return DriverLog(
        path=path,
        lines=counts.lines,
        sources=sources,
        failures=tuple(
            _named(x, by_pid) for x in completed(_told_once(failures))
        ),
        missing=tuple(missing),
    )


def _path(source: str | os.PathLike[str] | Iterable[str]) -> str:
    if isinstance(source, str):
        return "" if "\n" in source else source
    return os.fspath(source) if isinstance(source, os.PathLike) else ""


def _seen_to_crash(
    sources: Iterable[DriverSource], failures: Iterable[Failure]
) -> list[Failure]:
    """
    Those whose deaths nobody told, since nobody waited for them.
    """
    told = {x.pid for x in failures}
    return [
        Failure(
            kind="worker_crashed",
            line=source.last_line,
            pid=source.origin.pid,
            ip=source.origin.ip,
            quote=f"{source} {source.signal} received",
        )
        for source in sources
        if source.signal not in {None, "SIGTERM"}
        and source.origin.pid not in told
    ]


def _named(
    failure: Failure,
    sources: Mapping[tuple[int | None, str | None], DriverSource],
) -> Failure:
    """
    Call a process as its own lines are called, where nothing else names it.
    """
    if failure.pid is None or failure.actor_repr is not None:
        return failure
    places = ((failure.pid, failure.ip), (failure.pid, None))
    source = next((sources[x] for x in places if x in sources), None)
    if source is None:
        return failure

    own = next((x for x in source.names if "(" in x), None)
    classes = (x.partition("(")[0] for x in source.names)
    return attrs.evolve(
        failure,
        actor_class=failure.actor_class or next(classes),
        actor_repr=own,
        rank=rank_of((own, *source.names), "")
        if failure.rank is None
        else failure.rank,
    )


def _told_once(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """
    Whoever waits for a dead actor tells its death again.
    """
    found: dict[tuple[object, ...], Failure] = {}
    for failure in failures:
        who = failure.actor_id or failure.worker_id or failure.pid
        what = failure.function if who is None else ""
        how = failure.kind, failure.error, failure.message, what
        key = who, failure.ip, how
        known = found.get(key)
        if known is not None:
            found[key] = attrs.evolve(
                known,
                count=known.count + 1,
                line=min(known.line, failure.line),
                ended_driver=known.ended_driver or failure.ended_driver,
            )
        elif len(found) < _MOST_FAILURES:
            found[key] = failure
    return tuple(sorted(found.values(), key=lambda x: x.line))
