"""
Did nsys start the wrong Python, so that no worker of Ray ever registered?

What a worker prints before it is one ends up in ``raylet.err`` and
``raylet.out``.
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from .._lines import LogLine, read_lines, walk_logs
from .._text import clean
from ..findings import Cause, Evidence, Finding, Missing


__all__ = ["nsight_log_findings", "raylet_findings"]

_NOT_FOUND = re.compile(r"Program not found: python[0-9.]{0,5}\s*$")
_NO_RAY = re.compile(r"ModuleNotFoundError: No module named '?ray\b")
_LATE = re.compile(r"have not registered within the timeout")
_FILE = re.compile(r"raylet\.(?:err|out)(?:\.[0-9]{1,4})?(?:\.(?:gz|bz2|xz))?")
_NSYS = re.compile(r"\.(?:nsys-rep|qdstrm)\b|\bnsys profile\b")
_REMEDY = (
    "run 'distdebug nsight patch' on every node before 'ray start', or let "
    'the worker start by nsight_runtime_env(mode="py_executable")'
)


def nsight_log_findings(
    *sources: str | os.PathLike[str] | Iterable[str],
) -> tuple[Finding, ...]:
    """
    Do logs of raylets show that nsys started the wrong Python?

    Args:
        sources: Files, or lines, of ``raylet.err`` and ``raylet.out`` of one
            node.

    Returns:
        A finding with the cause ``nsight_wrong_python``, or nothing.  A
        worker without Ray is one only if nsys was seen to start it.

    Raises:
        OSError: A file cannot be read.

        ValueError: It is no ordinary file, or damaged.
    """
    return _find(chain.from_iterable(map(read_lines, sources)))


def raylet_findings(
    *places: str | os.PathLike[str],
) -> tuple[tuple[Finding, ...], tuple[Missing, ...]]:
    """
    On which nodes did nsys start the wrong Python?

    Args:
        places: Folders, such as a session of Ray, or the logs of several
            nodes; or files ``raylet.err`` and ``raylet.out``, best both.

    Returns:
        At most one finding for each folder of logs, and what could not be
        read, or not to its end.
    """
    logs: dict[Path, list[Path]] = defaultdict(list)
    walk = walk_logs([Path(place).absolute() for place in places])
    for path in walk:
        if _FILE.fullmatch(path.name):
            logs[path.parent].append(path)
    missing = walk.missing
    found = [
        finding
        for files in logs.values()
        for finding in _find(_readable(files, missing))
    ]
    return tuple(found), tuple(missing)


def _readable(
    files: Iterable[Path], missing: list[Missing]
) -> Iterator[LogLine]:
    """
    The lines of those that can be read; the others are added to *missing*.
    """
    for path in files:
        try:
            yield from read_lines(path)
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(path, exc))


def _find(lines: Iterable[LogLine]) -> tuple[Finding, ...]:
    rules = {"lost": _NOT_FOUND, "no ray": _NO_RAY, "late": _LATE}
    first: dict[str, LogLine] = {}
    is_nsys = False
    for line in lines:
        is_nsys = is_nsys or bool(_NSYS.search(line.text))
        for name, rule in rules.items():
            if name not in first and rule.search(line.text):
                first[name] = line
    if "lost" in first:
        what = "there is no 'python' on the PATH of the raylet"
    elif "no ray" in first and is_nsys:
        what = "the 'python' on the PATH of the raylet is one without Ray"
    else:
        return ()

    finding = Finding(
        cause=Cause.NSIGHT_WRONG_PYTHON,
        ranks=(),
        summary=f"workers do not start under nsys: {what}, and Ray's nsight "
        "plugin takes it in place of the worker's own",
        confidence="certain" if "late" in first else "likely",
        remedy=_REMEDY,
        evidence=tuple(_evidence(line) for line in first.values()),
    )
    return (finding,)


def _evidence(line: LogLine) -> Evidence:
    return Evidence(
        kind="log",
        source=line.source,
        location=f"line {line.number}",
        quote=clean(line.text),
    )
