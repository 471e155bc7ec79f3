"""
Which processes are in a text, whatever tools wrote it?

The text may be a log with other things in it, hold several processes, and the
output of several tools.
"""

from __future__ import annotations

import html
import re
import sys

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import attrs

from ..._text import without_controls
from ..jobs import join_processes
from ..model import ProcessStacks, ThreadStack
from . import faulthandler, gdb, pyspy, pystack, trace
from .cuda import parse_kernels
from .faulthandler import interrupted_threads
from .gdb import is_row, row_of, shorten
from .headings import Heading, coordinates_of, heading_of


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


# The number of a process that no line tells.
UNKNOWN = -1

_FORMATS: dict[str, Any] = {
    "py-spy": pyspy,
    "gdb": gdb,
    "pystack": pystack,
    "faulthandler": faulthandler,
    "traceback": trace,
}
_HEADER_STARTS = (
    "Thread",
    "Trace",
    "Current",
    "[Swi",
    "TID",
    "Stack",
    "The ",
    "~~",
)
_GPU = re.compile(r"\bCUDA\b|\bKernel\b|<<<\(|\s0x[0-9a-f]+ +\(\d+,")

# How many lines may stand between what may be a heading, and its stack.
_PATIENCE = 3

Block = tuple[Any, list[str]]  # a header, and the lines below


@attrs.define
class _Draft:
    """
    A process that is being read.
    """

    tool: str = ""
    pid: int = UNKNOWN
    command: str = ""
    heading: Heading = attrs.field(factory=Heading)
    blocks: list[Block] = attrs.field(factory=list)
    gpu: list[str] = attrs.field(factory=list)
    on_gpu: bool = False
    patience: int = sys.maxsize
    seen: set[tuple[str, str]] = attrs.field(factory=set)


def parse_text(text: str) -> tuple[ProcessStacks, ...]:
    """
    Which processes are in this text?

    Args:
        text: What py-spy, gdb, cuda-gdb, pystack, or faulthandler wrote, alone
            or among other things.

    Returns:
        Every process once.  Its number is :data:`UNKNOWN` if nothing tells it.
    """
    # Two containers may have a process of the same number.
    found = [
        process
        for stream in split_streams(text)
        for process in join_processes(_processes(stream))
    ]
    filled = [p for p in found if p.threads or p.kernels]
    return tuple(filled or found)


def parse_interrupted(text: str) -> tuple[ProcessStacks, ...]:
    """
    Which processes in this text were interrupted while they waited?

    Args:
        text: A log.

    Returns:
        A process for each traceback that says so; of a rank, the first.
    """
    found: list[ProcessStacks] = []
    for stream in split_streams(text):
        is_one = stream.rank is not None or stream.pid is not None
        threads = interrupted_threads(stream.lines)
        found += (
            ProcessStacks(
                pid=UNKNOWN if stream.pid is None else stream.pid,
                source="",
                threads=(thread,),
                rank=stream.rank,
                host=stream.host,
            )
            for thread in islice(threads, 1 if is_one else None)
        )
    return tuple(found)


def _processes(stream: Stream) -> Iterator[ProcessStacks]:
    drafts = _drafts(stream.lines)
    built = [p for d in drafts if _is_worth(d, p := _build(d))]
    pids = {process.pid for process in built}
    # A task of Slurm is a rank if it is one process.
    rank = stream.rank
    if rank is None and len(pids) == 1:
        rank = stream.task
    for process in built:
        is_first = process.pid == built[0].pid
        yield attrs.evolve(
            process,
            pid=(
                stream.pid
                if process.pid == UNKNOWN and stream.pid is not None
                else process.pid
            ),
            rank=(rank if process.rank is None and is_first else process.rank),
            host=process.host or stream.host,
            coordinates=process.coordinates
            or coordinates_of(f"x::{stream.name}"),
        )


def _is_worth(draft: _Draft, process: ProcessStacks) -> bool:
    # What py-spy calls a process is one, also without threads.
    is_named = draft.tool == "py-spy"
    return bool(process.threads or process.kernels or is_named)


def _drafts(lines: Iterable[str]) -> list[_Draft]:
    """
    Cut the lines into processes, and those into threads.
    """
    drafts = [_Draft()]
    for line in lines:
        tool, match = _header(line)
        if tool:
            if not _continues(drafts[-1], tool, match):
                drafts.append(_successor(drafts[-1], tool))
            drafts[-1].tool = tool
            drafts[-1].seen |= _marks(tool, match)
            drafts[-1].on_gpu = False
            drafts[-1].blocks.append((match, []))
        elif drafts[-1].on_gpu and _is_frame(line):
            drafts[-1].gpu.append(line)
        elif _is_bare(line, drafts[-1]):
            if drafts[-1].tool not in {"", "gdb"}:
                drafts.append(_successor(drafts[-1], "gdb"))
            drafts[-1].tool = "gdb"
            drafts[-1].blocks.append((None, [line]))
        elif not _is_statement(line, drafts):
            _add(line, drafts[-1])
        if _GPU.search(line):
            drafts[-1].gpu.append(line)
            drafts[-1].on_gpu |= gdb.looks_at_gpu(line)
    return drafts


def _add(line: str, draft: _Draft) -> None:
    if draft.blocks:
        draft.blocks[-1][1].append(line)
    elif draft.patience:
        draft.patience -= bool(line.strip())
    else:
        known = draft.heading
        draft.heading = Heading(pid=known.pid, host=known.host)


def _header(line: str) -> tuple[str, Any]:
    text = line.lstrip()
    if text.startswith(_HEADER_STARTS) or row_of(text):
        for tool, module in _FORMATS.items():
            if (match := module.header_of(line)) is not None:
                return tool, match
    return "", None


def _is_bare(line: str, draft: _Draft) -> bool:
    """
    Whether a stack of gdb begins without saying whose it is.
    """
    if not line.lstrip().startswith(("#0 ", gdb.PY_BT)):
        return False
    if draft.tool != "gdb" or not draft.blocks:
        return True
    header, lines = draft.blocks[-1]
    if is_row(header):
        return True
    if line.strip() == gdb.PY_BT:
        return header is None and any(x.strip() == gdb.PY_BT for x in lines)
    return header is None and sum(map(_is_frame, lines)) > 1


def _is_frame(line: str) -> bool:
    return gdb.FRAME.match(line.lstrip()) is not None


def _is_statement(line: str, drafts: list[_Draft]) -> bool:
    """
    Whether a line tells of a process; what it tells is kept.
    """
    draft = drafts[-1]
    if match := pyspy.PROCESS.match(line):
        drafts.append(
            _Draft(
                tool="py-spy",
                pid=int(match["pid"]),
                command=match["command"],
                heading=Heading() if draft.blocks else draft.heading,
            )
        )
    elif (pid := gdb.process_id(line)) is not None:
        if draft.tool in {"", "gdb"} and draft.pid in {UNKNOWN, pid}:
            draft.pid = pid
        else:
            drafts.append(_Draft(tool="gdb", pid=pid))
    elif faulthandler.begins_dump(line):
        if draft.blocks:
            drafts.append(_Draft(tool="faulthandler"))
    elif (
        # What stands deeper is a frame, or belongs to one.
        not line.startswith("    ")
        and (heading := heading_of(line)) is not None
    ):
        if draft.blocks:
            drafts.append(_Draft(heading=heading))
        else:
            draft.heading = _both(draft.heading, heading)
        text = line.strip()
        if text[0].isalnum() and text[-1] != ":" and not drafts[-1].tool:
            drafts[-1].patience = _PATIENCE
    else:
        return False
    return True


def _both(older: Heading, newer: Heading) -> Heading:
    known = attrs.asdict(newer)
    return attrs.evolve(
        older, **{k: v for k, v in known.items() if v is not None and v != ()}
    )


def _successor(draft: _Draft, tool: str) -> _Draft:
    # Two tools may have looked at what one heading announced.
    if draft.tool != tool and draft.heading != Heading():
        return _Draft(pid=draft.pid, heading=draft.heading)
    return _Draft()


def _continues(draft: _Draft, tool: str, match: Any) -> bool:
    """
    Whether a thread with this header belongs to the process before it.
    """
    if not draft.blocks:
        return draft.tool in {"", tool}
    if draft.tool != tool or draft.seen & _marks(tool, match):
        return False
    if is_row(match) and ("lwp", match["row_lwp"]) in draft.seen:
        return True

    if tool == "gdb":
        # It counts down to 1.
        last = draft.blocks[-1][0]
        return len(draft.seen) < 4 or (
            last is None or last.groupdict().get("number") != "1"
        )
    if tool in {"py-spy", "traceback"}:
        return True

    # Both write the main thread last, the one in which the program begins.
    lines = [x for x in draft.blocks[-1][1] if "File " in x]
    outermost = lines[0 if tool == "pystack" else -1] if lines else ""
    return not outermost.rstrip().endswith("in <module>")


def _marks(tool: str, match: Any) -> set[tuple[str, str]]:
    """
    What only one thread of a process has.
    """
    groups = match.groupdict()
    marks = {
        (key, groups[key])
        for key in ("id", "empty", "lwp", "number", "row")
        if groups.get(key)
    }
    if tool in {"py-spy", "traceback"} and groups["name"] == "MainThread":
        marks.add(("name", "MainThread"))
    return marks


def _build(draft: _Draft) -> ProcessStacks:
    heading = draft.heading
    pid = draft.pid
    if pid == UNKNOWN and heading.pid is not None:
        pid = heading.pid
    threads = tuple(_threads(draft, pid))
    if pid == UNKNOWN and draft.tool in {"gdb", "pystack", "py-spy"}:
        pid = _pid_of_main(threads)
    if pid in {thread.thread_id for thread in threads}:
        threads = tuple(
            attrs.evolve(t, is_main=t.thread_id == pid) for t in threads
        )
    return ProcessStacks(
        pid=pid,
        source="",
        threads=threads,
        command=draft.command,
        rank=heading.rank,
        world_size=heading.world_size,
        host=heading.host,
        coordinates=heading.coordinates or coordinates_of(draft.command),
        kernels=parse_kernels("\n".join(draft.gpu)) if draft.gpu else (),
    )


def _threads(draft: _Draft, pid: int) -> Iterable[ThreadStack]:
    if draft.tool == "py-spy":
        return [pyspy.read_thread(h, lines, pid) for h, lines in draft.blocks]
    if draft.tool == "gdb":
        return gdb.read_threads(draft.blocks)
    if draft.tool in {"pystack", "traceback"}:
        read = _FORMATS[draft.tool].read_thread
        return [read(header, lines) for header, lines in draft.blocks]
    return faulthandler.mark_main(
        [faulthandler.read_thread(h, lines) for h, lines in draft.blocks]
    )


def _pid_of_main(threads: Iterable[ThreadStack]) -> int:
    """
    The main thread has the number of its process, if it is one of the kernel.
    """
    known = (t.thread_id for t in threads if t.is_main)
    number = next(known, None)
    return UNKNOWN if number is None or number >= 1 << 31 else number
