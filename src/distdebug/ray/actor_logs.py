"""
Find, read, and follow the log files of Ray actors.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import attrs

from .._io import is_folder, open_ordinary
from ..errors import LogError
from ..logs import (
    PACKED_SUFFIXES,
    READ_ERRORS,
    LogLine,
    LogWalk,
    Origin,
    parse_line,
    read_lines,
)
from ..logs import read_tail as read_end
from .sessions import (
    LogPart,
    RaySession,
    RaySessions,
    WorkerLog,
    as_sessions,
    find_ray_sessions,
    is_rotated,
    rotated_parts,
)
from .workers import (
    MARKER_PREFIXES,
    add_cluster_facts,
    has_all_names,
    has_exports,
    read_heads,
    worker_files,
)


_ID = re.compile(r"[0-9a-f]{6,56}")
_MOST_PID_DIGITS = 7


def find_actor_logs(
    actor: str | int, sessions: RaySessions | None = None
) -> tuple[WorkerLog, ...]:
    """
    Find the logs of an actor on all nodes.

    Args:
        actor: A shell pattern such as ``"TrainerActor*"``, which is matched
            with the class, the ``__repr__``, and the name of each actor; a
            process id; at least six digits of an actor id or a worker id; or
            the beginning of a driver line, such as
            ``"(SglEngine pid=514428, ip=10.0.0.2)"``.

        sessions: Sessions, or folders to search for them; by default Ray's
            usual folders on this machine.

    Returns:
        The logs, by node; none if no actor matches.

    Raises:
        NoLogsError: There is no session.

        LogError: *actor* is empty, or neither a text nor a number.
    """
    if not isinstance(actor, str | int):
        msg = f"which actor? A pattern or a number, and not {actor!r:.60}"
        raise LogError(msg, remedy='name it first: find_actor_logs("*", …)')
    if isinstance(actor, str) and not actor.strip():
        msg = "which actor? The pattern is empty"
        raise LogError(msg, remedy='"*" is every actor')

    found = () if sessions is None else as_sessions(sessions)
    found = found or find_ray_sessions()
    logs = worker_files(found)
    text = str(actor).strip()
    # The beginning of a driver line.
    origin = parse_line(text).origin
    if origin is not None and origin.pid is not None:
        return _filter_by_origin(logs, found, origin)

    if text.isdecimal() and len(text) <= _MOST_PID_DIGITS:
        by_file = [log for log in logs if log.pid == int(text)]
    else:
        by_file = [log for log in logs if _is_id_prefix(log.worker_id, text)]
    if by_file:
        return add_cluster_facts(read_heads(by_file), found)
    heads = read_heads(logs)
    if not _ID.fullmatch(text) and not any(map(has_exports, found)):
        # Skip workers whose other names no file can add.
        heads = [
            x for x in heads if _is_match(x, text) or not has_all_names(x)
        ]
    return tuple(
        x for x in add_cluster_facts(heads, found) if _is_match(x, text)
    )


def _filter_by_origin(
    logs: Iterable[WorkerLog], sessions: Iterable[RaySession], origin: Origin
) -> tuple[WorkerLog, ...]:
    """
    Filter workers by process id, name, and node.

    Process ids repeat across nodes, and Ray omits the address of the driver's
    own node.
    """
    heads = read_heads(
        log
        for log in logs
        if log.pid == origin.pid
        and (origin.ip is None or log.session.ip in {None, origin.ip})
    )
    found = add_cluster_facts(heads, sessions)
    criteria: tuple[Callable[[WorkerLog], bool], ...] = (
        lambda log: origin.ip is not None and log.session.ip == origin.ip,
        # The prefix has the name of a task if there is no actor.
        lambda log: origin.name in (*_actor_names(log), *log.task_names),
        lambda log: origin.ip is None and log.session.is_head,
    )
    for has_property in criteria:
        found = tuple(filter(has_property, found)) or found
    return found


def _actor_names(log: WorkerLog) -> list[str]:
    names = (log.actor_class, log.actor_repr, log.actor_name)
    return [x for x in names if x]


def _is_match(log: WorkerLog, text: str) -> bool:
    if _is_id_prefix(log.worker_id, text) or _is_id_prefix(log.actor_id, text):
        return True
    names = _actor_names(log)
    if log.actor_class:
        names.append(log.actor_class.rpartition(".")[2])
    # A repr may contain brackets, which are special in a pattern.
    return any(x == text or fnmatchcase(x, text) for x in names)


def _is_id_prefix(name: str | None, text: str) -> bool:
    return bool(name and name.startswith(text) and _ID.fullmatch(text))


Stream = Literal["out", "err"]
LogSource = WorkerLog | LogPart | str | os.PathLike[str]
LogSources = LogSource | Iterable[LogSource]

_BLOCK = 1 << 16
# Longer lines are cut.
_MOST_LINE = 1 << 16
_MOST_BYTES = 1 << 26


def read_parts(
    log: LogSources, *, stream: Stream = "err"
) -> Iterator[LogLine]:
    """
    Read a log from its beginning, with all its rotated parts.

    A part that was deleted meanwhile, or cannot be read, is skipped.

    Args:
        log: The log of a worker, or parts or paths of one log, oldest first.

        stream: The stream of a worker: ``logging`` writes to ``"err"``,
            ``print`` to ``"out"``.

    Yields:
        The lines with file and line number, without Ray's markers for jobs and
        actors.

    Raises:
        LogError: There is no such stream.
    """
    for path in _find_log_paths(log, stream):
        try:
            for line in read_lines(path):
                if not line.text.startswith(MARKER_PREFIXES):
                    yield line
        except READ_ERRORS:
            continue


def read_tail(
    log: LogSources, *, lines: int = 20, stream: Stream = "err"
) -> tuple[LogLine, ...]:
    """
    Read the last lines of a log.

    Files are read from their end, at most 64 MiB in all, so their size does
    not matter; therefore the lines have no numbers.

    Args:
        log: The log of a worker, or parts or paths of one log, oldest first.

        lines: The maximum number of lines.

        stream: The stream of a worker.

    Returns:
        The lines, oldest first.

    Raises:
        LogError: There is no such stream.
    """
    found: list[LogLine] = []
    budget = _MOST_BYTES
    for path in reversed(_find_log_paths(log, stream)):
        try:
            last, size = _read_last(path, lines - len(found), budget)
        except READ_ERRORS:
            continue
        found = last + found
        budget -= size
        if len(found) >= lines or budget <= 0:
            break
    return tuple(found)


def _read_last(path: Path, count: int, most: int) -> tuple[list[LogLine], int]:
    """
    Read the last lines of a file.

    Returns:
        At most *count* lines, and how many bytes were read, at most *most*.
    """
    size = _BLOCK
    while True:
        size = min(size, most)
        data = read_end(path, size)
        is_whole = len(data) < size
        pieces = data.replace(b"\r", b"\n").split(b"\n")
        # The first line may begin before.
        whole = (x[:_MOST_LINE] for x in pieces[not is_whole :])
        found = list(_parse_lines(whole, path))
        if len(found) >= count or is_whole or size == most:
            return found[max(len(found) - count, 0) :], len(data)
        size *= 8


def _find_log_paths(log: LogSources, stream: str) -> list[Path]:
    """
    Return the files of a log.

    Raises:
        LogError: There is no such stream.
    """
    if stream not in {"out", "err"}:
        msg = f"a worker has no stream {stream!r}"
        raise LogError(msg, remedy='give "out" or "err"')

    return _list_paths(log, lambda x: x.out if stream == "out" else x.err)


def _list_paths(
    log: LogSources, parts_of: Callable[[WorkerLog], Iterable[LogPart]]
) -> list[Path]:
    if isinstance(log, WorkerLog):
        return [x.path for x in parts_of(log)]
    if isinstance(log, LogPart):
        return [log.path]
    if isinstance(log, (str, os.PathLike)):
        return [Path(log)]
    return [path for one in log for path in _list_paths(one, parts_of)]


_POLL_S = 0.2
_SEARCH_S = 2.0
_FOLLOW_BLOCK = 1 << 18
# What is read of one file before the next file is read, in bytes.
_BYTES_PER_TURN = 4 * _FOLLOW_BLOCK


def follow_lines(
    paths: LogSources,
    *,
    stop: threading.Event | None = None,
    timeout_s: float | None = None,
    from_start: bool = False,
) -> Iterator[LogLine]:
    """
    Yield lines that are appended to files, like ``tail -F``.

    Files may be rotated, truncated, deleted, and recreated, and need not exist
    yet.  Lines written shortly before a rotation are read under the new name.
    No file stays open, so there may be thousands.

    Args:
        paths: Files, logs of workers (both streams), and folders where logs
            may appear.

        stop: Set it to end the iteration, after one more read.

        timeout_s: When to end, in seconds; by default never.

        from_start: Whether to yield lines that the files already contain;
            rotated parts are not read again.

    Yields:
        Complete lines, without numbers and without Ray's markers for jobs and
        actors; a progress bar yields one line for each state.

    Raises:
        LogError: There is nothing to follow.
    """
    # Older parts do not change.
    targets = _list_paths(paths, lambda x: (*x.out[-1:], *x.err[-1:]))
    if not targets:
        msg = "no file to follow"
        raise LogError(msg, remedy="name files or folders")

    stop = stop or threading.Event()
    if timeout_s is not None and math.isnan(timeout_s):
        msg = "timeout_s is not a number of seconds"
        raise LogError(msg)
    end = math.inf if timeout_s is None else time.monotonic() + timeout_s
    files = {
        x: _FollowedFile(x) if from_start else _FollowedFile.at_end(x)
        for x in _expand_folders(targets)
    }
    last_search = time.monotonic()
    is_over = False
    while not is_over:
        now = time.monotonic()
        is_over = stop.is_set() or now >= end
        if is_over or now - last_search > _SEARCH_S:
            last_search = now
            for path in _expand_folders(targets):
                files.setdefault(path, _FollowedFile(path))
        for file in files.values():
            yield from _parse_lines(file.read(), file.path)
        if not is_over and not any(x.has_more for x in files.values()):
            stop.wait(min(_POLL_S, end - now))
    for file in files.values():
        yield from _parse_lines([file.rest], file.path)


def _expand_folders(targets: Iterable[Path]) -> Iterator[Path]:
    for path in targets:
        if not is_folder(path):
            yield path
            continue
        # Rotated files hold lines that were read under their old name.
        for found in LogWalk(path):
            if found.suffix not in PACKED_SUFFIXES and not is_rotated(found):
                yield found


@attrs.define
class _FollowedFile:
    """
    A followed file, and how far it was read.

    Attributes:
        path: The file.

        status: What identifies the file, also after a rename.

        offset: The offset of the next block, in bytes.

        rest: The beginning of a line that is not complete yet.

        has_more: Whether more can be read at once.
    """

    path: Path
    status: os.stat_result | None = None
    offset: int = 0
    rest: bytes = b""
    has_more: bool = False

    @classmethod
    def at_end(cls, path: Path) -> _FollowedFile:
        """
        Skip what the file contains now.
        """
        status = _stat(path)
        if status is None:
            return cls(path)
        return cls(path, status, offset=status.st_size)

    def read(self) -> Iterator[bytes]:
        """
        Yield the complete lines that were added, of a large file some.
        """
        self.has_more = False
        status = _stat(self.path)
        before = self.status
        if before and not (status and os.path.samestat(status, before)):
            yield from self._read_rotated(before)
            self.offset = 0
        self.status = status
        if status is None:
            return

        if status.st_size < self.offset:  # truncated
            self.offset, self.rest = 0, b""
        yield from self._read_blocks(self.path, self.offset + _BYTES_PER_TURN)
        self.has_more = self.offset < status.st_size

    def _read_rotated(self, before: os.stat_result) -> Iterator[bytes]:
        """
        Yield the rest of the file that had this name before.
        """
        for other in rotated_parts(self.path):
            status = _stat(other)
            if status and os.path.samestat(status, before):
                yield from self._read_blocks(other, status.st_size)
                break
        yield self.rest
        self.rest = b""

    def _read_blocks(self, path: Path, end: int) -> Iterator[bytes]:
        with (
            suppress(OSError, ValueError),
            open_ordinary(path, "not an ordinary file") as file,
        ):
            file.seek(self.offset)
            while self.offset < end and (block := file.read(_FOLLOW_BLOCK)):
                self.offset += len(block)
                *lines, rest = (
                    (self.rest + block).replace(b"\r", b"\n").split(b"\n")
                )
                self.rest = rest[:_MOST_LINE]
                yield from (line[:_MOST_LINE] for line in lines)


def _parse_lines(lines: Iterable[bytes], path: Path) -> Iterator[LogLine]:
    for raw in lines:
        text = raw.decode("utf-8", "replace")
        if text.strip():
            line = parse_line(text, source=str(path))
            if not line.text.startswith(MARKER_PREFIXES):
                yield line


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None
