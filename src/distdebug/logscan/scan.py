"""
What went wrong, as gigabytes of logs tell?
"""

from __future__ import annotations

import os
import threading

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial

import attrs

from .._lines import BROKEN
from .._text import list_text
from ..errors import LogError, NoLogsError
from ..findings import Missing
from .blocks import Part, is_packed
from .conclude import conclude
from .files import Found, find_files, find_parts
from .gather import (
    Key,
    Tally,
    gather,
    harmless_of,
    join_tallies,
)
from .groups import groups_of
from .model import LogGroup, ScanReport, TraceGroup
from .part import Event, read_part
from .plan import Plan, make_plan
from .rules import read_rules


__all__ = ["scan_logs"]

_MOST_THREADS = 4
_TELL_S = 0.2


def scan_logs(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
    tell: Callable[[int, int], None] | None = None,
    most_bytes: int | None = None,
    threads: int | None = None,
) -> ScanReport:
    """
    Find out what went wrong, as logs of any size tell.

    Files are read up to the size that they have in the beginning, by several
    threads, in bounded memory; those that end in ``.gz``, ``.bz2``, or
    ``.xz`` are unpacked.  A file that cannot be read is reported, and the
    others are read.  Of a flood of lines that tell the same only some are
    looked at, and the count is then a lower bound; of a flood that holds a
    word that matters, and tells nothing, too, which ``missing`` says.

    Args:
        paths: Files, and folders to be searched for logs.  Links out of a
            folder are not followed.

        rules: Files of rules of your own, which are tried first; see
            :func:`~distdebug.logscan.rules.load_rules`.

        tell: Is called a few times per second with how many bytes were read
            and how many there are.

        most_bytes: How many bytes to read at most.  Where there are more, the
            ends of large files are read.

        threads: How many threads read; by default one per core, at most 4.

    Returns:
        What was found, the first cause first.

    Raises:
        NoLogsError: There is no log.

        LogError: *most_bytes* or *threads* is less than one.

        RulesError: One of the files of rules cannot be used.
    """
    _check(most_bytes=most_bytes, threads=threads)
    plan = make_plan(read_rules(rules))
    found = _found(paths)
    parts, left_out = find_parts(found, most_bytes)
    total = sum(
        found.sizes[x.path] if is_packed(x.path) else x.stop - x.start
        for x in parts
    )
    done = _read_all(
        parts, plan, threads or _cores(), partial(_tell, tell, total)
    )
    tallies = join_tallies(_numbered(parts, done))
    groups = groups_of(tallies)
    broken = [m for result in done for m in result.missing]
    return ScanReport(
        findings=tuple(conclude(rule, group) for rule, group in groups),
        groups=tuple(g for _, g in groups if isinstance(g, LogGroup)),
        tracebacks=tuple(g for _, g in groups if isinstance(g, TraceGroup)),
        harmless=harmless_of(tallies),
        missing=(*found.missing, *left_out, *broken),
        files=len({part.path for part in parts}),
        bytes_read=sum(result.size for result in done),
    )


@attrs.define(kw_only=True)
class _Done:
    """
    What one part told, and how far it was read.
    """

    tallies: Mapping[Key, Tally] = attrs.field(factory=dict)
    size: int = 0
    lines: int = 0
    missing: list[Missing] = attrs.field(factory=list)


def _check(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            msg = f"{name} is at least 1: {value}"
            raise LogError(msg)


def _found(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
) -> Found:
    found = find_files(paths)
    if not found.sizes:
        reasons = [f"{m.source}: {m.reason}" for m in found.missing]
        raise NoLogsError(
            "; ".join(reasons[:3]) or "no logs there",
            remedy="name files, or folders that hold logs",
        )
    return found


def _cores() -> int:
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    return min(count, _MOST_THREADS)


def _tell(
    tell: Callable[[int, int], None] | None, total: int, size: int
) -> None:
    if tell is not None:
        tell(min(size, total), total)


def _read_all(
    parts: list[Part], plan: Plan, threads: int, tell: Callable[[int], None]
) -> list[_Done]:
    stop = threading.Event()
    done = [_Done() for _ in parts]
    with ThreadPoolExecutor(threads, "distdebug-logs") as pool:
        try:
            waiting = {
                pool.submit(_read, part, plan, result, stop)
                for part, result in zip(parts, done, strict=True)
            }
        except RuntimeError:  # no more threads can be had
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            return [_read_here(part, plan) for part in parts]

        try:
            while waiting:
                ended, waiting = wait(waiting, _TELL_S, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                tell(sum(result.size for result in done))
        except BaseException:  # such as Ctrl-C: the threads would go on
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return done


def _read_here(part: Part, plan: Plan) -> _Done:
    result = _Done()
    _read(part, plan, result, threading.Event())
    return result


def _read(
    part: Part, plan: Plan, result: _Done, stop: threading.Event
) -> None:
    def tell(size: int, lines: int) -> None:
        if stop.is_set():
            raise InterruptedError
        result.size += size
        result.lines += lines

    paused: set[bytes] = set()
    events = read_part(part, plan, tell, paused)
    events = _while_readable(events, part, result)
    result.tallies = gather(events, part.path)
    if paused:
        words = list_text(sorted(repr(x.decode()) for x in paused))
        reason = f"there are too many lines with {words} to look at each"
        result.missing.append(
            Missing(what="lines", reason=reason, source=part.path)
        )
    if is_packed(part.path) and result.size >= part.stop:
        reason = f"only its first {part.stop:,} bytes, unpacked, were read"
        result.missing.append(Missing.log(part.path, reason))


def _while_readable(
    events: Iterator[Event], part: Part, result: _Done
) -> Iterator[Event]:
    try:
        yield from events
    except BROKEN as exc:
        result.missing.append(Missing.log(part.path, exc))


def _numbered(
    parts: list[Part], done: list[_Done]
) -> Iterator[tuple[int | None, Mapping[Key, Tally]]]:
    """
    How many lines of its file are before each part?
    """
    path, lines = "", None
    for part, result in zip(parts, done, strict=True):
        if part.path != path:
            path, lines = part.path, None if part.start else 0
        yield lines, result.tallies
        if lines is not None:
            lines += result.lines
