"""
What is left of a pasted log, without what others wrote before each line?

Collectors of logs put the rank, the process, the container, or the time before
each line, and mix the lines of many processes.  The lines of each source are
put together again, and what the collector knew about the source is kept.
"""

from __future__ import annotations

import html
import re

from collections import Counter
from collections.abc import Iterator

import attrs

from ..._text import without_controls
from .calls import shorten


__all__ = ["Stream", "split_streams"]

_MOST_PREFIXES = 8
_MOST_PREFIX = 400

_MARKUP = re.compile(r"&(?:lt|gt|amp|quot|#\d{1,6}|#x[0-9a-fA-F]{1,6});")
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_REPEATED = re.compile(r" \[repeated \d{1,9}x across cluster\].{0,200}$")

# What a collector writes before a line, and what that tells.  Each takes one
# blank after it, since those that follow are of the line itself.
_PREFIXES = (
    re.compile(r"> ?"),
    # what was typed to get the first frame
    re.compile(r"\((?:cuda-)?gdb\) .{0,80}?(?=#0 )"),
    # torch, and whoever follows it
    re.compile(r"\[[Rr]ank[ :]?(?P<rank>\d{1,7})\]:? ?"),
    re.compile(r"[Rr]ank[ _]?(?P<rank>\d{1,7})(?:: | \| )(?=.*\S)"),
    # Ray, and vLLM
    re.compile(
        r"\((?P<actor>[A-Za-z_]\w{0,99})"
        r"(?: rank=(?P<rank>\d{1,7}))? pid=(?P<pid>\d{1,10})"
        r"(?:, ip=(?P<host>[\w.:-]{1,99}))?\) ?"
    ),
    # torchrun
    re.compile(r"\[(?P<other>[A-Za-z_]{1,99}\|?\d{1,6})\]: ?"),
    # Open MPI
    re.compile(r"\[\d{1,9},(?P<rank>\d{1,7})\]<std(?:out|err)>: ?"),
    # Docker, Kubernetes
    re.compile(r"(?P<other>[\w.-]{1,99}) {1,40}\| ?"),
    re.compile(r"\[(?P<other>pod/[\w./-]{1,300})\] ?"),
    # Slurm
    re.compile(r" {0,6}(?P<task>\d{1,7}): "),
    # pdsh
    re.compile(
        r"(?P<host>[A-Za-z][\w.-]{0,99}): "
        r"(?=Process \d|Thread |Traceback for | {4}\S|#\d|  File )"
    ),
    # the time, with what SGLang and vLLM put there
    re.compile(
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
        r"(?:Z|[+-]\d\d:?\d\d)?(?: [A-Z]{2,3}\d{1,5}){0,6}\]? ?"
    ),
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? "),
    re.compile(
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
        r"(?:\[[\w/.]{1,200}:\d{1,9}\] )?"
    ),
)


@attrs.frozen
class Stream:
    """
    The lines of one source.

    Attributes:
        lines: Its lines, without what the collector put before them.

        rank: The rank that the collector named, if it did.

        pid: The process that it named, if it did.

        host: The node that it named, if it did.

        name: What else it named, such as ``"Worker_TP0"``.

        task: The number of the task in Slurm, which is a rank if there is one
            task per rank.
    """

    lines: tuple[str, ...]
    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    name: str = ""
    task: int | None = None


Label = tuple[int | None, int | None, str | None, str, int | None]


def split_streams(text: str) -> tuple[Stream, ...]:
    """
    Which sources wrote this text, and what did each write?

    Args:
        text: Any text: what a tool printed, a log, or a page.

    Returns:
        The sources, in the order of their first lines; those without a name
        are one.
    """
    found: dict[Label, list[str]] = {}
    for label, line in _labelled(text):
        found.setdefault(label, []).append(line)

    return tuple(
        Stream(
            tuple(lines), rank=rank, pid=pid, host=host, name=name, task=task
        )
        for (rank, pid, host, name, task), lines in found.items()
    )


def _labelled(text: str) -> Iterator[tuple[Label, str]]:
    if _MARKUP.search(text):
        text = html.unescape(text)
    lines = [
        _REPEATED.sub("", shorten(line))
        for line in _LINE_ENDS.split(without_controls(text))
    ]
    tasks = _tasks(lines)
    for line in lines:
        if line and not line.startswith("```"):
            yield _peel(line, tasks)


def _tasks(lines: list[str]) -> frozenset[str]:
    """
    The numbers before lines that are those of tasks, and not of lines.
    """
    slurm = next(p for p in _PREFIXES if "task" in p.groupindex)
    seen = Counter(m["task"] for x in lines if (m := slurm.match(x)))
    return frozenset(task for task, count in seen.items() if count > 1)


def _peel(line: str, tasks: frozenset[str]) -> tuple[Label, str]:
    known: dict[str, str] = {}
    for _ in range(_MOST_PREFIXES):
        match = _prefix(line, tasks)
        if match is None:
            break
        known |= {k: v for k, v in match.groupdict().items() if v}
        line = line[match.end() :]

    name = known.get("actor") or known.get("other") or ""
    rank, pid, task = (
        int(known[key]) if key in known else None
        for key in ("rank", "pid", "task")
    )
    return (rank, pid, known.get("host"), name, task), line


def _prefix(line: str, tasks: frozenset[str]) -> re.Match[str] | None:
    # Almost all lines are frames, and begin with blanks.
    if line.startswith("    ") and not line[:12].lstrip()[:1].isdigit():
        return None

    head = line[:_MOST_PREFIX]
    for prefix in _PREFIXES:
        match = prefix.match(head)
        is_number = "task" in prefix.groupindex
        if match and match.end() and (not is_number or match["task"] in tasks):
            return match

    return None
