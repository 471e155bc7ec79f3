"""
Parse backtraces of gdb, cuda-gdb, pstack, eu-stack, and coredumpctl.

This is the output of ``thread apply all bt`` in all versions of gdb.  A frame
may span several lines, and have Python frames where gdb can print these.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

import attrs

from ..model import StackFrame, ThreadStack, is_gil_wait


_ROW = re.compile(
    r"(?P<current>\*)?\s{0,20}(?P<row>\d{1,9})(?:\.\d{1,9})?\s{1,20}"
    r"(?:Thread 0x[0-9a-f]{1,16} )?\(?(?:LWP|process) (?P<row_lwp>\d{1,10})(?!\d)\)?"
    r'\s{0,40}(?:"(?P<name>[^"]{0,99})")?\s{0,40}(?P<frame>[^\s()"].*)'
)
_MOST_ROW = 4096


def match_thread_row(line: str) -> re.Match[str] | None:
    """
    Match a row of ``info threads``.

    Returns:
        A match with the thread number (*row*), its id in the system
        (*row_lwp*), its *name*, its *frame*, and the mark of the *current*
        thread; or ``None``.
    """
    text = line.strip()
    return _ROW.fullmatch(text) if len(text) <= _MOST_ROW else None


def is_thread_row(match: re.Match[str] | None) -> bool:
    """
    Return whether a header of a thread is a row of ``info threads``.

    Args:
        match: From :func:`match_header`.
    """
    return match is not None and "row" in match.re.groupindex


def is_current_row(match: re.Match[str] | None) -> bool:
    """
    Return whether a row is that of the current thread of gdb.

    Args:
        match: From :func:`match_header`.
    """
    return (
        is_thread_row(match) and match is not None and bool(match["current"])
    )


def merge_duplicates(
    threads: Iterable[ThreadStack],
) -> tuple[ThreadStack, ...]:
    """
    Merge threads that were printed more than once.

    Returns:
        Each thread once with its longest stack, in the order of first
        appearance.
    """
    found: dict[object, ThreadStack] = {}
    for number, thread in enumerate(threads):
        key = number if thread.thread_id is None else (thread.thread_id,)
        known = found.get(key)
        found[key] = thread if known is None else _merge_threads(known, thread)
    return tuple(found.values())


def _merge_threads(one: ThreadStack, other: ThreadStack) -> ThreadStack:
    base, more = sorted((one, other), key=lambda t: -_frame_count(t))
    return attrs.evolve(
        base,
        name=base.name or more.name,
        is_main=base.is_main or more.is_main,
        native=base.native or _extra_native(base, more),
    )


def _frame_count(thread: ThreadStack) -> int:
    return len(thread.frames) + len(thread.native)


def _extra_native(
    base: ThreadStack, more: ThreadStack
) -> tuple[StackFrame, ...]:
    """
    Return the native frames that only the other dump has.
    """
    is_python = not any(frame.is_native for frame in base.frames)
    return more.frames if is_python and more.frames != base.frames else ()


MOST_CODE = 500
MOST_NAME = 4096
# Limit for one thread.
MOST_FRAMES = 4096
MOST_LINE = 1 << 14

_CODE_OF_C = re.compile(
    r"\.(?:[cC]|cc|cpp|cxx|cu|cuh|[hH]|hh|hpp|inl|rs|[sS])$"
)


def shorten(line: str) -> str:
    """
    Cut a long line to a length that patterns can search.

    The middle is left out: names begin a line, and files end it.

    Returns:
        At most :data:`MOST_LINE` characters.
    """
    if len(line) <= MOST_LINE:
        return line
    return line[: MOST_LINE // 2] + line[-MOST_LINE // 2 :]


def split_brackets(text: str) -> tuple[str, str] | None:
    """
    Split a text at the round brackets that end it.

    Args:
        text: Such as ``"f(int) (lib.so)"``.

    Returns:
        Such as ``("f(int)", "lib.so")``; ``None`` if the text does not end
        with a pair of brackets.
    """
    if not text.endswith(")"):
        return None

    start = text.rfind("(")
    if ")" in text[start:-1]:
        start = _opening_bracket(text)
    return (
        (text[:start].rstrip(), text[start + 1 : -1]) if start >= 0 else None
    )


def _opening_bracket(text: str) -> int:
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        if text[index] == ")":
            depth += 1
        elif text[index] == "(":
            depth -= 1
            if not depth:
                return index

    return -1


# Most ranks are at the same lines, so that most frames are made once.
@lru_cache(maxsize=1 << 14)
def make_frame(
    name: str, filename: str, line: int = 0, *, is_native: bool | None = None
) -> StackFrame:
    """
    Make a frame, with long names cut for the patterns that search them.

    Args:
        line: 0 if unknown.

        is_native: ``None`` if the tool does not report it; then the file name
            decides.
    """
    if is_native is None:
        is_native = is_native_location(filename, line)
    return StackFrame(
        name[:MOST_NAME], filename[:MOST_NAME], line, is_native=is_native
    )


def is_native_location(filename: str, line: int) -> bool:
    """
    Return whether a location looks like native code.

    Args:
        filename: The file or library.

        line: 0 if unknown.
    """
    if line:
        return bool(_CODE_OF_C.search(filename[-8:]))
    return bool(filename) and not filename.endswith((".py", ".pyc", ">"))


def attach_code(
    lines: Iterable[tuple[str, StackFrame | None]],
) -> Iterator[StackFrame]:
    """
    Attach to each frame the source code below it.

    Args:
        lines: The lines of a stack, each with its frame, or ``None`` if it is
            no frame.

    Returns:
        The frames.  The line right below a Python frame is its source code if
        it is no frame and has a deeper indent.
    """
    frame: StackFrame | None = None
    depth = 0
    for line, parsed in lines:
        indent = len(line) - len(line.lstrip())
        if frame is not None:
            is_code = parsed is None and indent > depth and not frame.is_native
            code = line.strip()[:MOST_CODE] if is_code else ""
            yield attrs.evolve(frame, code=code) if code else frame
        frame, depth = parsed, indent
    if frame is not None:
        yield frame


Frames = tuple[StackFrame, ...]

# What gdb prints before Python frames, with the script of CPython.
PYTHON_BACKTRACE = "Traceback (most recent call first):"

_HEADERS = (
    re.compile(
        r"Thread (?P<number>\d{1,9}|N) \((?:Thread 0x[0-9a-f.]{1,19} )?\(?"
        r"(?:LWP|process) (?P<lwp>\d{1,10}|\.\.\.)\)?"
        r'(?: "(?P<name>.{0,99})")?\)?:?'
    ),
    re.compile(
        r"Thread (?P<number>\d{1,9}|N) \(Thread 0x[0-9a-f.]{1,19}.{0,99}\):?"
    ),
    re.compile(
        r"\[Switching to [Tt]hread (?:(?P<number>\d{1,9})(?:\.\d{1,9})? \()?"
        r"(?:Thread )?0x[0-9a-f]{1,16} \(LWP (?P<lwp>\d{1,10})\)\)?\]"
    ),
    re.compile(r"(?:TID|Stack trace of thread) (?P<lwp>\d{1,10}):"),
)
_BEGINNINGS = ("Thread ", "[Switching to ", "TID ", "Stack trace of ")
_MOST_HEADER = 400
FRAME_START = re.compile(r"#(?P<depth>\d{1,6})\s{1,4}(?=\S)")

_GPU_FOCUS = re.compile(
    r"\[(?:Switching|Current) focus (?:set )?to CUDA kernel "
)
_PROCESS_LINE = re.compile(
    r"\[Inferior \d{1,4} \(process (\d{1,10})\) detached\]"
    r"|Attaching to process (\d{1,10})\b"
    r"|Detaching from program: .{0,400}, process (\d{1,10})\b"
    r"|(?:Attaching to program: .{0,400}, process (\d{1,10}))\b"
)
# Several frames on one line, after pasting has lost the line breaks.
_GLUED_FRAME = re.compile(r"\s(?=#\d{1,6}\s{1,2}\S)")
_BEFORE_CALL = re.compile(r"#\d{1,6} (?:0x[0-9a-f.]{1,20}(?: in)? ?)?")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\[^\']{1,3})\'')
_INLINED = re.compile(r" in \S+ inlined from .*$")


# How gdb prints a Python frame, with the script of CPython.
_PYTHON = re.compile(
    r"Frame 0x[0-9a-f]{1,16}, for file (?P<file>[^,]{1,999}),"
    r" line (?P<line>\d{1,9}), in (?P<name>[^\s(]{1,999})"
)
_PYTHON_LINE = re.compile(
    r'\s*File "(?P<file>[^"]{1,4096})", line (?P<line>\d{1,9}),'
    r" in (?P<name>\S{1,999})"
)
_MOST_LINES = 64


def parse_gdb(text: str) -> tuple[ThreadStack, ...]:
    """
    Parse the threads in the output of gdb or cuda-gdb.

    Returns:
        The threads, in the order of the tool; *thread_id* is that of the
        operating system, and the name is that of the kernel.
    """
    found: list[tuple[re.Match[str] | None, list[str]]] = []
    for line in text.splitlines():
        if match := match_header(line):
            found.append((match, []))
        elif found:
            found[-1][1].append(line)
        elif is_gpu_focus(line) or FRAME_START.match(line):
            found.append((None, [line]))
    return parse_threads(found)


def parse_threads(
    found: Iterable[tuple[re.Match[str] | None, list[str]]],
) -> tuple[ThreadStack, ...]:
    """
    Parse the stacks of all threads of a process.

    Args:
        found: The arguments for :func:`parse_thread`, for each thread.

    Returns:
        The threads that have a stack.
    """
    blocks = [(match, list(lines)) for match, lines in found]
    # A stack without a header is that of the current thread.
    current = next((m for m, _ in blocks if is_current_row(m)), None)
    parsed = [
        (match or current, parse_thread(match or current, lines))
        for match, lines in blocks
    ]
    filled = [(match, thread) for match, thread in parsed if thread.frames]
    if any(match for match, _ in filled):
        # gdb prints the current frame before the list of threads.
        return merge_duplicates(
            thread
            for match, thread in filled
            if match or len(thread.frames) > 1
        )
    if len(filled) == 1:
        # By default gdb attaches to the main thread.
        return (attrs.evolve(filled[0][1], is_main=True),)
    return tuple(thread for _, thread in filled)


def match_header(line: str) -> re.Match[str] | None:
    """
    Match the header line of a thread.

    Returns:
        The argument for :func:`parse_thread`, or ``None``.
    """
    text = line.strip()
    if text[:1] == "*" or text[:1].isdigit():
        return match_thread_row(text)
    if len(text) > _MOST_HEADER or not text.startswith(_BEGINNINGS):
        return None
    return next((m for h in _HEADERS if (m := h.fullmatch(text))), None)


def is_gpu_focus(line: str) -> bool:
    """
    Return whether cuda-gdb switches from the process to its GPU.

    The frames after such a line are those of a kernel.
    """
    return "CUDA kernel" in line and _GPU_FOCUS.search(line[:400]) is not None


def parse_process_id(line: str) -> int | None:
    """
    Return the pid that a line of gdb names, or ``None``.
    """
    match = _PROCESS_LINE.search(line)
    number = next((g for g in match.groups() if g), "") if match else ""
    return int(number) if number else None


def parse_thread(
    match: re.Match[str] | None, lines: Iterable[str]
) -> ThreadStack:
    """
    Parse the stack of one thread.

    Args:
        match: From :func:`match_header`; ``None`` if there was no header.

        lines: The lines after the header.
    """
    number, lwp, name = _header_fields(match)
    if match is not None and is_thread_row(match):
        lines = (f"#0  {match['frame']}", *lines)
    frames, native = _parse_stacks(lines)
    return ThreadStack(
        name=name,
        thread_id=lwp,
        frames=frames,
        is_main=number == "1",
        waits_for_gil=is_gil_wait(native or frames),
        native=native,
    )


def _header_fields(match: re.Match[str] | None) -> tuple[str, int | None, str]:
    if match is None:
        return "", None, ""

    groups = match.groupdict()
    lwp = groups.get("lwp") or groups.get("row_lwp") or ""
    return (
        groups.get("number") or groups.get("row") or "",
        int(lwp) if lwp.isdecimal() else None,
        groups.get("name") or "",
    )


def _parse_stacks(lines: Iterable[str]) -> tuple[Frames, Frames]:
    """
    Return the longest stack in these lines, and the native one beside it.
    """
    stacks: list[list[StackFrame]] = [[]]
    host = takewhile(lambda line: not is_gpu_focus(line), lines)
    for parts in _group_lines(host):
        match = FRAME_START.match(parts[0])
        if parts[0].strip() == PYTHON_BACKTRACE or (
            match and not int(match["depth"])
        ):
            stacks.append([])
        stacks[-1] += (
            _parse_frame(_join_lines(parts))
            if match
            else _parse_python_frame(parts)
        )
    # A thread may have been printed twice, as Python and as native code.
    python = max(filter(_is_python, stacks), key=len, default=())
    native = max((s for s in stacks if not _is_python(s)), key=len, default=())
    found = (python, native) if python else (native, ())
    return tuple(found[0]), tuple(found[1])


def _is_python(frames: Sequence[StackFrame]) -> bool:
    return bool(frames) and not any(frame.is_native for frame in frames)


def _group_lines(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    """
    Group the lines that belong to one frame.
    """
    parts: list[str] = []
    open_brackets = 0
    for line in _split_glued_frames(lines):
        is_frame = FRAME_START.match(line) is not None
        if (
            is_frame
            or _PYTHON_LINE.match(line)
            or line.strip() == PYTHON_BACKTRACE
        ):
            if parts:
                yield parts
            parts, open_brackets = (
                [line],
                _open_brackets(line) if is_frame else 0,
            )
        elif 0 < len(parts) < _MOST_LINES and _is_continuation(
            line, parts, open_brackets
        ):
            parts.append(line)
            open_brackets += _open_brackets(line)
        else:
            if parts:
                yield parts
            parts = []
    if parts:
        yield parts


def _is_continuation(
    line: str, parts: Sequence[str], open_brackets: int
) -> bool:
    if FRAME_START.match(parts[0]):
        return _continues_frame(line, open_brackets)
    # The source code below a Python frame has a deeper indent.
    return len(parts) == 1 and _indent(line) > _indent(parts[0])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _open_brackets(line: str) -> int:
    plain = _STRINGS.sub("", line)
    return plain.count("(") - plain.count(")")


def _continues_frame(line: str, open_brackets: int) -> bool:
    body = line.strip()
    if body.startswith(("at ", "from ", "(")):
        return True
    return bool(body) and line[:1].isspace() and open_brackets > 0


def _split_glued_frames(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        short = shorten(line).rstrip()
        if short.count("#") < 2 or not _GLUED_FRAME.search(short):
            yield (
                short.lstrip() if FRAME_START.match(short.lstrip()) else short
            )
        else:
            yield from map(str.strip, _GLUED_FRAME.split(short))


def _join_lines(parts: Sequence[str]) -> str:
    return shorten(" ".join(" ".join(parts).split()))


def _parse_python_frame(parts: Sequence[str]) -> Iterator[StackFrame]:
    if match := _PYTHON_LINE.match(parts[0]):
        frame = make_frame(
            match["name"], match["file"], int(match["line"]), is_native=False
        )
        code = "".join(parts[1:]).strip()[:MOST_CODE]
        yield attrs.evolve(frame, code=code) if code else frame


def _parse_frame(text: str) -> Iterator[StackFrame]:
    if match := _PYTHON.search(text):
        yield make_frame(
            match["name"], match["file"], int(match["line"]), is_native=False
        )
        return

    body = _BEFORE_CALL.sub("", text, count=1)
    call, filename, line = _split_location(_STRINGS.sub('""', body).strip())
    name = _function_name(call)
    if name:
        yield make_frame(name, filename, line, is_native=True)


def _split_location(text: str) -> tuple[str, str, int]:
    """
    Split a frame into the call, and its file and line or library.
    """
    text = _INLINED.sub("", text)
    at = text.rfind(") at ")
    lib = text.rfind(") from ")
    if at < 0 <= lib or 0 <= at < lib:
        return text[: lib + 1], text[lib + 7 :].strip(), 0
    if at < 0:
        return text, "", 0

    filename, _, line = text[at + 5 :].strip().rpartition(":")
    if not line.isdecimal() or len(line) > 9:
        # Where the file is "file.cpp:line", as in documentation.
        return text[: at + 1], filename or line, 0
    return text[: at + 1], filename, int(line)


def _function_name(call: str) -> str:
    if call.startswith("<") and call.endswith(">"):
        return call
    found = split_brackets(call)
    if found is None:
        return call
    name, inside = found
    return name or f"({inside})"
