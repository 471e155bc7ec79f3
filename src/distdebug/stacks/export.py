"""
Export stacks as JSON, text, collapsed stacks, or speedscope profiles.
"""

from __future__ import annotations

import json

from collections.abc import Collection, Iterator
from typing import Any

import attrs

from .._text import clean
from .formats.frames import is_native_location
from .merge import StackTree
from .model import ProcessStacks, StackFrame, ThreadActivity, ThreadStack


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MOST_NAME = 400


def to_collapsed(tree: StackTree, *, who: bool = False) -> str:
    """
    Convert merged stacks to collapsed stacks, the input of flame graphs.

    Args:
        who: Whether each stack begins with its processes, such as
            ``"ranks 0-2,4"``, so that they stay apart in the graph.

    Returns:
        One line per stack, with its frames, outermost first and separated by
        semicolons, and the number of processes.
    """
    lines = []
    for stack, ends in tree.stacks():
        names = [tree.who(ends)] if who else []
        names += map(str, reversed(stack))
        text = ";".join(map(_escape_collapsed, names))
        lines.append(f"{text} {len(set(ends))}\n")
    return "".join(sorted(lines))


def _escape_collapsed(name: str) -> str:
    # A semicolon would end the frame.
    return clean(name, limit=_MOST_NAME).replace(";", ",") or "?"


def to_speedscope(tree: StackTree, *, name: str = "stacks") -> str:
    """
    Convert merged stacks to a file of speedscope.

    Args:
        name: A title.

    Returns:
        JSON with one profile of all stacks, and one per node at which a stack
        ends, named after its processes.  A weight is a number of processes.
    """
    shared: dict[StackFrame, int] = {}
    found = []
    for stack, ends in tree.stacks():
        sample = [shared.setdefault(f, len(shared)) for f in reversed(stack)]
        found.append((len(set(ends)), sample, tree.who(ends)))
    found.sort(key=lambda part: -part[0])
    whole = _speedscope_profile(
        "all", [sample for _, sample, _ in found], [n for n, *_ in found]
    )
    parts = [_speedscope_profile(who, [s], [n]) for n, s, who in found]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "name": clean(name),
            "exporter": "distdebug",
            "activeProfileIndex": 0,
            "shared": {
                "frames": [_speedscope_frame(frame) for frame in shared]
            },
            "profiles": [whole, *parts],
        }
    )


def _speedscope_profile(
    name: str, samples: list[list[int]], weights: list[int]
) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": clean(name),
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _speedscope_frame(frame: StackFrame) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": clean(frame.name, limit=_MOST_NAME)}
    if frame.filename:
        shown["file"] = clean(frame.filename, limit=_MOST_NAME)
    if frame.line:
        shown["line"] = frame.line
    return shown


# Attributes that stand where py-spy has them; all others are added.
_OF_PROCESS = frozenset({"pid", "source", "threads", "command", "parent_pid"})
_OF_THREAD = frozenset(
    {"name", "frames", "thread_id", "is_main", "active", "owns_gil"}
)


def stacks_to_json(process: ProcessStacks) -> str:
    """
    Convert a process to the JSON of ``py-spy dump --json``, with more fields.

    :func:`~distdebug.stacks.parse.parse_stacks` reads it back.
    """
    # A process without threads still has a state, which needs an entry.
    threads = process.threads or (ThreadStack(name="", frames=()),)
    parent = process.parent_pid
    info = {
        "pid": process.pid,
        "command_line": process.command,
        "parent": None if parent is None else {"pid": parent},
    }
    data = [
        {**_thread_to_json(process.pid, thread), "process_info": info}
        for thread in threads
    ]
    more = {} if process.threads else {"threads": 0}
    known = _added(process, _OF_PROCESS)
    data[0]["process_info"] = {**info, **known, **more}
    return json.dumps(data, indent=1, default=_plain)


def _plain(value: Any) -> dict[str, Any]:
    is_frame = isinstance(value, StackFrame)
    return _frame_to_json(value) if is_frame else attrs.asdict(value)


def _thread_to_json(pid: int, thread: ThreadStack) -> dict[str, Any]:
    return {
        "pid": pid,
        "thread_id": thread.thread_id or 0,
        "thread_name": thread.name or None,
        "os_thread_id": thread.thread_id,
        "active": thread.active,
        "owns_gil": thread.owns_gil,
        "frames": thread.frames,
        "is_main": thread.is_main,
        **_added(thread, _OF_THREAD),
    }


def _added(item: Any, without: Collection[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in attrs.asdict(item, recurse=False).items()
        if name not in without and value is not None and value not in ("", ())
    }


def _frame_to_json(frame: StackFrame) -> dict[str, Any]:
    name, filename, line = frame.name, frame.filename, frame.line
    data = {"name": name, "filename": filename, "line": line}
    if frame.is_native != is_native_location(filename, line):
        data["is_native"] = frame.is_native
    if frame.code:
        data["code"] = frame.code
    return data


def stacks_to_text(process: ProcessStacks) -> str:
    """
    Convert a process to the text of ``py-spy dump``, with more details.

    :func:`~distdebug.stacks.parse.parse_stacks` reads it back.
    """
    lines = [f"Process {process.pid}: {_escape_line(process.command)}"]
    lines += _heading_lines(process)
    lines.append("")
    for thread in process.threads:
        lines.append(_thread_line(thread))
        lines += (f"    {_escape_line(str(frame))}" for frame in thread.frames)
        lines += (
            f"        {_escape_line(line)}" for line in _detail_lines(thread)
        )
    return "\n".join(lines) + "\n"


def _heading_lines(process: ProcessStacks) -> Iterator[str]:
    if process.rank is not None:
        size = process.world_size
        yield f"Rank {process.rank}" + (f" of {size}" if size else "")
    if process.coordinates:
        yield ", ".join(
            f"{_escape_line(name).upper()}={at}"
            for name, at in process.coordinates
        )
    if process.role or process.state:
        role = _escape_line(process.role or "process")
        state = (
            f", state {_escape_line(process.state)}" if process.state else ""
        )
        yield f"# {role}{state}"
    if process.tracer_pid:
        yield f"# traced by {process.tracer_pid}"
    for kernel in process.kernels:
        where = "" if kernel.device is None else f" on device {kernel.device}"
        yield f"Kernel 0: {_escape_line(kernel.name)}{where}"


def _thread_line(thread: ThreadStack) -> str:
    state = "active" if thread.active else "idle"
    gil = "+gil" if thread.owns_gil else ""
    name = f': "{_escape_line(thread.name)}"' if thread.name else ""
    return f"Thread {thread.thread_id or 0} ({state}{gil}){name}"


def _detail_lines(thread: ThreadStack) -> Iterator[str]:
    """
    Yield details, indented like variables, so that other parsers skip them.
    """
    if thread.waits_for_gil:
        yield "waits for the GIL"
    if thread.state:
        yield f"state: {thread.state}"
    if thread.system_call:
        yield f"system call: {thread.system_call}"
    if thread.activity:
        yield f"activity: {_activity_text(thread.activity)}"
    if thread.idle_s is not None:
        yield f"last ran: {thread.idle_s:.1f} s ago"
    if thread.native:
        yield "native:"
        yield from (f"    {frame}" for frame in thread.native)


def _activity_text(activity: ThreadActivity) -> str:
    moves = {None: "", True: ", another line", False: ", same lines"}
    moved = moves[activity.has_moved]
    values = ", new values" if activity.has_new_values else ""
    return (
        f"in {activity.seconds:.1f} s waited {activity.voluntary} times, "
        f"ran {activity.cpu_s:.2f} s{moved}{values}"
    )


def _escape_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
