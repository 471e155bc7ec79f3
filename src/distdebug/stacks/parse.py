"""
Read stack dumps of any tool from files, folders, or text.

Files come from anywhere and may be truncated or forged.  One that cannot be
read is reported as missing; the others are still read.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import attrs

from .._io import FileWalk, is_folder, open_ordinary
from .._lazy import late_pattern
from .._text import list_text
from ..errors import CaptureError
from ..findings import Missing
from ..identity import ranks_in_name
from .formats.frames import MOST_FRAMES
from .formats.pyspy import parse_json
from .formats.text import UNKNOWN_PID, parse_interrupted, parse_text
from .headings import parse_file_name
from .jobs import join_processes
from .model import ProcessStacks, ThreadStack


if TYPE_CHECKING:
    from .._search import TextIndex


# A process with 10,000 threads of 200 frames needs less.
_MOST_BYTES = 1 << 28

_CAPTURE_FILE = late_pattern(r"(?:pyspy|cudagdb)_.+_\d{1,10}\.(?:json|txt)")
_STACK_FILE = late_pattern(
    r"py-?spy|cuda-?gdb|pystack|faulthandler|back-?trace|(?:^|[_.-])gdb[_.-]"
    r"|\.stacks?\b|stack.*\.(?:txt|json|log|out)$|\.bt$"
    r"|^trace-.*\.out$|^VLLM_STACK_DUMP_",
    re.IGNORECASE,
)
# Where Ray Train's detector of hangs puts the stacks, as rank_3.log.
_STACK_FOLDER = "stack_traces"


def is_capture_file(name: str) -> bool:
    """
    Return whether a file name is one that a capture writes.

    Such a file must hold a stack; if it does not, this is reported.

    Args:
        name: The name without folders.
    """
    return _CAPTURE_FILE.fullmatch(name) is not None


def is_stack_file(path: str | os.PathLike[str]) -> bool:
    """
    Return whether a file looks like a stack dump, by its name and folder.

    Args:
        path: The file; nothing is read.
    """
    *_, folder, name = ["", *os.fspath(path).rsplit(os.sep, 2)]
    if folder == _STACK_FOLDER or _STACK_FILE.search(name):
        return True
    # The output of one rank, such as rank3.txt.
    is_output = name.lower().endswith((".txt", ".out"))
    return is_output and any(x.start == 0 for x in ranks_in_name(name))


def _may_hold_stacks(entry: os.DirEntry[str], _: object) -> bool:
    return is_stack_file(entry.path) or entry.is_dir()


def read_text(file: Path) -> str:
    """
    Return the text of a file.

    Raises:
        ValueError: It is not a regular file, or too large.

        OSError: It cannot be read.
    """
    if not file.is_file():
        msg = "not a file" if file.exists() else "no such file"
        raise ValueError(msg)

    with open_ordinary(file, "not an ordinary file") as opened:
        head = opened.read(_HEAD_BYTES).decode("utf-8-sig", "replace")
        opened.seek(0)
        is_json = _JSON_START.match(head) is not None
        data = read_excerpts(opened, _MOST_BYTES, is_document=is_json)
    return data.decode("utf-8-sig", "replace")


# A log of gigabytes may hold one stack dump.  Taking each of its lines for a
# possible frame takes minutes; finding the texts that every dump has takes a
# second.  Shorter files are read whole.
_WHOLE = 1 << 20
_BLOCK = 1 << 22
# Each dump has one of these texts for each thread, also behind the prefix of a
# log collector.
_STACK_TEXTS = (
    # py-spy
    *("(active", "(idle)", '"frames"'),
    # gdb and cuda-gdb
    *("(LWP ", "(process ", "[Switching to ", "Stack trace of thread"),
    *("#0  0x", "#1  0x", "#2  0x", "#0 0x"),
    *("CUDA kernel", "CUDA Kernel", "Parent Dev Grid"),
    # faulthandler, and gdb with the script of CPython
    "most recent call first",
    # pystack
    *("Traceback for thread", "The frame stack for thread"),
    # pytest-timeout
    "~~ Stack of ",
    # python -m profiling.sampling dump
    "Stack dump",
    # the end of an interrupted program
    *("KeyboardInterrupt", "Timed out waiting", "ait timeout after"),
    *("Timeout waiting for key", "Watchdog caught collective operation"),
)
_LONGEST_TEXT = max(map(len, _STACK_TEXTS))
# What is read around such a text: headings, the other frames, and the lines of
# other processes in between.
_BEFORE, _AFTER = 1 << 16, 1 << 17


@cache
def _index() -> TextIndex:
    # Those who capture stacks have nothing to search, and need no numpy.
    from .._search import make_text_index

    return make_text_index(text.encode() for text in _STACK_TEXTS)


def read_excerpts(
    file: IO[bytes], most: int, *, is_document: bool = False
) -> bytes:
    """
    Read the lines of a file that may hold stacks; a short file whole.

    Args:
        file: An ordinary file, at its beginning.

        most: In bytes.

        is_document: Whether it is one document, and no log with a stack in it;
            then it is read whole, too.

    Raises:
        OSError: It cannot be read.

        ValueError: There is more to read than *most*.
    """
    size = os.fstat(file.fileno()).st_size
    # Files of the kernel have no size.
    is_whole = is_document or size <= _WHOLE
    spans = [(0, most + 1)] if is_whole else _find_spans(file, size)
    parts: list[bytes] = []
    left = most
    for start, end in list(spans):
        parts.append(_read_lines(file, start, end))
        left -= len(parts[-1])
        if left < 0:
            msg = f"larger than {most:,} bytes"
            raise ValueError(msg)
    return b"\n".join(parts)


def _find_spans(file: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """
    Yield the parts of a file around the texts of stacks, in their order.
    """
    start = end = 0
    for at in _find_texts(file):
        if at - _BEFORE > end:
            if end:
                yield start, end
            start = at - _BEFORE
        end = min(max(at + _AFTER, end), size)
    if end:
        yield max(start, 0), end


def _find_texts(file: IO[bytes]) -> Iterator[int]:
    offset, tail = 0, b""
    while block := file.read(_BLOCK):
        data = tail + block
        for at, _ in _index().find(data):
            yield offset + at
        tail = data[-_LONGEST_TEXT:]
        offset += len(data) - len(tail)


def _read_lines(file: IO[bytes], start: int, end: int) -> bytes:
    """
    Read part of a file, without the line that begins before it.
    """
    file.seek(start)
    data = file.read(end - start)
    return data[data.find(b"\n") + 1 :] if start else data


_HEAD_BYTES = 1 << 10
_JSON_START = late_pattern(r"\s*\[\s*(?:[{\[]|\Z|\d+\s*\]\s*\Z)")
_JSON_LINE = late_pattern(r"^\[\s*\{", re.MULTILINE)

Source = str | os.PathLike[str]


class HasStacks(Protocol):
    """
    The result of an earlier step, such as a capture of a node.
    """

    @property
    def stacks(self) -> Sequence[ProcessStacks]:
        """
        Its processes.
        """


StackSource = Source | ProcessStacks | HasStacks
StackSources = StackSource | Iterable[StackSource]


@attrs.frozen
class StackFiles:
    """
    The processes read from stack files.

    Attributes:
        stacks: Every process.

        missing: What could not be read, and why.
    """

    stacks: tuple[ProcessStacks, ...]
    missing: tuple[Missing, ...] = ()


def as_stacks(stacks: StackSources) -> tuple[ProcessStacks, ...]:
    """
    Return the given stacks, or those of a capture or of files.

    Args:
        stacks: Processes, paths, or a result that has stacks; one or several.

    Raises:
        CaptureError: The paths hold no stack.

        TypeError: It is none of these.
    """
    if isinstance(stacks, ProcessStacks):
        return (stacks,)
    if isinstance(stacks, str | os.PathLike):
        stacks = [stacks]
    known = getattr(stacks, "stacks", stacks)
    if not isinstance(known, Iterable):
        msg = (
            "stacks are what read_stacks() or capture_node() returns, paths, "
            f"or several of these, not {type(stacks).__name__}"
        )
        raise TypeError(msg)

    items = tuple(known)
    paths = [x for x in items if isinstance(x, str | os.PathLike)]
    others = (x for x in items if not isinstance(x, str | os.PathLike))
    found = read_stack_files(paths)
    # No stack at all is a mistake rather than nothing to explain.
    if paths and not found.stacks:
        raise no_stacks_error(paths, found)
    return (*found.stacks, *(p for x in others for p in as_stacks(x)))


def no_stacks_error(
    paths: Iterable[Source], found: StackFiles
) -> CaptureError:
    """
    Return the error that says why there is no stack in *paths*.
    """
    names = list_text(str(path)[:200] for path in paths)
    reasons = dict.fromkeys(m.reason for m in found.missing)
    msg = f"no stacks in {names}: {list_text(reasons) or 'nothing there'}"
    return CaptureError(
        msg, remedy="name files of py-spy, gdb, pystack, or faulthandler"
    )


def read_stacks(
    paths_or_text: Source | Iterable[Source],
) -> tuple[ProcessStacks, ...]:
    """
    Read the stacks of all processes from files, folders, or text.

    Args:
        paths_or_text: Files with the output of py-spy (text or JSON), gdb,
            cuda-gdb, pystack, or faulthandler, also among other lines of a
            log; folders with such files; or the text itself; one or several.
            If none of them holds a stack, tracebacks of interrupted programs
            and of collective timeouts are used instead.

    Returns:
        Every process that could be read.
    """
    return read_stack_files(paths_or_text).stacks


def read_stack_files(paths_or_text: Source | Iterable[Source]) -> StackFiles:
    """
    Read the stacks of all processes and list the files that could not be read.

    In a folder, files without a stack are skipped silently unless a capture
    wrote them.  A process that occurs in several files is returned once.

    Args:
        paths_or_text: As for :func:`read_stacks`.
    """
    if isinstance(paths_or_text, str | os.PathLike):
        paths_or_text = [paths_or_text]
    found: list[_FoundProcess] = []
    missing: list[Missing] = []
    for source in paths_or_text:
        text, name = os.fspath(source), ""
        try:
            if isinstance(source, str) and _is_text(text):
                found += _read_source("", text)
                continue
            path = Path(text)
            name = str(path)
            if is_folder(path):
                found += _read_folder(path, missing)
            else:
                found += _read_file(path)
        except (OSError, ValueError) as exc:
            missing.append(_missing_stack(name, exc))
    # An interrupted call need not be the one that hung, so dumps win.
    dumps = [f for f in found if not f.is_interrupted]
    return StackFiles(
        _assign_pids(_deduplicate(dumps or found)), tuple(missing)
    )


def parse_stacks(text: str, source: str = "") -> tuple[ProcessStacks, ...]:
    """
    Parse the stacks of all processes in a text.

    Args:
        text: The output of py-spy (text or JSON), gdb, cuda-gdb, pystack, or
            faulthandler, alone or among other lines of a log.

        source: The file it comes from; its name may give node, pid, or rank.

    Returns:
        Every process once; if it occurs several times, its last state.
        Processes without a known pid get pids counted from 0.

    Raises:
        ValueError: There is no stack in the text.
    """
    return _assign_pids(_parse_processes(text, source)[0])


@attrs.frozen
class _FoundProcess:
    process: ProcessStacks
    time: float
    is_interrupted: bool


def _is_text(text: str) -> bool:
    return "\n" in text or text.lstrip().startswith("[{")


def _read_folder(
    folder: Path, missing: list[Missing]
) -> Iterator[_FoundProcess]:
    read = set()
    walk = FileWalk([folder], is_wanted=_may_hold_stacks)
    files = sorted(Path(file.path) for file in walk)
    missing += (_missing_stack(*problem) for problem in walk.problems)
    for file in files:
        # The JSON has more details than the text beside it.
        if file.suffix == ".txt" and file.with_suffix(".json") in read:
            continue
        try:
            yield from _read_file(file)
            read.add(file)
        except (OSError, ValueError) as exc:
            if is_capture_file(file.name):
                missing.append(_missing_stack(str(file), exc))


def _read_file(file: Path) -> list[_FoundProcess]:
    return _read_source(str(file), read_text(file), file.stat().st_mtime)


def _read_source(
    name: str, text: str, time: float = 0.0
) -> list[_FoundProcess]:
    processes, is_interrupted = _parse_processes(text, name)
    return [
        _FoundProcess(p, time if p.taken is None else p.taken, is_interrupted)
        for p in processes
    ]


def _folder_of(found: _FoundProcess) -> str:
    return os.path.dirname(found.process.source)  # noqa: PTH120 of thousands of files


def _missing_stack(source: str, exc: str | Exception) -> Missing:
    return Missing(what="stack", reason=str(exc), source=source)


def _parse_processes(
    text: str, source: str
) -> tuple[tuple[ProcessStacks, ...], bool]:
    """
    Parse the processes; say whether only tracebacks of interrupts are left.
    """
    is_interrupted = False
    if _JSON_START.match(text) or (
        '"frames"' in text and _JSON_LINE.search(text)
    ):
        processes = join_processes(parse_json(text))
    else:
        processes = parse_text(text)
        is_interrupted = not processes
        processes = processes or parse_interrupted(text)
    if not processes:
        msg = "no stack of a known tool in it"
        raise ValueError(msg)

    return tuple(_fill_from_file_name(processes, source)), is_interrupted


def _fill_from_file_name(
    processes: tuple[ProcessStacks, ...], source: str
) -> Iterator[ProcessStacks]:
    """
    Fill in host, pid, and rank from the name of the file.
    """
    from_name = parse_file_name(source)
    only_pid = from_name.pid if len(processes) == 1 else None
    for number, process in enumerate(processes):
        pid, rank = process.pid, process.rank
        if pid == UNKNOWN_PID and only_pid is not None:
            pid = only_pid
        yield attrs.evolve(
            process,
            source=source,
            threads=tuple(map(_limit_frames, process.threads)),
            host=process.host or from_name.host,
            pid=pid,
            rank=from_name.rank if rank is None and number == 0 else rank,
        )


def _limit_frames(thread: ThreadStack) -> ThreadStack:
    if max(len(thread.frames), len(thread.native)) <= MOST_FRAMES:
        return thread

    return attrs.evolve(
        thread,
        frames=thread.frames[:MOST_FRAMES],
        native=thread.native[:MOST_FRAMES],
    )


def _deduplicate(found: list[_FoundProcess]) -> Iterator[ProcessStacks]:
    """
    Return each process once: joined within a folder, else the newest.
    """
    indices: dict[object, int] = {}
    unique: list[_FoundProcess] = []
    for item in found:
        process = item.process
        # What dumps itself over and over may say its rank only.
        has_pid = process.pid != UNKNOWN_PID
        name = process.pid if has_pid else ("rank", process.rank)
        is_known = process.host and (has_pid or process.rank is not None)
        key = (process.host, name) if is_known else len(unique)
        index = indices.setdefault(key, len(unique))
        if index == len(unique):
            unique.append(item)
        elif _folder_of(unique[index]) == _folder_of(item):
            (joined, *_) = join_processes([unique[index].process, process])
            unique[index] = attrs.evolve(unique[index], process=joined)
        elif item.time > unique[index].time:
            unique[index] = item
    return (item.process for item in unique)


def _assign_pids(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    Give a free pid to each process whose pid is unknown.
    """
    known = tuple(processes)
    taken = {process.pid for process in known}
    free = (number for number in count() if number not in taken)
    return tuple(
        attrs.evolve(p, pid=next(free)) if p.pid == UNKNOWN_PID else p
        for p in known
    )
