"""
What did py-spy write, as data?

Files come from anywhere and may be cut off or forged.  One that cannot be read
is told, and the others are read all the same.
"""

from __future__ import annotations

import json
import os
import re

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..findings import Missing
from .model import ProcessStacks, StackFrame, ThreadStack


__all__ = ["StackFiles", "parse_stacks", "read_stack_files", "read_stacks"]

# A process with 10,000 threads of 200 frames stays below.
_MOST_BYTES = 1 << 28
_MOST_NUMBER = 1 << 64  # thread ids are unsigned
_MOST_NAME = 4096

_FILE_NAME = re.compile(r"pyspy_(?P<host>.+)_(?P<pid>\d{1,10})\.(json|txt)")
_PROCESS = re.compile(r"Process (?P<pid>\d{1,10}): (?P<command>.*)")
_THREAD = re.compile(
    r"Thread (?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,19}) \((?P<state>[^)]*)\)"
    r'(?:: "(?P<name>.*)")?'
)
_FRAME = re.compile(
    r" {4}(?P<name>\S.*?) \((?P<file>.*?)(?::(?P<line>\d{1,9}))?\)"
)

# What comes of taking a document for something that it is not.
_MALFORMED = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)

Source = str | os.PathLike[str]


@attrs.frozen
class StackFiles:
    """
    What was found in files of stacks.

    Attributes:
        stacks: Every process.

        missing: What could not be read, and why.
    """

    stacks: tuple[ProcessStacks, ...]
    missing: tuple[Missing, ...] = ()


def read_stacks(
    paths_or_text: Source | Iterable[Source],
) -> tuple[ProcessStacks, ...]:
    """
    Which stacks are in these files?

    Args:
        paths_or_text: Files that py-spy wrote (``py-spy dump``, with or
            without ``--json``), folders with files named ``pyspy_*.json`` or
            ``pyspy_*.txt``, or such a text itself; one or several.

    Returns:
        Every process that could be read.
    """
    return read_stack_files(paths_or_text).stacks


def read_stack_files(
    paths_or_text: Source | Iterable[Source],
) -> StackFiles:
    """
    Which stacks are in these files, and which files could not be read?

    Args:
        paths_or_text: As for :func:`read_stacks`.

    Returns:
        The processes, and what could not be read.
    """
    sources = (
        [paths_or_text]
        if isinstance(paths_or_text, str | os.PathLike)
        else paths_or_text
    )
    stacks: list[ProcessStacks] = []
    missing = []
    for name, text in _texts(sources):
        try:
            stacks += parse_stacks(text() if callable(text) else text, name)
        except (OSError, ValueError) as exc:
            missing.append(Missing(what="stack", reason=str(exc), source=name))
    return StackFiles(tuple(stacks), tuple(missing))


def parse_stacks(text: str, source: str = "") -> tuple[ProcessStacks, ...]:
    """
    Which stacks are in this output of py-spy?

    Args:
        text: The output, as JSON or as text.

        source: The file it comes from.

    Returns:
        Every process.

    Raises:
        ValueError: It is something else.
    """
    is_json = text.lstrip().startswith("[")
    parse = _parse_json if is_json else _parse_text
    match = _FILE_NAME.fullmatch(Path(source).name)
    host = match["host"] if match else None
    return tuple(
        attrs.evolve(process, host=host) for process in parse(text, source)
    )


def _texts(sources: Iterable[Source]) -> Iterator[tuple[str, Any]]:
    for source in sources:
        text = os.fspath(source)
        if "\n" in text or text.lstrip().startswith("["):
            yield "", text
            continue
        path = Path(text)
        for file in _files_in(path) if path.is_dir() else [path]:
            yield str(file), lambda file=file: _read_text(file)


def _files_in(folder: Path) -> list[Path]:
    """
    The files of stacks in a folder, each process once.
    """
    files = sorted(f for f in _below(folder) if _FILE_NAME.fullmatch(f.name))
    # JSON says more than the text beside it.
    names = set(files)
    return [
        file
        for file in files
        if file.suffix == ".json" or file.with_suffix(".json") not in names
    ]


def _below(folder: Path) -> Iterator[Path]:
    # Those of Python call themselves once per level, of which there may be
    # more than that can be done.
    todo = [str(folder)]
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except OSError:
            continue

        yield from map(Path, entries)
        todo += (e.path for e in entries if e.is_dir(follow_symlinks=False))


def _read_text(file: Path) -> str:
    # Opening a pipe would wait for somebody to write to it.
    if not file.is_file():
        msg = "not a file" if file.exists() else "no such file"
        raise ValueError(msg)

    with file.open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        msg = f"larger than {_MOST_BYTES:,} bytes"
        raise ValueError(msg)

    return data.decode("utf-8", "replace")


def _parse_json(text: str, source: str) -> Iterable[ProcessStacks]:
    try:
        data = json.loads(text)
        threads = [(_process_of(t), _json_thread(t)) for t in data]
    except _MALFORMED as exc:
        msg = f"not what py-spy writes: {type(exc).__name__}: {exc}"
        raise ValueError(msg) from None

    by_pid: dict[int, tuple[dict[str, Any], list[ThreadStack]]] = {}
    for process, thread in threads:
        by_pid.setdefault(process["pid"], (process, []))[1].append(thread)

    return [
        ProcessStacks(**process, source=source, threads=tuple(members))
        for process, members in by_pid.values()
    ]


def _process_of(data: Mapping[str, Any]) -> dict[str, Any]:
    info = data.get("process_info") or {}
    parent = info.get("parent") or {}
    rank = info.get("rank")
    return {
        "pid": _number(data["pid"]),
        "rank": None if rank is None else _number(rank),
        "command": str(info.get("command_line") or ""),
        "parent_pid": _number(parent["pid"]) if "pid" in parent else None,
    }


def _json_thread(data: Mapping[str, Any]) -> ThreadStack:
    name = str(data.get("thread_name") or "")
    system_id = data.get("os_thread_id")
    number = data["thread_id"] if system_id is None else system_id
    return ThreadStack(
        name=name,
        thread_id=_number(number),
        frames=tuple(
            _frame(
                str(frame["name"]),
                str(frame["filename"]),
                _number(frame.get("line") or 0),
            )
            for frame in data["frames"]
        ),
        is_main=name == "MainThread" or system_id == data["pid"],
        active=_truth(data.get("active")),
        owns_gil=_truth(data.get("owns_gil")),
    )


def _frame(name: str, filename: str, line: int) -> StackFrame:
    # Longer ones are no names, and patterns are searched for in them.
    return StackFrame(name[:_MOST_NAME], filename[:_MOST_NAME], line)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_NUMBER:
        msg = f"not a number: {value!r:.40}"
        raise ValueError(msg)

    return value


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _parse_text(text: str, source: str) -> Iterable[ProcessStacks]:
    found: list[tuple[re.Match[str], list[_Thread]]] = []
    for line in text.splitlines():
        if match := _PROCESS.fullmatch(line):
            found.append((match, []))
        elif not found:
            continue
        elif match := _THREAD.fullmatch(line):
            found[-1][1].append((match, []))
        elif found[-1][1] and (match := _FRAME.fullmatch(line)):
            found[-1][1][-1][1].append(match)

    if not found:
        msg = "not what py-spy writes"
        raise ValueError(msg)

    return [_text_process(match, threads, source) for match, threads in found]


_Thread = tuple[re.Match[str], list[re.Match[str]]]


def _text_process(
    match: re.Match[str], threads: Iterable[_Thread], source: str
) -> ProcessStacks:
    pid = int(match["pid"])
    return ProcessStacks(
        pid=pid,
        source=source,
        command=match["command"],
        threads=tuple(_text_thread(pid, *thread) for thread in threads),
    )


def _text_thread(
    pid: int, match: re.Match[str], frames: Iterable[re.Match[str]]
) -> ThreadStack:
    name, state = match["name"] or "", match["state"].split("+")
    number = int(match["id"], 0)
    return ThreadStack(
        name=name,
        thread_id=number,
        frames=tuple(
            _frame(f["name"], f["file"], int(f["line"] or 0)) for f in frames
        ),
        is_main=name == "MainThread" or number == pid,
        active="active" in state,
        # It is not shown for a thread that is idle.
        owns_gil="gil" in state or None,
    )
