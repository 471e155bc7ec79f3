"""
Which reports of nsys are there, and whose are they?
"""

from __future__ import annotations

import os
import stat

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from ..._files import is_there, resolved
from ...errors import NsightError
from ...findings import Missing
from .join import join_workers
from .model import NsysReport, NsysReports
from .names import SUFFIXES, parse_report_name
from .places import node_of, session_of, temporary_folders
from .worker_logs import WorkerLogs


__all__ = ["find_nsys_reports"]

_MOST_DEPTH = 16


def find_nsys_reports(
    *places: str | os.PathLike[str], workers: Iterable[object] = ()
) -> NsysReports:
    """
    Which worker left which report of nsys?

    The process of a report is that of the worker's own log, so what stands in
    the logs beside it tells the actor.

    Args:
        places: Reports; or folders that hold them anywhere, such as a session
            of Ray, or what was copied from several nodes.  By default the
            sessions of Ray on this node.

        workers: Who else is known: objects or mappings with any of *pid*,
            *host*, *rank*, *actor*, and *logs*, such as those that
            `find_workers` returns.

    Returns:
        The reports, and what could not be looked at.

    Raises:
        NsightError: One of *places* is not there.
    """
    missing: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    logs, own = WorkerLogs(), frozenset(temporary_folders())
    reports = [
        attrs.evolve(
            _report(path, status, logs), node=node_of(path, root, own)
        )
        for root in _roots(places)
        for path, status in _files(root, missing)
        if _is_new(status, seen)
    ]
    reports = join_workers(reports, workers)
    reports.sort(key=_order)
    return NsysReports(reports=tuple(reports), missing=tuple(missing))


def _roots(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    given = [Path(place) for place in places]
    for place in given:
        if not is_there(place):
            msg = f"there is no {place}"
            raise NsightError(
                msg, remedy="name a folder, such as /tmp/ray/session_latest"
            )
    return [resolved(p) for p in given or temporary_folders()]


def _files(
    root: Path, missing: list[Missing], depth: int = 0
) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        if root.is_file():
            yield root, root.stat()
            return
        with os.scandir(root) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        missing.append(Missing(what="report", reason=reason, source=str(root)))
        return

    # Links are not followed: what they point to is found where it is.
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < _MOST_DEPTH:
            yield from _files(root / entry.name, missing, depth + 1)
        elif entry.name.endswith(SUFFIXES):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # gone meanwhile
                continue
            if stat.S_ISREG(status.st_mode):
                yield root / entry.name, status


def _is_new(status: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    key = (status.st_dev, status.st_ino)
    is_new = key not in seen
    seen.add(key)
    return is_new


def _report(
    path: Path, status: os.stat_result, logs: WorkerLogs
) -> NsysReport:
    name = parse_report_name(path.name)
    worker = name.worker if name else ""
    pid = name.pid if name else None
    actor, files = logs.of(path.parent.parent, pid)
    return NsysReport(
        path=str(path),
        worker=worker,
        pid=pid,
        session=session_of(path),
        step_range=name.step_range if name else None,
        part=name.part if name else None,
        size=status.st_size,
        modified=status.st_mtime,
        actor=actor,
        logs=files,
        is_raw=path.suffix == ".qdstrm",
    )


def _order(report: NsysReport) -> tuple[str, str, int, int, str]:
    pid, part = report.pid or 0, report.part or 0
    return report.node, report.worker, pid, part, report.path
