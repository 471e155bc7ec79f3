"""
Parse backtraces of gdb, cuda-gdb, pstack, eu-stack, and coredumpctl.

This is the output of ``thread apply all bt`` in all versions of gdb.  A frame
may span several lines, and have Python frames where gdb can print these.
cuda-gdb also lists kernels (``info cuda kernels``), and names the kernel in
focus, also in GPU core dumps.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

import attrs

from ..._lazy import late_pattern
from ..model import GpuKernel, StackFrame, ThreadStack, is_gil_wait
from .frames import (
    MOST_NAME,
    Block,
    header_matcher,
    indent_of,
    make_frame,
    shorten,
    split_brackets,
    with_code,
)


#: Matches a row of ``info threads``: the thread number (*row*), its id in the
#: system (*row_lwp*), its *name*, its *frame*, and the mark of the *current* one.
match_thread_row = header_matcher(
    r"(?P<current>\*)?\s{0,20}(?P<row>\d{1,9})(?:\.\d{1,9})?\s{1,20}"
    r"(?:Thread 0x[0-9a-f]{1,16} )?\(?(?:LWP|process) (?P<row_lwp>\d{1,10})(?!\d)\)?"
    r'\s{0,40}(?:"(?P<name>[^"]{0,99})")?\s{0,40}(?P<frame>[^\s()"].*)',
    4096,
)


def is_thread_row(match: re.Match[str] | None) -> bool:
    """
    Return whether a header of a thread is a row of ``info threads``.

    Args:
        match: From :func:`match_header`.
    """
    return match is not None and "row" in match.re.groupindex


def _merge_duplicates(
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
    base, more = sorted(
        (one, other), key=lambda t: -len(t.frames) - len(t.native)
    )
    # Native frames that only the other dump has.
    has_more = _is_python(base.frames) and more.frames != base.frames
    return attrs.evolve(
        base,
        name=base.name or more.name,
        is_main=base.is_main or more.is_main,
        native=base.native or (more.frames if has_more else ()),
    )


Frames = tuple[StackFrame, ...]

# What gdb prints before Python frames, with the script of CPython.
PYTHON_BACKTRACE = "Traceback (most recent call first):"

_HEADERS = (
    header_matcher(
        r"Thread (?P<number>\d{1,9}|N) \((?:Thread 0x[0-9a-f.]{1,19} )?\(?"
        r"(?:LWP|process) (?P<lwp>\d{1,10}|\.\.\.)\)?"
        r'(?: "(?P<name>.{0,99})")?\)?:?'
    ),
    header_matcher(
        r"Thread (?P<number>\d{1,9}|N) \(Thread 0x[0-9a-f.]{1,19}.{0,99}\):?"
    ),
    header_matcher(
        r"\[Switching to [Tt]hread (?:(?P<number>\d{1,9})(?:\.\d{1,9})? \()?"
        r"(?:Thread )?0x[0-9a-f]{1,16} \(LWP (?P<lwp>\d{1,10})\)\)?\]"
    ),
    header_matcher(r"(?:TID|Stack trace of thread) (?P<lwp>\d{1,10}):"),
)
_BEGINNINGS = ("Thread ", "[Switching to ", "TID ", "Stack trace of ")
FRAME_START = late_pattern(r"#(?P<depth>\d{1,6})\s{1,4}(?=\S)")

_GPU_FOCUS = late_pattern(
    r"\[(?:Switching|Current) focus (?:set )?to CUDA kernel "
)
_PROCESS_LINE = late_pattern(
    r"\[Inferior \d{1,4} \(process (\d{1,10})\) detached\]"
    r"|Attaching to process (\d{1,10})\b"
    r"|(?:Attaching to|Detaching from) program: .{0,400}, process (\d{1,10})\b"
)
# Several frames on one line, after pasting has lost the line breaks.
_GLUED_FRAME = late_pattern(r"\s(?=#\d{1,6}\s{1,2}\S)")
_BEFORE_CALL = late_pattern(r"#\d{1,6} (?:0x[0-9a-f.]{1,20}(?: in)? ?)?")
_STRINGS = late_pattern(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\[^\']{1,3})\'')
_INLINED = late_pattern(r" in \S+ inlined from .*$")


# How gdb prints a Python frame, with the script of CPython.
_PYTHON = late_pattern(
    r"Frame 0x[0-9a-f]{1,16}, for file (?P<file>[^,]{1,999}),"
    r" line (?P<line>\d{1,9}), in (?P<name>[^\s(]{1,999})"
)
_PYTHON_LINE = late_pattern(
    r'\s*File "(?P<file>[^"]{1,4096})", line (?P<line>\d{1,9}),'
    r" in (?P<name>\S{1,999})"
)
_MOST_LINES = 64


def parse_threads(found: Iterable[Block]) -> tuple[ThreadStack, ...]:
    """
    Parse the stacks of all threads of a process.

    Args:
        found: The header and the lines of each thread.

    Returns:
        The threads that have a stack.
    """
    blocks = list(found)
    # A stack without a header is that of the current thread.
    rows = (m for m, _ in blocks if m and is_thread_row(m))
    current = next((m for m in rows if m["current"]), None)
    parsed = [
        (match or current, _parse_thread(match or current, lines))
        for match, lines in blocks
    ]
    filled = [(match, thread) for match, thread in parsed if thread.frames]
    if any(match for match, _ in filled):
        # gdb prints the current frame before the list of threads.
        return _merge_duplicates(
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
        A match, with the groups that the header of this kind has.
    """
    text = line.strip()
    if text[:1] == "*" or text[:1].isdigit():
        return match_thread_row(text)
    if not text.startswith(_BEGINNINGS):
        return None
    return next((m for match in _HEADERS if (m := match(text))), None)


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
    return int(match[match.lastindex or 0]) if match else None


def _parse_thread(
    match: re.Match[str] | None, lines: Iterable[str]
) -> ThreadStack:
    known = match.groupdict() if match else {}
    if row := known.get("row"):
        lines = (f"#0  {known['frame']}", *lines)
    frames, native = _parse_stacks(lines)
    lwp = known.get("lwp") or known.get("row_lwp") or ""
    return ThreadStack(
        name=known.get("name") or "",
        thread_id=int(lwp) if lwp.isdecimal() else None,
        frames=frames,
        is_main=(known.get("number") or row) == "1",
        waits_for_gil=is_gil_wait(native or frames),
        native=native,
    )


def _parse_stacks(lines: Iterable[str]) -> tuple[Frames, Frames]:
    """
    Return the longest stack in these lines, and the native one beside it.
    """
    stacks: list[list[StackFrame]] = [[]]
    host = takewhile(lambda line: not is_gpu_focus(line), lines)
    for parts in filter(None, _group_lines(host)):
        match = FRAME_START.match(parts[0])
        if parts[0].strip() == PYTHON_BACKTRACE or (
            match and not int(match["depth"])
        ):
            stacks.append([])
        text = shorten(" ".join(" ".join(parts).split()))
        stacks[-1] += (
            _parse_frame(text) if match else _parse_python_frame(parts)
        )
    # A thread may have been printed twice, as Python and as native code.
    python = max(filter(_is_python, stacks), key=len, default=())
    native = max((s for s in stacks if not _is_python(s)), key=len, default=())
    return (tuple(python), tuple(native)) if python else (tuple(native), ())


def _is_python(frames: Sequence[StackFrame]) -> bool:
    return bool(frames) and not any(frame.is_native for frame in frames)


def _group_lines(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    """
    Group the lines that belong to one frame; a group may be empty.
    """
    parts: list[str] = []
    open_brackets = 0
    for line in _split_glued_frames(lines):
        is_frame = FRAME_START.match(line) is not None
        is_python = (
            _PYTHON_LINE.match(line) or line.strip() == PYTHON_BACKTRACE
        )
        if is_frame or is_python:
            yield parts
            parts = [line]
            open_brackets = _open_brackets(line) if is_frame else 0
        elif 0 < len(parts) < _MOST_LINES and _is_continuation(
            line, parts, open_brackets
        ):
            parts.append(line)
            open_brackets += _open_brackets(line)
        else:
            yield parts
            parts = []
    yield parts


def _is_continuation(
    line: str, parts: Sequence[str], open_brackets: int
) -> bool:
    body = line.strip()
    if FRAME_START.match(parts[0]):
        return body.startswith(("at ", "from ", "(")) or (
            bool(body) and line[:1].isspace() and open_brackets > 0
        )
    # The source code below a Python frame has a deeper indent.
    return len(parts) == 1 and indent_of(line) > indent_of(parts[0])


def _open_brackets(line: str) -> int:
    plain = _STRINGS.sub("", line)
    return plain.count("(") - plain.count(")")


def _split_glued_frames(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        short = shorten(line).rstrip()
        if short.count("#") < 2 or not _GLUED_FRAME.search(short):
            yield (
                short.lstrip() if FRAME_START.match(short.lstrip()) else short
            )
        else:
            yield from map(str.strip, _GLUED_FRAME.split(short))


def _parse_python_frame(parts: Sequence[str]) -> Iterator[StackFrame]:
    if match := _PYTHON_LINE.match(parts[0]):
        frame = make_frame(
            match["name"], match["file"], int(match["line"]), is_native=False
        )
        yield with_code(frame, "".join(parts[1:]))


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


_KERNEL_TITLE = late_pattern(r"\s*Kernel\s+Parent\s+Dev\s+Grid\s+Status\b")
_KERNEL_ROW = late_pattern(
    r"\s*\*?\s*\d{1,9}\s+\S{1,20}\s+(?P<device>\d{1,4})\s+-?\d{1,20}\s+"
    r"\S{1,20}\s+0x[0-9a-fA-F]{1,64}\s+(?P<rest>\(.*)"
)
_KERNEL_SIZE = late_pattern(r"\((\d{1,10}),\s?(\d{1,10}),\s?(\d{1,10})\)\s*")
# The short form of a kernel in documentation.
_KERNEL_PROSE = late_pattern(
    r"\s*\*?\s*Kernel \d{1,9}: (?P<name>\S.*?)"
    r"(?: on device (?P<device>\d{1,4}))?\s*"
)
_KERNEL_FOCUS = late_pattern(
    r"\[(?:Switching focus to|Current focus set to) CUDA kernel (\d{1,9}), "
    r"grid \d{1,20}, .{0,400}?\bdevice (?P<device>\d{1,4}),"
)
_KERNEL_LAUNCH = late_pattern(
    r"\((?P<grid>[\d, ]{1,40})\),\s?\((?P<block>[\d, ]{1,40})\)>>>"
)
_KERNEL_FRAME = late_pattern(
    r"#0\s{1,4}(?:0x[0-9a-f]{1,16} in )?(?P<call>\S.*)"
)


def parse_kernels(text: str) -> tuple[GpuKernel, ...]:
    """
    Parse the running GPU kernels.

    Args:
        text: The output of cuda-gdb, for a process or a core dump.

    Returns:
        The kernels, in the order of the tool.
    """
    lines = [shorten(line).rstrip() for line in text.splitlines()]
    return tuple(_parse_kernel_list(lines)) or tuple(
        dict.fromkeys(_parse_focus(lines))
    )


def _parse_kernel_list(lines: list[str]) -> Iterator[GpuKernel]:
    title: list[str] | None = None
    for line in lines:
        if _KERNEL_TITLE.match(line):
            title = line.split()
        elif title is not None and (match := _KERNEL_ROW.fullmatch(line)):
            yield _parse_kernel(match["rest"], int(match["device"]), title)
        elif (match := _KERNEL_PROSE.fullmatch(line)) and "CUDA" not in line:
            device = match["device"]
            yield GpuKernel(
                name=match["name"][:MOST_NAME],
                device=int(device) if device else None,
            )
        elif line.startswith(("Thread ", "#")):
            title = None


def _parse_kernel(rest: str, device: int, title: list[str]) -> GpuKernel:
    sizes: dict[str, tuple[int, ...]] = {}
    for column in title:
        if column.endswith("Dim") and (match := _KERNEL_SIZE.match(rest)):
            sizes[column] = tuple(map(int, match.groups()))
            rest = rest[match.end() :]
    name = rest.strip()
    if title[-2:] == ["Name", "Args"]:
        name = name.partition(" ")[0]
    return GpuKernel(
        name=name[:MOST_NAME],
        device=device,
        grid=sizes.get("GridDim", ()),
        block=sizes.get("BlockDim", ()),
    )


def _parse_focus(lines: list[str]) -> Iterator[GpuKernel]:
    """
    Parse the kernels in focus, if the tool printed no list.
    """
    device = None
    for line in lines:
        if match := _KERNEL_FOCUS.search(line):
            device = int(match["device"])
        elif device is not None and (frame := _KERNEL_FRAME.match(line)):
            name, _, launch = frame["call"].partition("<<<")
            sizes = _KERNEL_LAUNCH.match(launch)
            yield GpuKernel(
                name=_kernel_name(name.strip())[:MOST_NAME],
                device=device,
                grid=_parse_sizes(sizes["grid"]) if sizes else (),
                block=_parse_sizes(sizes["block"]) if sizes else (),
            )
            device = None


def _kernel_name(call: str) -> str:
    call = call.partition(" at ")[0].removeprefix("void ").removesuffix(" ()")
    found = split_brackets(call)
    return found[0] if found and found[0] else call


def _parse_sizes(text: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in text.replace(" ", "").split(",") if part
    )
