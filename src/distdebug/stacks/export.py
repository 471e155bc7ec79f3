"""
Which branches does a tree of stacks have?

What nobody parts from is one branch, with the ranks that went there.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from .._text import clean
from .formats.gdb import looks_native
from .merge import StackTree
from .model import ProcessStacks, StackFrame, ThreadActivity, ThreadStack


if TYPE_CHECKING:
    from .merge import StackTree

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MOST_NAME = 400


def to_collapsed(tree: StackTree, *, who: bool = False) -> str:
    """
    How do merged stacks look to a program that draws flame graphs?

    Args:
        tree: The merged stacks.

        who: Whether each stack begins with its processes, such as
            ``"ranks 0-2,4"``, so that they stay apart in the picture.

    Returns:
        One line per stack, with its frames, outermost first, between
        semicolons, and how many processes are there.
    """
    lines = []
    for node, ends in enumerate(tree.ends):
        if ends:
            names = [_escaped(str(f)) for f in reversed(tree.stack(node))]
            if who:
                names.insert(0, _escaped(tree.who(ends)))
            lines.append(f"{';'.join(names)} {len(set(ends))}\n")
    return "".join(sorted(lines))


def _escaped(name: str) -> str:
    # A blank followed by a number would end the line, a semicolon the frame.
    return clean(name, limit=_MOST_NAME).replace(";", ",") or "?"


def to_speedscope(tree: StackTree, *, name: str = "stacks") -> str:
    """
    How do merged stacks look to speedscope?

    Args:
        tree: The merged stacks.

        name: A title.

    Returns:
        JSON with one profile of all stacks, and one per place at which a
        stack ends, named after its processes.  A weight is a number of
        processes.
    """
    shared: dict[StackFrame, int] = {}
    stacks = []
    for node, ends in enumerate(tree.ends):
        if ends:
            frames = reversed(tree.stack(node))
            sample = [shared.setdefault(f, len(shared)) for f in frames]
            stacks.append((tree.who(ends), sample, len(set(ends))))
    stacks.sort(key=lambda stack: -stack[2])

    whole = _profile(
        "all", [s for _, s, _ in stacks], [count for _, _, count in stacks]
    )
    parts = [_profile(who, [stack], [count]) for who, stack, count in stacks]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "name": clean(name),
            "exporter": "distdebug",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(frame) for frame in shared]},
            "profiles": [whole, *parts],
        }
    )


def _profile(
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


def _frame(frame: StackFrame) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": clean(frame.name, limit=_MOST_NAME)}
    if frame.filename:
        shown["file"] = clean(frame.filename, limit=_MOST_NAME)
    if frame.line:
        shown["line"] = frame.line
    return shown


def stacks_to_json(process: ProcessStacks) -> str:
    """
    Write a process as ``py-spy dump --json`` does, with what else is known.

    Args:
        process: The process.

    Returns:
        The JSON; :func:`~distdebug.stacks.parse.parse_stacks` reads it.
    """
    # A process without threads still has a state.
    threads = process.threads or (ThreadStack(name="", frames=()),)
    data = [_thread(process.pid, thread) for thread in threads]
    parent = process.parent_pid
    info = {
        "pid": process.pid,
        "command_line": process.command,
        "parent": None if parent is None else {"pid": parent},
    }
    for thread in data:
        thread["process_info"] = info
    data[0]["process_info"] = {**info, **_more_of_process(process)}
    return json.dumps(data, indent=1)


def _more_of_process(process: ProcessStacks) -> dict[str, Any]:
    more = {
        "rank": process.rank,
        "world_size": process.world_size,
        "job": process.job,
        "coordinates": process.coordinates,
        "role": process.role,
        "host": process.host,
        "state": process.state,
        "tracer_pid": process.tracer_pid,
        "kernels": [attrs.asdict(kernel) for kernel in process.kernels],
        "taken": process.taken,
    }
    known = {key: value for key, value in more.items() if _is_known(value)}
    return known if process.threads else {**known, "threads": 0}


def _thread(pid: int, thread: ThreadStack) -> dict[str, Any]:
    call, activity = thread.system_call, thread.activity
    more = {
        "waits_for_gil": thread.waits_for_gil,
        "native": _frames(thread.native),
        "state": thread.state,
        "system_call": None if call is None else attrs.asdict(call),
        "activity": None if activity is None else attrs.asdict(activity),
        "idle_s": thread.idle_s,
    }
    return {
        "pid": pid,
        "thread_id": thread.thread_id or 0,
        "thread_name": thread.name or None,
        "os_thread_id": thread.thread_id,
        "active": thread.active,
        "owns_gil": thread.owns_gil,
        "frames": _frames(thread.frames),
        "is_main": thread.is_main,
        **{key: value for key, value in more.items() if _is_known(value)},
    }


def _is_known(value: Any) -> bool:
    return value is not None and value not in ("", (), [])


def _frames(frames: Iterable[StackFrame]) -> list[dict[str, Any]]:
    return [_write_frame(frame) for frame in frames]


def _write_frame(frame: StackFrame) -> dict[str, Any]:
    name, filename, line = frame.name, frame.filename, frame.line
    data = {"name": name, "filename": filename, "line": line}
    if frame.is_native != looks_native(filename, line):
        data["is_native"] = frame.is_native
    if frame.code:
        data["code"] = frame.code
    return data


def stacks_to_text(process: ProcessStacks) -> str:
    """
    Write a process as ``py-spy dump`` does, with what else is known.

    Args:
        process: The process.

    Returns:
        The text; :func:`~distdebug.stacks.parse.parse_stacks` reads it.
    """
    lines = [f"Process {process.pid}: {_one_line(process.command)}"]
    lines += _headings(process)
    lines.append("")
    for thread in process.threads:
        lines.append(_thread_title(thread))
        lines += (f"    {_one_line(str(frame))}" for frame in thread.frames)
        lines += (f"        {_one_line(line)}" for line in _details(thread))
    return "\n".join(lines) + "\n"


def _headings(process: ProcessStacks) -> Iterator[str]:
    if process.rank is not None:
        size = process.world_size
        yield f"Rank {process.rank}" + (f" of {size}" if size else "")
    if process.coordinates:
        yield ", ".join(
            f"{_one_line(name).upper()}={at}"
            for name, at in process.coordinates
        )
    if process.role or process.state:
        role = _one_line(process.role or "process")
        state = f", state {_one_line(process.state)}" if process.state else ""
        yield f"# {role}{state}"
    if process.tracer_pid:
        yield f"# traced by {process.tracer_pid}"
    for kernel in process.kernels:
        where = "" if kernel.device is None else f" on device {kernel.device}"
        yield f"Kernel 0: {_one_line(kernel.name)}{where}"


def _thread_title(thread: ThreadStack) -> str:
    state = "active" if thread.active else "idle"
    gil = "+gil" if thread.owns_gil else ""
    name = f': "{_one_line(thread.name)}"' if thread.name else ""
    return f"Thread {thread.thread_id or 0} ({state}{gil}){name}"


def _details(thread: ThreadStack) -> Iterator[str]:
    """
    What stands deeper than frames, as variables do, so that others skip it.
    """
    if thread.waits_for_gil:
        yield "waits for the GIL"
    if thread.state:
        yield f"state: {thread.state}"
    if thread.system_call:
        yield f"system call: {thread.system_call}"
    if thread.activity:
        yield f"activity: {_activity(thread.activity)}"
    if thread.idle_s is not None:
        yield f"last ran: {thread.idle_s:.1f} s ago"
    if thread.native:
        yield "native:"
        yield from (f"    {frame}" for frame in thread.native)


def _activity(activity: ThreadActivity) -> str:
    moved = (
        ""
        if activity.has_moved is None
        else (", another line" if activity.has_moved else ", same lines")
    )
    values = ", new values" if activity.has_new_values else ""
    return (
        f"in {activity.seconds:.1f} s waited {activity.voluntary} times, "
        f"ran {activity.cpu_s:.2f} s{moved}{values}"
    )


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
