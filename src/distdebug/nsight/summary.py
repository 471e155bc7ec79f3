"""
What does a report tell, in a few lines?
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from .._io import is_file
from .._showing import Block, Shown, Table
from .._text import clean
from ..capture.tool import stoppable
from .doctor import find_nsys


_MOST_OUTPUT = 1 << 20
_REAP_S = 5.0


class Ended(NamedTuple):
    """
    How a command ended.

    Attributes:
        status: Its exit status; ``None`` if its time was over.

        output: What it printed, at most 1 MiB of it.
    """

    status: int | None
    output: str

    @property
    def why(self) -> str:
        """
        One line that says why it failed.
        """
        if self.status is None:
            return "nsys was not done in time"
        lines = [x for x in self.output.splitlines() if x.strip()]
        last = clean(lines[-1]) if lines else "it said nothing"
        return f"nsys ended with status {self.status}: {last}"


def run_in_group(argv: Sequence[str], folder: Path, timeout_s: float) -> Ended:
    """
    Run a command in a process group, which is gone afterwards.

    Args:
        argv: The command and its arguments.

        folder: Where it may leave files.

        timeout_s: How long it may take, in seconds.

    Returns:
        How it ended.

    Raises:
        OSError: It cannot be started.
    """
    printed = folder / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        status: int | None = None
        try:
            with (
                stoppable(lambda: _kill(process)),
                suppress(subprocess.TimeoutExpired),
            ):
                status = process.wait(timeout_s)
        finally:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
    with printed.open("rb") as text:
        output = text.read(_MOST_OUTPUT).decode("utf-8", "replace")
    return Ended(status, output)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # What it started may outlive it, in the same group.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


# What versions since 2023 call it, and those before.
_TABLES = {
    "ranges": ("nvtx_sum", "nvtxsum"),
    "calls": ("cuda_api_sum", "cudaapisum"),
    "kernels": ("cuda_gpu_kern_sum", "gpukernsum"),
}
_LISTED = re.compile(r"^ {0,8}(\w{1,60})", re.MULTILINE)
_LIST_S = 20.0
_MOST_ROWS = 10_000


@attrs.frozen(kw_only=True)
class ReportRow:
    """
    What took how long in sum.

    Attributes:
        name: The range, the call, or the kernel.

        total_s: How long all of them took, in seconds.

        count: How many there were.
    """

    name: str
    total_s: float
    count: int


@attrs.frozen(kw_only=True)
class ReportSummary(Shown):
    """
    What a report tells.

    Attributes:
        path: The report.

        ranges: NVTX ranges, those that took longest first.

        calls: Calls of CUDA on the host, likewise.

        kernels: Kernels on the GPU, likewise.

        problem: Why there is nothing, or not all; else ``""``.
    """

    path: str
    ranges: tuple[ReportRow, ...] = ()
    calls: tuple[ReportRow, ...] = ()
    kernels: tuple[ReportRow, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "path": self.path,
            **{
                t: [attrs.asdict(r) for r in getattr(self, t)] for t in _TABLES
            },
            "problem": self.problem,
        }

    def _blocks_(self) -> Iterable[Block]:
        yield self.path
        for title in _TABLES:
            rows = getattr(self, title)
            cells = [(r.name, f"{r.total_s:.6f}", r.count) for r in rows]
            if cells:
                yield Table((title, "seconds", "times"), cells, 5, "")
        if self.problem:
            yield self.problem


def summarize_report(
    path: str | os.PathLike[str],
    *,
    timeout_s: float = 300.0,
    nsys: str = "nsys",
) -> ReportSummary:
    """
    What took most of the time, as a report tells?

    ``nsys stats`` reads it; what that writes goes into a folder for temporary
    files, which needs about as much space again, and is removed.

    Args:
        path: The report.

        timeout_s: How long it may take, in seconds.

        nsys: The name of nsys, or its path.

    Returns:
        The summary; if there is none, its *problem* says why.
    """
    name = os.fspath(path)
    tool = find_nsys(nsys)
    if tool is None:
        return ReportSummary(path=name, problem="nsys is not installed here")
    if not is_file(name):
        return ReportSummary(path=name, problem="there is no such file")

    folder = tempfile.mkdtemp(prefix="distdebug-nsys-")
    try:
        return _summarize(name, tool, Path(folder), timeout_s)
    except OSError as exc:
        return ReportSummary(path=name, problem=exc.strerror or str(exc))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _summarize(
    name: str, tool: str, folder: Path, timeout_s: float
) -> ReportSummary:
    # What is written goes beside what is read.
    report = folder / "report.nsys-rep"
    report.symlink_to(os.path.abspath(name))  # noqa: PTH100 a link stays one
    listing = [tool, "stats", "--help-reports"]
    known = _known(run_in_group(listing, folder, _LIST_S).output)
    tables = _chosen(known)
    argv = [tool, "stats", "--force-export", "true", "--format", "csv"]
    argv += ["--output", str(folder / "out"), "--report", ",".join(tables)]
    ended = run_in_group([*argv, str(report)], folder, timeout_s)
    found = {
        title: _rows(folder.glob(f"out_{table}*.csv"))
        for table, title in tables.items()
    }
    problem = "" if ended.status == 0 or any(found.values()) else ended.why
    return ReportSummary(path=name, problem=problem, **found)


def _known(text: str) -> set[str]:
    return set(_LISTED.findall(text))


def _chosen(known: set[str]) -> dict[str, str]:
    """
    The name that this version has for each table.
    """
    return {
        next((n for n in names if n in known), names[0]): title
        for title, names in _TABLES.items()
    }


def _rows(files: Iterable[Path]) -> tuple[ReportRow, ...]:
    found = []
    for file in files:
        with (
            file.open(encoding="utf-8", errors="replace", newline="") as text,
            # A name that is too long hides what comes after it.
            suppress(csv.Error),
        ):
            for record in islice(csv.DictReader(text), _MOST_ROWS):
                found += _row(record)
    return tuple(sorted(found, key=lambda row: -row.total_s))


def _row(record: dict[str, str]) -> list[ReportRow]:
    name = record.get("Range") or record.get("Name")
    try:
        total = float(record["Total Time (ns)"]) / 1e9
        count = int(record.get("Instances") or record["Num Calls"])
    except (KeyError, TypeError, ValueError):
        return []
    # No time is endless, and JSON has no word for it.
    if not (name and math.isfinite(total)):
        return []
    return [ReportRow(name=name, total_s=total, count=count)]
