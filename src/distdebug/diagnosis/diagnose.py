"""
So what is the root cause, given everything that was collected?
"""

from __future__ import annotations

import os

from collections.abc import Callable
from pathlib import Path

from ..errors import NoDumpsError
from ..findings import Cause, Diagnosis, Finding, Missing
from ..flight_recorder.analysis.analyze import analyze_dumps
from ..flight_recorder.read import read_dumps
from ..stacks.explain import explain_stacks
from ..stacks.model import ProcessStacks
from ..stacks.parse import read_stacks
from .hosts import host_views
from .refine import refine


__all__ = ["diagnose"]


def diagnose(
    *paths: str | os.PathLike[str],
    progress: Callable[[int, int], object] | None = None,
) -> Diagnosis:
    """
    Find the root cause of a stuck, slow, or dead job.

    Args:
        paths: Files and folders with whatever was collected: Flight Recorder
            dumps, side-cars, Python stacks.

        progress: Called with how many files of how many were read.

    Returns:
        The diagnosis; it prints itself, the verdict first.

    Raises:
        NoDumpsError: There is nothing to look at.
    """
    stacks = _read_stacks(paths)
    try:
        dumps = read_dumps(paths, progress=progress)
    except NoDumpsError:
        if not stacks:
            raise
        return _from_stacks(stacks)

    report = analyze_dumps(dumps)
    views = host_views(dumps, stacks)
    return refine(report.to_diagnosis(), views, report.dumps)


def _read_stacks(
    paths: tuple[str | os.PathLike[str], ...],
) -> tuple[ProcessStacks, ...]:
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(path.rglob("pyspy_*")) if path.is_dir() else [path]

    return read_stacks(
        p for p in found if p.name.startswith("pyspy_") and p.is_file()
    )


def _from_stacks(stacks: tuple[ProcessStacks, ...]) -> Diagnosis:
    findings = explain_stacks(stacks)
    no_dumps = Missing(
        what="dump",
        reason="there are no Flight Recorder dumps, only stacks",
    )
    unknown = Finding(
        cause=Cause.UNKNOWN,
        ranks=(),
        summary="stacks alone do not tell who holds up whom",
        confidence="possible",
        remedy="enable the Flight Recorder and take the dumps of all ranks",
    )
    return Diagnosis(
        verdict=findings[0] if len(findings) == 1 else unknown,
        findings=findings,
        missing=(no_dumps,),
    )
