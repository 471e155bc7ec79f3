"""
What did ``py-spy dump`` write as text?
"""

from __future__ import annotations

import json
import math
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..model import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    wants_gil,
)
from .gdb import (
    MOST_CODE,
    MOST_FRAMES,
    MOST_NAME,
    make_frame,
    shorten,
    split_brackets,
)
from .headings import coordinates_of


PROCESS = re.compile(r"Process (?P<pid>\d{1,10}): (?P<command>.*)")

# People leave out numbers, and write beside a line what they make of it.
_REMARK = r"\s{1,400}(?:<-|\u2190|\u27f5|#|//|--)(?:\s.*|-.*)?"
_HEADER = re.compile(
    r"Thread (?:(?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,19}) )?"
    r"\((?P<state>active|idle)(?P<gil>\+gil)?\)"
    rf'(?:: "(?P<name>.*?)")?(?:{_REMARK})?'
)
_REMARKED = re.compile(rf"(?<=\)){_REMARK}$")
_PLACE = re.compile(r"(?P<file>.*?)(?::(?P<line>\d{1,9}))?")
# As the documentation of others abbreviates it.
_SHORT_FRAME = re.compile(
    r"(?P<file>\S+\.py):(?P<line>\d{1,9}) (?P<name>\S.*)"
)
_MOST_HEADER = 4096


def header_of(line: str) -> re.Match[str] | None:
    """
    Does this line begin the stack of a thread?

    Args:
        line: One line of the output.

    Returns:
        What to give to :func:`read_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.startswith("Thread "):
        return None
    return _HEADER.fullmatch(text)


def read_thread(
    match: re.Match[str], lines: Iterable[str], pid: int | None = None
) -> ThreadStack:
    """
    What is this thread doing?

    Args:
        match: What *header_of* returned.

        lines: The lines that follow.

        pid: Its process, if known.

    Returns:
        The thread.
    """
    name = match["name"] or ""
    number = int(match["id"], 0) if match["id"] else None
    frames = tuple(_text_frames(lines))
    active = match["state"] == "active"
    return ThreadStack(
        name=name,
        thread_id=number,
        frames=frames,
        is_main=name == "MainThread" or (number is not None and number == pid),
        active=active,
        # It is not shown for a thread that is idle.
        owns_gil=bool(match["gil"]) or (False if active else None),
        waits_for_gil=wants_gil(frames),
    )


def _text_frames(lines: Iterable[str]) -> Iterator[StackFrame]:
    indent = None
    for line in lines:
        text = shorten(line).strip()
        depth = len(line) - len(line.lstrip())
        # Variables stand deeper than the frame that they belong to, and what
        # others wrote in between stands at the left.
        if not text or (indent is not None and depth != indent):
            continue
        if frame := _text_frame(text):
            indent = depth
            yield frame


def _text_frame(text: str) -> StackFrame | None:
    text = _REMARKED.sub("", text, count=1)
    found = split_brackets(text)
    if found is None:
        if match := _SHORT_FRAME.fullmatch(text):
            return make_frame(match["name"], match["file"], int(match["line"]))
        return None

    name, place = found
    match = _PLACE.fullmatch(place)
    if not name or not place or match is None:
        return None
    return make_frame(name, match["file"], int(match["line"] or 0))


# A line on which a list of threads begins.
_BEGIN = re.compile(r"^\[\s*\{", re.MULTILINE)
_DECODER = json.JSONDecoder()
_MOST_RANKS = 1 << 31  # more than any job will have
_MOST_NUMBER = 1 << 64  # thread ids are unsigned

# What comes of taking a document for something that it is not.
_MALFORMED = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


def parse_json(text: str) -> tuple[ProcessStacks, ...]:
    """
    Which processes are in this JSON?

    Args:
        text: What py-spy or :func:`~distdebug.stacks.export.stacks_to_json`
            wrote; several documents may follow each other.

    Returns:
        Every process.

    Raises:
        ValueError: It is something else.
    """
    try:
        by_pid: dict[object, list[Any]] = {}
        for document in _documents(text):
            for key, data in _by_process(document):
                by_pid.setdefault(key, []).append(data)
        return tuple(map(_process, by_pid.values()))
    except _MALFORMED as exc:
        msg = f"not what py-spy writes: {type(exc).__name__}: {exc}"
        raise ValueError(msg) from None


def _documents(text: str) -> Iterator[Any]:
    start = _BEGIN.search(text)
    if start is None:
        yield json.loads(text)
    while start is not None:
        data, end = _DECODER.raw_decode(text, start.start())
        yield data
        start = _BEGIN.search(text, end)


def _by_process(
    document: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """
    The threads of a document, with what tells their processes apart.

    Numbers occur again in other containers; what was written of a process
    may stand at one thread only, and then holds for all with its number.
    """
    commands: dict[int, str] = {}
    for data in document:
        if info := data.get("process_info"):
            command = str(info.get("command_line"))
            commands.setdefault(_number(data["pid"]), command)
    for data in document:
        pid = _number(data["pid"])
        if info := data.get("process_info"):
            commands[pid] = str(info.get("command_line"))
        yield (pid, commands.get(pid, "None")), data


def _process(threads: Sequence[Mapping[str, Any]]) -> ProcessStacks:
    told = (i for t in threads if (i := t.get("process_info")))
    info: Mapping[str, Any] = next(told, {})
    parent = info.get("parent") or {}
    command = str(info.get("command_line") or "")
    places = info.get("coordinates")
    return ProcessStacks(
        pid=_number(threads[0]["pid"]),
        source="",
        threads=()
        if info.get("threads") == 0
        else tuple(map(_thread, threads)),
        rank=_rank(info.get("rank")),
        world_size=_rank(info.get("world_size")),
        coordinates=coordinates_of(command)
        if places is None
        else tuple((_word(name), _number(at)) for name, at in places),
        role=_word(info.get("role")),
        job=_word(info.get("job")),
        host=_word(info.get("host")) or None,
        command=command,
        parent_pid=_number(parent["pid"]) if "pid" in parent else None,
        state=_word(info.get("state")),
        tracer_pid=_optional(info.get("tracer_pid")),
        kernels=tuple(map(_kernel, info.get("kernels") or ())),
        taken=_seconds(info.get("taken")),
    )


def _thread(data: Mapping[str, Any]) -> ThreadStack:
    name = _word(data.get("thread_name"))
    system_id = data.get("os_thread_id")
    number = data["thread_id"] if system_id is None else system_id
    frames = _frames(data["frames"])
    is_main = _truth(data.get("is_main"))
    waits = _truth(data.get("waits_for_gil"))
    if is_main is None:
        is_main = name == "MainThread" or system_id == data["pid"]
    return ThreadStack(
        name=name,
        # None has that number.
        thread_id=_number(number) or None,
        frames=frames,
        is_main=is_main,
        active=_truth(data.get("active")),
        owns_gil=_truth(data.get("owns_gil")),
        waits_for_gil=wants_gil(frames) if waits is None else waits,
        native=_frames(data.get("native") or ()),
        state=_word(data.get("state")),
        system_call=_system_call(data.get("system_call")),
        activity=_activity(data.get("activity")),
        idle_s=_seconds(data.get("idle_s")),
    )


def _frames(data: Sequence[Mapping[str, Any]]) -> tuple[StackFrame, ...]:
    return tuple(map(_frame, data[:MOST_FRAMES]))


def _frame(data: Mapping[str, Any]) -> StackFrame:
    frame = make_frame(
        str(data["name"]),
        str(data["filename"]),
        _number(data.get("line") or 0),
        is_native=_truth(data.get("is_native")),
    )
    code = _word(data.get("code"))[:MOST_CODE]
    return attrs.evolve(frame, code=code) if code else frame


def _system_call(data: Mapping[str, Any] | None) -> SystemCall | None:
    if data is None:
        return None
    return SystemCall(name=_word(data["name"]), target=_word(data["target"]))


def _activity(data: Mapping[str, Any] | None) -> ThreadActivity | None:
    if data is None:
        return None
    return ThreadActivity(
        seconds=_seconds(data["seconds"]) or 0.0,
        voluntary=_number(data["voluntary"]),
        involuntary=_number(data["involuntary"]),
        cpu_s=_seconds(data["cpu_s"]) or 0.0,
        has_moved=_truth(data.get("has_moved")),
        has_left=_truth(data.get("has_left")),
        has_new_values=_truth(data.get("has_new_values")),
        has_returned=_truth(data.get("has_returned")),
        has_let_go=_truth(data.get("has_let_go")),
    )


def _kernel(data: Mapping[str, Any]) -> GpuKernel:
    return GpuKernel(
        name=_word(data["name"]),
        device=_optional(data.get("device")),
        grid=tuple(map(_number, data.get("grid") or ())),
        block=tuple(map(_number, data.get("block") or ())),
    )


def _word(value: Any) -> str:
    # JSON may hold halves of characters, which nobody can write again.
    text = str(value or "")[:MOST_NAME]
    return text.encode(errors="replace").decode()


def _optional(value: Any) -> int | None:
    return None if value is None else _number(value)


def _rank(value: Any) -> int | None:
    number = _optional(value)
    return None if number is None or number > _MOST_RANKS else number


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_NUMBER:
        msg = f"not a number: {value!r:.40}"
        raise ValueError(msg)

    return value


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in {int, float} or not math.isfinite(value):
        msg = f"not a time: {value!r:.40}"
        raise ValueError(msg)

    return float(value)


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
