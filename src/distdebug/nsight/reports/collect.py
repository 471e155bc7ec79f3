"""
How do reports get to a place that lasts?
"""

from __future__ import annotations

import os
import shutil
import time

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..._files import open_ordinary, output_to
from ...findings import Missing
from .model import Collected, NsysReport
from .writing import being_written


__all__ = ["collect_nsys_reports"]

_SETTLE_S = 3.0
_BLOCK = 1 << 20


def collect_nsys_reports(
    reports: Iterable[NsysReport],
    folder: str | os.PathLike[str],
    *,
    settle_s: float = _SETTLE_S,
) -> Collected:
    """
    Copy reports out of folders that go with their container.

    A report is copied to ``FOLDER/NODE/SESSION/NAME``, and appears there
    whole.  What is there with the same size and time is not copied again, so
    that it can be called as often as one likes, also after it was interrupted.

    Args:
        reports: Those that `find_nsys_reports` found.

        folder: Where they go.

        settle_s: How long a report must not have changed to be taken for
            whole, in seconds.

    Returns:
        What was copied, what was there, and what was left because nsys is
        still writing it.

    Raises:
        OutputError: The folder cannot be made.
    """
    root = Path(folder)
    with output_to(root):
        root.mkdir(parents=True, exist_ok=True)
    done: dict[str, list[str]] = defaultdict(list)
    missing: list[Missing] = []
    busy, taken = being_written(), set()
    for report in reports:
        target = _target(root, report)
        try:
            if target in taken:
                msg = f"another report goes to {target}"
                raise FileExistsError(msg)
            taken.add(target)
            state = _collect(Path(report.path), target, busy, settle_s)
        except (OSError, ValueError) as exc:
            missing.append(_lost(report, exc))
        else:
            is_left = state == "left"
            done[state].append(report.path if is_left else str(target))
    return Collected(
        missing=tuple(missing),
        **{state: tuple(paths) for state, paths in done.items()},
    )


def _lost(report: NsysReport, exc: Exception) -> Missing:
    reason = getattr(exc, "strerror", None) or str(exc)
    return Missing(what="report", reason=reason, source=report.path)


def _target(root: Path, report: NsysReport) -> Path:
    # The name of a node may be what a user typed.
    node = report.node.replace("/", "_").lstrip(".")
    return root.joinpath(node, report.session, Path(report.path).name)


def _collect(
    source: Path, target: Path, busy: frozenset[str], settle_s: float
) -> str:
    before = source.stat()
    if _same(target, before):
        return "present"
    age = time.time() - before.st_mtime
    if str(source) in busy or 0 <= age < settle_s:
        return "left"

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.part")
    try:
        _copy(source, temporary)
        after = source.stat()
        if _stamp(after) != _stamp(before):
            return "left"
        os.utime(temporary, ns=(after.st_atime_ns, after.st_mtime_ns))
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return "copied"


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with (
        open_ordinary(source, "not an ordinary file") as opened,
        target.open("xb") as made,
    ):
        shutil.copyfileobj(opened, made, _BLOCK)
        made.flush()
        os.fsync(made.fileno())


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _same(target: Path, source: os.stat_result) -> bool:
    try:
        there = target.stat()
    except FileNotFoundError:
        return False

    # Some file systems keep less than a nanosecond.
    near = abs(there.st_mtime_ns - source.st_mtime_ns) < 2_000_000_000
    return near and there.st_size == source.st_size
