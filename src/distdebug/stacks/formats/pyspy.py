"""
Parse the text and JSON output of ``py-spy dump``.
"""

from __future__ import annotations

import json
import math
import re

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import attrs

from ..._lazy import late_pattern
from ..._secrets import redact
from ..headings import parse_coordinates
from ..model import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    is_gil_wait,
)
from .frames import (
    MOST_FRAMES,
    MOST_NAME,
    header_matcher,
    indent_of,
    make_frame,
    shorten,
    split_brackets,
    with_code,
)


PROCESS_LINE = late_pattern(r"Process (?P<pid>\d{1,10}): (?P<command>.*)")

# People omit thread ids, and add remarks to lines.
_REMARK = r"\s{1,400}(?:<-|\u2190|\u27f5|#|//|--)(?:\s.*|-.*)?"
match_header = header_matcher(
    r"Thread (?:(?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,19}) )?"
    r"\((?P<state>active|idle)(?P<gil>\+gil)?\)"
    rf'(?:: "(?P<name>.*?)")?(?:{_REMARK})?',
    4096,
)
_REMARK_END = late_pattern(rf"(?<=\)){_REMARK}$")
_LOCATION = late_pattern(r"(?P<file>.*?)(?::(?P<line>\d{1,9}))?")
# The short form of a frame in documentation.
_SHORT_FRAME = late_pattern(
    r"(?P<file>\S+\.py):(?P<line>\d{1,9}) (?P<name>\S.*)"
)


def parse_thread(match: re.Match[str], lines: list[str]) -> ThreadStack:
    """
    Parse a thread as ``py-spy dump`` prints it.
    """
    name = match["name"] or ""
    frames = tuple(_parse_text_frames(lines))
    active = match["state"] == "active"
    return ThreadStack(
        name=name,
        thread_id=int(match["id"], 0) if match["id"] else None,
        frames=frames,
        is_main=name == "MainThread",
        active=active,
        # py-spy does not print the owner of the GIL for an idle thread.
        owns_gil=bool(match["gil"]) or (False if active else None),
        waits_for_gil=is_gil_wait(frames),
    )


def _parse_text_frames(lines: Iterable[str]) -> Iterator[StackFrame]:
    indent = None
    for line in lines:
        text = shorten(line).strip()
        depth = indent_of(line)
        # Variables have a deeper indent than their frame; log lines in between
        # have none.
        if not text or (indent is not None and depth != indent):
            continue
        if frame := _parse_text_frame(text):
            indent = depth
            yield frame


def _parse_text_frame(text: str) -> StackFrame | None:
    text = _REMARK_END.sub("", text, count=1)
    found = split_brackets(text)
    if found is None:
        if match := _SHORT_FRAME.fullmatch(text):
            return make_frame(match["name"], match["file"], int(match["line"]))
        return None

    name, place = found
    match = _LOCATION.fullmatch(place)
    if not name or not place or match is None:
        return None
    return make_frame(name, match["file"], int(match["line"] or 0))


Kind = TypeVar("Kind")

# A line on which a list of threads begins.
_LIST_START = late_pattern(r"^\[\s*\{", re.MULTILINE)
_DECODER = json.JSONDecoder()
_MOST_RANKS = 1 << 31  # more than any job will have
_MOST_NUMBER = 1 << 64  # thread ids are unsigned

# Errors of reading a document of another format.
_MALFORMED = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


def parse_json(text: str) -> tuple[ProcessStacks, ...]:
    """
    Parse the processes in JSON.

    Args:
        text: The output of py-spy or of
            :func:`~distdebug.stacks.export.stacks_to_json`; several documents
            may follow each other.

    Raises:
        ValueError: It is something else.
    """
    try:
        by_pid: dict[object, list[Any]] = {}
        for document in _read_documents(text):
            for key, data in _label_by_process(document):
                by_pid.setdefault(key, []).append(data)
        return tuple(map(_parse_process, by_pid.values()))
    except _MALFORMED as exc:
        msg = f"not what py-spy writes: {type(exc).__name__}: {exc}"
        raise ValueError(msg) from None


def _read_documents(text: str) -> Iterator[Any]:
    start = _LIST_START.search(text)
    if start is None:
        yield json.loads(text)
    while start is not None:
        data, end = _DECODER.raw_decode(text, start.start())
        yield data
        start = _LIST_START.search(text, end)


def _label_by_process(
    document: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """
    Yield the threads of a document with a key of their process.

    Containers reuse pids, so that the command line is part of the key.
    ``process_info`` may be at one thread only; it then holds for all threads
    with its pid.
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


def _parse_process(threads: Sequence[Mapping[str, Any]]) -> ProcessStacks:
    infos = (i for t in threads if (i := t.get("process_info")))
    info: Mapping[str, Any] = next(infos, {})
    parent = info.get("parent") or {}
    command = redact(str(info.get("command_line") or ""))
    coordinates = info.get("coordinates")
    return _read(
        ProcessStacks,
        info,
        pid=_number(threads[0]["pid"]),
        threads=()
        if info.get("threads") == 0
        else tuple(map(_parse_json_thread, threads)),
        rank=_rank(info.get("rank")),
        world_size=_rank(info.get("world_size")),
        coordinates=parse_coordinates(command)
        if coordinates is None
        else tuple((_text(name), _number(at)) for name, at in coordinates),
        command=command,
        parent_pid=_number(parent["pid"]) if "pid" in parent else None,
    )


def _parse_json_thread(data: Mapping[str, Any]) -> ThreadStack:
    name = _text(data.get("thread_name"))
    system_id = data.get("os_thread_id")
    number = data["thread_id"] if system_id is None else system_id
    frames = _parse_json_frames(data["frames"])
    is_main = _boolean(data.get("is_main"))
    waits = _boolean(data.get("waits_for_gil"))
    if is_main is None:
        is_main = name == "MainThread" or system_id == data["pid"]
    return _read(
        ThreadStack,
        data,
        name=name,
        # 0 is no thread id.
        thread_id=_number(number) or None,
        frames=frames,
        is_main=is_main,
        waits_for_gil=is_gil_wait(frames) if waits is None else waits,
    )


def _parse_json_frames(data: Any) -> tuple[StackFrame, ...]:
    return tuple(map(_parse_json_frame, (data or ())[:MOST_FRAMES]))


def _parse_json_frame(data: Mapping[str, Any]) -> StackFrame:
    frame = make_frame(
        str(data["name"]),
        str(data["filename"]),
        _number(data.get("line") or 0),
        is_native=_boolean(data.get("is_native")),
    )
    return with_code(frame, _text(data.get("code")))


def _read(kind: type[Kind], data: Mapping[str, Any], **known: Any) -> Kind:
    """
    Make an object of plain data, with the attributes that are *known*.
    """
    rest = (x for x in attrs.fields(cast(Any, kind)) if x.name not in known)
    found = {x.name: _READERS[x.type](data.get(x.name)) for x in rest}
    return kind(**known, **found)


def _optional(kind: Any, data: Mapping[str, Any] | None) -> Any:
    return None if data is None else _read(kind, data)


# How earlier captures name the holder of a lock: behind the target.
_OLD_HOLDER = late_pattern(r", held by process ([0-9]{1,10})$")


def _read_system_call(data: Mapping[str, Any] | None) -> SystemCall | None:
    call: SystemCall | None = _optional(SystemCall, data)
    if call is None or call.holder is not None:
        return call
    held = _OLD_HOLDER.search(call.target)
    if held is None:
        return call
    target = call.target[: held.start()]
    return attrs.evolve(call, target=target, holder=int(held[1]))


def _text(value: Any) -> str:
    # JSON may hold lone surrogates, which cannot be encoded.
    text = str(value or "")[:MOST_NAME]
    return text.encode(errors="replace").decode()


def _rank(value: Any) -> int | None:
    return None if value is None or _number(value) > _MOST_RANKS else value


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


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


# By the type of an attribute.
_READERS: Mapping[Any, Callable[[Any], Any]] = {
    "str": _text,
    "str | None": lambda value: _text(value) or None,
    "int": _number,
    "int | None": lambda value: None if value is None else _number(value),
    "float": lambda value: _seconds(value) or 0.0,
    "float | None": _seconds,
    "bool": lambda value: value is True,
    "bool | None": _boolean,
    "tuple[int, ...]": lambda values: tuple(map(_number, values or ())),
    "tuple[StackFrame, ...]": _parse_json_frames,
    "tuple[GpuKernel, ...]": lambda rows: tuple(
        _read(GpuKernel, row) for row in rows or ()
    ),
    "SystemCall | None": _read_system_call,
    "ThreadActivity | None": partial(_optional, ThreadActivity),
}
