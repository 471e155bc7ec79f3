"""
Which stacks are in these files, whichever tool wrote them?

Files come from anywhere and may be cut off or forged.  One that cannot be read
is told, and the others are read all the same.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import attrs

from .._io import is_folder, is_link, read_ordinary, stays_in
from ..findings import Missing
from .formats.gdb import MOST_FRAMES
from .formats.headings import name_heading
from .formats.pyspy import parse_json
from .formats.text import UNKNOWN, parse_interrupted, parse_text
from .jobs import join_processes
from .model import ProcessStacks, ThreadStack


# A process with 10,000 threads of 200 frames stays below.
_MOST_BYTES = 1 << 28

_CAPTURED = re.compile(r"(?:pyspy|cudagdb)_.+_\d{1,10}\.(?:json|txt)")
_STACK_LIKE = re.compile(
    r"py-?spy|cuda-?gdb|pystack|faulthandler|back-?trace|(?:^|[_.-])gdb[_.-]"
    r"|\.stacks?\b|stack.*\.(?:txt|json|log|out)$|\.bt$"
    r"|^rank[ _-]?\d+[^/]*\.(?:txt|out)$|^trace-.*\.out$|^VLLM_STACK_DUMP_",
    re.IGNORECASE,
)


def is_captured(name: str) -> bool:
    """
    Is this the name of a file that a capture writes?

    Args:
        name: The name without folders.

    Returns:
        Whether it has to hold a stack, so that it is worth a word if not.
    """
    return _CAPTURED.fullmatch(name) is not None


def is_stack_like(name: str) -> bool:
    """
    Is this the name of a file that may hold stacks?

    Args:
        name: The name without folders.

    Returns:
        Whether it is worth a look.
    """
    return _STACK_LIKE.search(name) is not None


def stack_files_in(folder: Path) -> list[Path]:
    """
    Which files of a folder may hold stacks?

    Args:
        folder: The folder; those in it are searched too.  Links are followed
            only if they stay in it: others may have made it.

    Returns:
        The files, in order, JSON before a text of the same name.
    """
    return sorted(
        file
        for file in _below(folder)
        if is_stack_like(file.name)
        and not (is_link(file) and not stays_in(file, folder))
    )


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


def read_text(file: Path) -> str:
    """
    What is in this file?

    Args:
        file: A file of any kind.

    Returns:
        Its text.

    Raises:
        ValueError: It is no ordinary file, or too large.

        OSError: It cannot be read.
    """
    if not file.is_file():
        msg = "not a file" if file.exists() else "no such file"
        raise ValueError(msg)

    return read_ordinary(file, _MOST_BYTES).decode("utf-8-sig", "replace")


_JSON = re.compile(r"\s*\[\s*(?:[{\[]|\Z|\d+\s*\]\s*\Z)")
_JSON_BELOW = re.compile(r"^\[\s*\{", re.MULTILINE)

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
        paths_or_text: Files with what py-spy (text or JSON), gdb, cuda-gdb,
            pystack, or faulthandler wrote, also among other lines of a log;
            folders with such files; or such a text itself; one or several.
            If there is none in all of them, tracebacks of programs that were
            interrupted, or whose collectives timed out, are taken instead.

    Returns:
        Every process that could be read.
    """
    return read_stack_files(paths_or_text).stacks


def read_stack_files(
    paths_or_text: Source | Iterable[Source],
) -> StackFiles:
    """
    Which stacks are in these files, and which files could not be read?

    In a folder, files that hold no stack are left out without a word, unless
    their name promises one.  A process that several files tell of is one.

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
    found: list[_Found] = []
    missing: list[Missing] = []
    for source in sources:
        text = os.fspath(source)
        if isinstance(source, str) and _is_text(text):
            _read("", text, found, missing)
        elif is_folder(path := Path(text)):
            _read_folder(path, found, missing)
        else:
            _read_file(path, found, missing)
    # What was interrupted need not be what hung, if that was looked at.
    dumps = [f for f in found if not f.is_interrupted]
    return StackFiles(_numbered(_newest(dumps or found)), tuple(missing))


def parse_stacks(text: str, source: str = "") -> tuple[ProcessStacks, ...]:
    """
    Which stacks are in this text?

    Args:
        text: What py-spy (text or JSON), gdb, cuda-gdb, pystack, or
            faulthandler wrote, alone or among other lines of a log.

        source: The file it comes from; its name may tell node, process, or
            rank.

    Returns:
        Every process; if it occurs more than once, as it was last.  Those
        whose number nothing tells are counted from 0.

    Raises:
        ValueError: No stack is in it.
    """
    return _numbered(_parse(text, source)[0])


@attrs.frozen
class _Found:
    process: ProcessStacks
    folder: str
    time: float
    is_interrupted: bool


def _is_text(text: str) -> bool:
    return "\n" in text or text.lstrip().startswith("[{")


def _read_folder(
    folder: Path, found: list[_Found], missing: list[Missing]
) -> None:
    read = set()
    for file in stack_files_in(folder):
        # JSON says more than the text beside it.
        if file.suffix == ".txt" and file.with_suffix(".json") in read:
            continue
        problems: list[Missing] = []
        if _read_file(file, found, problems):
            read.add(file)
        elif is_captured(file.name):
            missing += problems


def _read_file(
    file: Path, found: list[_Found], missing: list[Missing]
) -> bool:
    try:
        text, time = read_text(file), file.stat().st_mtime
    except (OSError, ValueError) as exc:
        missing.append(_missing(str(file), exc))
        return False
    return _read(str(file), text, found, missing, time)


def _read(
    name: str,
    text: str,
    found: list[_Found],
    missing: list[Missing],
    time: float = 0.0,
) -> bool:
    try:
        processes, is_interrupted = _parse(text, name)
    except ValueError as exc:
        missing.append(_missing(name, exc))
        return False

    folder = os.path.dirname(name)  # noqa: PTH120 of thousands of files
    found += (
        _Found(p, folder, time if p.taken is None else p.taken, is_interrupted)
        for p in processes
    )
    return True


def _missing(source: str, exc: Exception) -> Missing:
    return Missing(what="stack", reason=str(exc), source=source)


def _parse(text: str, source: str) -> tuple[tuple[ProcessStacks, ...], bool]:
    """
    The processes in a text, and whether only their interruption tells them.
    """
    is_interrupted = False
    if _JSON.match(text) or ('"frames"' in text and _JSON_BELOW.search(text)):
        processes = join_processes(parse_json(text))
    else:
        processes = parse_text(text)
        is_interrupted = not processes
        processes = processes or parse_interrupted(text)
    if not processes:
        msg = "no stack of a known tool in it"
        raise ValueError(msg)

    return tuple(_named(processes, source)), is_interrupted


def _named(
    processes: tuple[ProcessStacks, ...], source: str
) -> Iterator[ProcessStacks]:
    """
    The processes, with what the name of their file tells.
    """
    named = name_heading(source)
    is_alone = len(processes) == 1
    for number, process in enumerate(processes):
        is_unknown = process.pid == UNKNOWN and is_alone
        yield attrs.evolve(
            process,
            source=source,
            threads=tuple(map(_short, process.threads)),
            host=process.host or named.host,
            pid=(
                named.pid
                if is_unknown and named.pid is not None
                else process.pid
            ),
            rank=(
                named.rank
                if process.rank is None and number == 0
                else process.rank
            ),
        )


def _short(thread: ThreadStack) -> ThreadStack:
    if max(len(thread.frames), len(thread.native)) <= MOST_FRAMES:
        return thread

    return attrs.evolve(
        thread,
        frames=thread.frames[:MOST_FRAMES],
        native=thread.native[:MOST_FRAMES],
    )


def _newest(found: list[_Found]) -> Iterator[ProcessStacks]:
    """
    Every process once: joined within a folder, else the newest one.
    """
    places: dict[object, int] = {}
    kept: list[_Found] = []
    for one in found:
        process = one.process
        is_known = process.host and process.pid != UNKNOWN
        key = (process.host, process.pid) if is_known else len(kept)
        place = places.setdefault(key, len(kept))
        if place == len(kept):
            kept.append(one)
        elif kept[place].folder == one.folder:
            (joined, *_) = join_processes([kept[place].process, process])
            kept[place] = attrs.evolve(kept[place], process=joined)
        elif one.time > kept[place].time:
            kept[place] = one
    return (one.process for one in kept)


def _numbered(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    The processes, each with a number of its own.
    """
    known = tuple(processes)
    taken = {process.pid for process in known}
    free = (number for number in count() if number not in taken)
    return tuple(
        attrs.evolve(p, pid=next(free)) if p.pid == UNKNOWN else p
        for p in known
    )
