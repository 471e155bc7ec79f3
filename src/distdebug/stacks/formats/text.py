"""
Parse the stacks of all processes from text of any tool, also within logs.

The text may contain other lines, several processes, and the output of several
tools, with the prefixes of log collectors.
"""

from __future__ import annotations

import html
import re
import sys

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import attrs

from ..._lazy import late_pattern
from ..._secrets import redact
from ..._text import without_controls
from ...identity import (
    MPI_TAG,
    POD_TAG,
    RANK_TAG,
    RAY_PREFIX,
    TASK_LABEL,
    coordinates_in_title,
    rank_in_name,
)
from ..headings import Heading, parse_coordinates, parse_heading
from ..jobs import join_processes
from ..model import ProcessStacks, ThreadStack
from . import gdb, pyspy, tracebacks
from .frames import Block, MatchHeader, shorten
from .gdb import is_thread_row, match_thread_row, parse_kernels


# The pid of a process that no line names.
UNKNOWN_PID = -1

_MOST_PREFIXES = 8
_MOST_PREFIX = 400

_MARKUP = late_pattern(r"&(?:lt|gt|amp|quot|#\d{1,6}|#x[0-9a-fA-F]{1,6});")
_LINE_ENDS = late_pattern(r"\r\n|\r|\n")
_REPEATED = late_pattern(r" \[repeated \d{1,9}x across cluster\].{0,200}$")

# Its number is a line number where it does not occur again.
_TASK_LABEL = late_pattern(TASK_LABEL.replace("<rank>", "<task>"))
# Prefixes of log collectors.  Each matches at most one blank after it, because
# further blanks belong to the line itself.
_PREFIXES = (
    late_pattern(r"> ?"),
    # a command at the prompt of gdb
    late_pattern(r"\((?:cuda-)?gdb\) .{0,80}?(?=#0 )"),
    # torch, and tools with the same format
    late_pattern(rf"{RANK_TAG}:? ?"),
    late_pattern(r"[Rr]ank[ _]?(?P<rank>\d{1,7})(?:: | \| )(?=.*\S)"),
    # Ray, and vLLM
    late_pattern(RAY_PREFIX),
    # torchrun
    late_pattern(r"\[(?P<other>[A-Za-z_]{1,99}\|?\d{1,6})\]: ?"),
    late_pattern(MPI_TAG),
    # Docker, Kubernetes
    late_pattern(r"(?P<other>[\w.-]{1,99}) {1,40}\| ?"),
    late_pattern(POD_TAG),
    _TASK_LABEL,
    # pdsh
    late_pattern(
        r"(?P<host>[A-Za-z][\w.-]{0,99}): "
        r"(?=Process \d|Thread |Traceback for | {4}\S|#\d|  File )"
    ),
    # timestamps, with the additions of SGLang and vLLM
    late_pattern(
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
        r"(?:Z|[+-]\d\d:?\d\d)?(?: [A-Z]{2,3}\d{1,5}){0,6}\]? ?"
    ),
    late_pattern(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? "),
    late_pattern(
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
        r"(?:\[[\w/.]{1,200}:\d{1,9}\] )?"
    ),
)


class LineSource(NamedTuple):
    """
    What the prefixes of a log collector say of the process that wrote a line.

    Attributes:
        rank: Its rank, if any.

        pid: Its pid; :data:`UNKNOWN_PID` if there is none.

        host: Its node, if any.

        name: Another name, such as ``"Worker_TP0"``.

        task: The Slurm task number, which is the rank if there is one task per
            rank.
    """

    rank: int | None = None
    pid: int = UNKNOWN_PID
    host: str | None = None
    name: str = ""
    task: int | None = None


def split_sources(text: str) -> dict[LineSource, list[str]]:
    """
    Split a text by the processes that wrote it, and remove log prefixes.

    Args:
        text: The output of a tool, a log, or a web page.

    Returns:
        The lines by source, in the order of their first lines; those without
        a prefix are one source.
    """
    if _MARKUP.search(text):
        text = html.unescape(text)
    lines = [
        _REPEATED.sub("", shorten(line))
        for line in _LINE_ENDS.split(without_controls(text))
    ]
    counts = Counter(m["task"] for x in lines if (m := _TASK_LABEL.match(x)))
    # The number of a line, unlike that of a Slurm task, occurs once.
    tasks = {task for task, count in counts.items() if count > 1}
    found = defaultdict(list)
    for line in lines:
        if line and not line.startswith("```"):
            source, rest = _strip_prefixes(line, tasks)
            found[source].append(rest)
    return found


def _strip_prefixes(line: str, tasks: set[str]) -> tuple[LineSource, str]:
    known: dict[str, str] = {}
    for _ in range(_MOST_PREFIXES):
        match = _match_prefix(line, tasks)
        if match is None:
            break
        known |= {k: v for k, v in match.groupdict().items() if v}
        line = line[match.end() :]

    names = map(known.get, ("name", "other", "pod"))
    name = next(filter(None, names), "")
    rank, task = (
        int(known[key]) if key in known else None for key in ("rank", "task")
    )
    pid = int(known.get("pid", UNKNOWN_PID))
    if rank is None:
        rank = rank_in_name(known.get("name", ""))
    host = known.get("host") or known.get("ip")
    return LineSource(rank, pid, host, name, task), line


def _match_prefix(line: str, tasks: set[str]) -> re.Match[str] | None:
    # Almost all lines are frames, and begin with blanks.
    if line.startswith("    ") and not line[:12].lstrip()[:1].isdigit():
        return None

    head = line[:_MOST_PREFIX]
    for prefix in _PREFIXES:
        match = prefix.match(head)
        is_number = prefix is _TASK_LABEL
        if match and match.end() and (not is_number or match["task"] in tasks):
            return match

    return None


ParseThread = Callable[[re.Match[str], list[str]], ThreadStack]

# The tools whose threads begin with a header line.
_TOOLS: dict[str, tuple[MatchHeader, ParseThread | None]] = {
    "py-spy": (pyspy.match_header, pyspy.parse_thread),
    # All of its threads are parsed together.
    "gdb": (gdb.match_header, None),
    "pystack": (tracebacks.match_pystack, tracebacks.parse_pystack),
    "faulthandler": (
        tracebacks.match_faulthandler,
        tracebacks.parse_faulthandler,
    ),
    "traceback": (tracebacks.match_thread_dump, tracebacks.parse_dumped),
    "sampling": (tracebacks.match_sampling, tracebacks.parse_sampling),
}
_HEADER_STARTS = (
    *("Thread", "Trace", "Current", "[Swi", "TID", "Stack", "The ", "~~"),
    "# Thread ",
)
_GPU_LINE = late_pattern(r"\bCUDA\b|\bKernel\b|<<<\(|\s0x[0-9a-f]+ +\(\d+,")

# How many lines may separate a possible heading from its stack.
_MOST_GAP = 3


@attrs.define
class _ProcessDraft:
    """
    A process that is being read.
    """

    tool: str = ""
    pid: int = UNKNOWN_PID
    command: str = ""
    heading: Heading = attrs.field(factory=Heading)
    fatal_error: str = ""
    blocks: list[Block] = attrs.field(factory=list)
    gpu_lines: list[str] = attrs.field(factory=list)
    on_gpu: bool = False
    gap_left: int = sys.maxsize
    seen_marks: set[tuple[str, str]] = attrs.field(factory=set)


def parse_text(text: str) -> tuple[ProcessStacks, ...]:
    """
    Parse the stacks of all processes in a text.

    Args:
        text: The output of py-spy, gdb, cuda-gdb, pystack, or faulthandler,
            alone or among other lines.

    Returns:
        Every process once.  Its pid is :data:`UNKNOWN_PID` if nothing names
        it.
    """
    # Two containers may have a process with the same pid.
    found = [
        process
        for source, lines in split_sources(text).items()
        for process in join_processes(_build_processes(source, lines))
    ]
    filled = [p for p in found if p.threads or p.kernels]
    return tuple(filled or found)


def parse_interrupted(text: str) -> tuple[ProcessStacks, ...]:
    """
    Parse the tracebacks of processes that were interrupted while they waited.

    Args:
        text: A log.

    Returns:
        A process for each traceback; for a known rank or pid, only the first.
    """
    found: list[ProcessStacks] = []
    for source, lines in split_sources(text).items():
        is_one = source.rank is not None or source.pid != UNKNOWN_PID
        threads = tracebacks.find_interrupted_threads(lines)
        found += (
            ProcessStacks(
                pid=source.pid,
                threads=(thread,),
                rank=source.rank,
                host=source.host,
            )
            for thread in islice(threads, 1 if is_one else None)
        )
    return tuple(found)


def _build_processes(
    source: LineSource, lines: Iterable[str]
) -> Iterator[ProcessStacks]:
    built = [
        process
        for draft in _split_drafts(lines)
        if (process := _build_process(draft)).threads
        or process.kernels
        # py-spy prints the line of a process, even without threads.
        or draft.tool == "py-spy"
    ]
    # A Slurm task is a rank if it has one process.
    rank = source.rank
    if rank is None and len({process.pid for process in built}) == 1:
        rank = source.task
    for process in built:
        is_first = process.pid == built[0].pid
        yield attrs.evolve(
            process,
            pid=source.pid if process.pid == UNKNOWN_PID else process.pid,
            rank=rank if process.rank is None and is_first else process.rank,
            host=process.host or source.host,
            coordinates=process.coordinates
            or coordinates_in_title(source.name),
        )


def _split_drafts(lines: Iterable[str]) -> list[_ProcessDraft]:
    """
    Split the lines into processes, and these into threads.
    """
    drafts = [_ProcessDraft()]
    for line in lines:
        tool, match = _match_header(line)
        if tool:
            if not _is_same_process(drafts[-1], tool, match):
                drafts.append(_next_draft(drafts[-1], tool))
            drafts[-1].tool = tool
            drafts[-1].seen_marks |= _thread_marks(tool, match)
            drafts[-1].on_gpu = False
            drafts[-1].blocks.append((match, []))
        elif drafts[-1].on_gpu and _is_frame(line):
            drafts[-1].gpu_lines.append(line)
        elif _is_headless_stack(line, drafts[-1]):
            if drafts[-1].tool not in {"", "gdb"}:
                drafts.append(_next_draft(drafts[-1], "gdb"))
            drafts[-1].tool = "gdb"
            drafts[-1].blocks.append((None, [line]))
        elif not _read_process_line(line, drafts):
            _add_line(line, drafts[-1])
        if _GPU_LINE.search(line):
            drafts[-1].gpu_lines.append(line)
            drafts[-1].on_gpu |= gdb.is_gpu_focus(line)
    return drafts


def _add_line(line: str, draft: _ProcessDraft) -> None:
    if draft.blocks:
        draft.blocks[-1][1].append(line)
    elif draft.gap_left:
        draft.gap_left -= bool(line.strip())
    else:
        known = draft.heading
        draft.heading = Heading(pid=known.pid, host=known.host)
        draft.fatal_error = ""


def _match_header(line: str) -> tuple[str, Any]:
    text = line.lstrip()
    if text.startswith(_HEADER_STARTS) or match_thread_row(text):
        for tool, (match_header, _) in _TOOLS.items():
            if (match := match_header(line)) is not None:
                return tool, match
    return "", None


def _is_headless_stack(line: str, draft: _ProcessDraft) -> bool:
    """
    Return whether a stack of gdb begins without a thread header.
    """
    if not line.lstrip().startswith(("#0 ", gdb.PYTHON_BACKTRACE)):
        return False
    if draft.tool != "gdb" or not draft.blocks:
        return True
    header, lines = draft.blocks[-1]
    if is_thread_row(header):
        return True
    if line.strip() == gdb.PYTHON_BACKTRACE:
        return header is None and any(
            x.strip() == gdb.PYTHON_BACKTRACE for x in lines
        )
    return header is None and sum(map(_is_frame, lines)) > 1


def _is_frame(line: str) -> bool:
    return gdb.FRAME_START.match(line.lstrip()) is not None


def _read_process_line(line: str, drafts: list[_ProcessDraft]) -> bool:
    """
    Read a line that describes a process; return whether it does.
    """
    draft = drafts[-1]
    if match := pyspy.PROCESS_LINE.match(line):
        known = Heading() if draft.blocks else draft.heading
        pid, command = int(match["pid"]), match["command"]
        drafts.append(_ProcessDraft("py-spy", pid, command, known))
    elif (of_gdb := gdb.parse_process_id(line)) is not None:
        if draft.tool in {"", "gdb"} and draft.pid in {UNKNOWN_PID, of_gdb}:
            draft.pid = of_gdb
        else:
            drafts.append(_ProcessDraft("gdb", of_gdb))
    elif (error := tracebacks.parse_dump_start(line)) is not None:
        if draft.blocks:
            drafts.append(_ProcessDraft(tool="faulthandler"))
        drafts[-1].fatal_error = error
        if error:
            drafts[-1].gap_left = _MOST_GAP
    elif (
        # An indented line is a frame, or belongs to one.
        not line.startswith("    ")
        and (heading := parse_heading(line)) is not None
    ):
        if draft.blocks:
            drafts.append(_ProcessDraft(heading=heading))
        else:
            draft.heading = _merge_headings(draft.heading, heading)
        text = line.strip()
        if text[0].isalnum() and text[-1] != ":" and not drafts[-1].tool:
            drafts[-1].gap_left = _MOST_GAP
    else:
        return False
    return True


def _merge_headings(older: Heading, newer: Heading) -> Heading:
    known = attrs.asdict(
        newer, recurse=False, filter=lambda _, value: value not in {None, ()}
    )
    return attrs.evolve(older, **known)


def _next_draft(draft: _ProcessDraft, tool: str) -> _ProcessDraft:
    # Two tools may have dumped the process of one heading.
    if draft.tool != tool and draft.heading != Heading():
        return _ProcessDraft(pid=draft.pid, heading=draft.heading)
    return _ProcessDraft()


def _is_same_process(draft: _ProcessDraft, tool: str, match: Any) -> bool:
    """
    Return whether a thread with this header belongs to the last process.
    """
    if not draft.blocks:
        return draft.tool in {"", tool}
    if draft.tool != tool or draft.seen_marks & _thread_marks(tool, match):
        return False
    if is_thread_row(match) and ("lwp", match["row_lwp"]) in draft.seen_marks:
        return True

    if tool == "gdb":
        # gdb numbers threads down to 1.
        last = draft.blocks[-1][0]
        return len(draft.seen_marks) < 4 or (
            last is None or last.groupdict().get("number") != "1"
        )
    if tool in {"py-spy", "traceback", "sampling"}:
        # The last one names the process before its first thread.
        return match.groupdict().get("pid") is None

    # Both tools write the main thread last; it begins in <module>.
    lines = [x for x in draft.blocks[-1][1] if "File " in x]
    outermost = lines[0 if tool == "pystack" else -1] if lines else ""
    return not outermost.rstrip().endswith("in <module>")


def _thread_marks(tool: str, match: Any) -> set[tuple[str, str]]:
    """
    Return the marks that only one thread of a process has.
    """
    groups = match.groupdict()
    if tool == "sampling":  # the tasks of a thread have its number
        return set()
    marks = {
        (key, groups[key])
        for key in ("id", "empty", "lwp", "number", "row")
        if groups.get(key)
    }
    if tool in {"py-spy", "traceback"} and groups["name"] == "MainThread":
        marks.add(("name", "MainThread"))
    return marks


def _build_process(draft: _ProcessDraft) -> ProcessStacks:
    heading, pid = draft.heading, draft.pid
    if pid == UNKNOWN_PID and heading.pid is not None:
        pid = heading.pid
    threads = _parse_threads(draft)
    if pid == UNKNOWN_PID and draft.tool in {"gdb", "pystack", "py-spy"}:
        pid = _main_thread_pid(threads)
    first = draft.blocks[0][0] if draft.blocks else None
    if draft.tool == "sampling" and first is not None and first["pid"]:
        pid = int(first["pid"])
    if pid in {thread.thread_id for thread in threads}:
        threads = tuple(
            attrs.evolve(t, is_main=t.thread_id == pid) for t in threads
        )
    return ProcessStacks(
        pid=pid,
        threads=threads,
        command=redact(draft.command),
        rank=heading.rank,
        world_size=heading.world_size,
        host=heading.host,
        coordinates=heading.coordinates or parse_coordinates(draft.command),
        fatal_error=draft.fatal_error,
        kernels=parse_kernels("\n".join(draft.gpu_lines)),
    )


def _parse_threads(draft: _ProcessDraft) -> tuple[ThreadStack, ...]:
    _, parse = _TOOLS[draft.tool or "faulthandler"]
    if parse is None:
        return gdb.parse_threads(draft.blocks)
    threads = tuple(parse(m, lines) for m, lines in draft.blocks if m)
    is_unmarked = draft.tool == "faulthandler"
    return tracebacks.mark_main(threads) if is_unmarked else threads


def _main_thread_pid(threads: Iterable[ThreadStack]) -> int:
    """
    Return the id of the main thread, which is the pid, unless it is a pointer.
    """
    number = next((t.thread_id for t in threads if t.is_main), None)
    return UNKNOWN_PID if number is None or number >= 1 << 31 else number
