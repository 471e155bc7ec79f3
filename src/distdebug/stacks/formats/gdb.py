"""
What do ``thread apply all bt`` and its relatives say?

That is gdb of every generation, cuda-gdb, pstack, eu-stack, and coredumpctl.
Frames may be spread over lines, and carry Python's own frames where gdb knows
how to print those.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

import attrs

from ..model import StackFrame, ThreadStack, wants_gil


_ROW = re.compile(
    r"(?P<current>\*)?\s{0,20}(?P<row>\d{1,9})(?:\.\d{1,9})?\s{1,20}"
    r"(?:Thread 0x[0-9a-f]{1,16} )?\(?(?:LWP|process) (?P<row_lwp>\d{1,10})(?!\d)\)?"
    r'\s{0,40}(?:"(?P<name>[^"]{0,99})")?\s{0,40}(?P<frame>[^\s()"].*)'
)
_MOST_ROW = 4096


def row_of(line: str) -> re.Match[str] | None:
    """
    Is this line a row of the table of threads?

    Args:
        line: One line of the output.

    Returns:
        Its number (*row*), its number in the system (*row_lwp*), its *name*,
        its *frame*, and whether it is the *current* one; or ``None``.
    """
    text = line.strip()
    return _ROW.fullmatch(text) if len(text) <= _MOST_ROW else None


def is_row(match: re.Match[str] | None) -> bool:
    """
    Whether a header of a thread is a row of the table.

    Args:
        match: What tells whose stack follows.
    """
    return match is not None and "row" in match.re.groupindex


def is_current(match: re.Match[str] | None) -> bool:
    """
    Whether a row is of the thread that gdb looks at.

    Args:
        match: What tells whose stack follows.
    """
    return is_row(match) and match is not None and bool(match["current"])


def unite(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """
    Which threads are these, each once?

    Args:
        threads: Threads, of which some were told more than once.

    Returns:
        Each with the most that was told of it, in the order in which they
        came first.
    """
    found: dict[object, ThreadStack] = {}
    for number, thread in enumerate(threads):
        key = number if thread.thread_id is None else (thread.thread_id,)
        known = found.get(key)
        found[key] = thread if known is None else _both(known, thread)
    return tuple(found.values())


def _both(one: ThreadStack, other: ThreadStack) -> ThreadStack:
    base, more = sorted((one, other), key=lambda t: -_told(t))
    return attrs.evolve(
        base,
        name=base.name or more.name,
        is_main=base.is_main or more.is_main,
        native=base.native or _natives(base, more),
    )


def _told(thread: ThreadStack) -> int:
    return len(thread.frames) + len(thread.native)


def _natives(base: ThreadStack, more: ThreadStack) -> tuple[StackFrame, ...]:
    """
    What only the other one tells of machine code.
    """
    is_python = not any(frame.is_native for frame in base.frames)
    return more.frames if is_python and more.frames != base.frames else ()


MOST_CODE = 500
MOST_NAME = 4096
# Of one thread.
MOST_FRAMES = 4096
MOST_LINE = 1 << 14

_CODE_OF_C = re.compile(
    r"\.(?:[cC]|cc|cpp|cxx|cu|cuh|[hH]|hh|hpp|inl|rs|[sS])$"
)


def shorten(line: str) -> str:
    """
    How does an endless line look, cut to what can be searched in?

    The middle is left out: names begin a line, and files end it.

    Args:
        line: Any line.

    Returns:
        At most :data:`MOST_LINE` characters of it.
    """
    if len(line) <= MOST_LINE:
        return line
    return line[: MOST_LINE // 2] + line[-MOST_LINE // 2 :]


def split_brackets(text: str) -> tuple[str, str] | None:
    """
    What is in the round brackets that end a text, and what is before them?

    Args:
        text: Such as ``"f(int) (lib.so)"``.

    Returns:
        Such as ``("f(int)", "lib.so")``; ``None`` if the text does not end in
        a pair of brackets.
    """
    if not text.endswith(")"):
        return None

    start = text.rfind("(")
    if ")" in text[start:-1]:
        start = _partner(text)
    return (
        (text[:start].rstrip(), text[start + 1 : -1]) if start >= 0 else None
    )


def _partner(text: str) -> int:
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        if text[index] == ")":
            depth += 1
        elif text[index] == "(":
            depth -= 1
            if not depth:
                return index

    return -1


# Most ranks are at the same lines, so that most frames are told once.
@lru_cache(maxsize=1 << 14)
def make_frame(
    name: str, filename: str, line: int = 0, *, is_native: bool | None = None
) -> StackFrame:
    """
    Which frame do these words mean?

    Args:
        name: The function; endless names are cut, because patterns are
            searched for in them.

        filename: The file or library.

        line: The line; 0 if unknown.

        is_native: Whether it is machine code; ``None`` if the tool does not
            say, so that the kind of file has to tell.

    Returns:
        The frame.
    """
    if is_native is None:
        is_native = looks_native(filename, line)
    return StackFrame(
        name[:MOST_NAME], filename[:MOST_NAME], line, is_native=is_native
    )


def looks_native(filename: str, line: int) -> bool:
    """
    Is this a place in machine code, if the tool does not say?

    Args:
        filename: The file or library.

        line: The line; 0 if unknown.

    Returns:
        Whether it looks like that.
    """
    if line:
        return bool(_CODE_OF_C.search(filename[-8:]))
    return bool(filename) and not filename.endswith((".py", ".pyc", ">"))


def with_code(
    lines: Iterable[tuple[str, StackFrame | None]],
) -> Iterator[StackFrame]:
    """
    Which frames are these, each with the code that stands below it?

    Args:
        lines: The lines of a stack, each with the frame that it means, if it
            means one.

    Returns:
        The frames.  Of the lines that mean none, the one right below a frame
        of Python, and deeper than that, is its code.
    """
    frame: StackFrame | None = None
    depth = 0
    for line, meant in lines:
        own = len(line) - len(line.lstrip())
        if frame is not None:
            is_code = meant is None and own > depth and not frame.is_native
            code = line.strip()[:MOST_CODE] if is_code else ""
            yield attrs.evolve(frame, code=code) if code else frame
        frame, depth = meant, own
    if frame is not None:
        yield frame


Frames = tuple[StackFrame, ...]

# What gdb writes of Python, if it can.
PY_BT = "Traceback (most recent call first):"

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
FRAME = re.compile(r"#(?P<depth>\d{1,6})\s{1,4}(?=\S)")

_GPU = re.compile(r"\[(?:Switching|Current) focus (?:set )?to CUDA kernel ")
_PROCESS = re.compile(
    r"\[Inferior \d{1,4} \(process (\d{1,10})\) detached\]"
    r"|Attaching to process (\d{1,10})\b"
    r"|Detaching from program: .{0,400}, process (\d{1,10})\b"
    r"|(?:Attaching to program: .{0,400}, process (\d{1,10}))\b"
)
# Several frames on what was several lines before somebody pasted them.
_GLUED = re.compile(r"\s(?=#\d{1,6}\s{1,2}\S)")
_BEFORE_CALL = re.compile(r"#\d{1,6} (?:0x[0-9a-f.]{1,20}(?: in)? ?)?")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\[^\']{1,3})\'')
_INLINED = re.compile(r" in \S+ inlined from .*$")
_LIBRARY = re.compile(r"(?P<lib>\S+)(?: \+ 0x[0-9a-f]+)?$")
# How gdb prints a Python frame, if it has the script that came with Python.
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
    Which threads are in this output of gdb?

    Args:
        text: What gdb or cuda-gdb printed.

    Returns:
        Its threads, in the order of the tool; *thread_id* is that of the
        operating system, and the name is the one that the kernel knows.
    """
    found: list[tuple[re.Match[str] | None, list[str]]] = []
    for line in text.splitlines():
        if match := header_of(line):
            found.append((match, []))
        elif found:
            found[-1][1].append(line)
        elif looks_at_gpu(line) or FRAME.match(line):
            found.append((None, [line]))
    return read_threads(found)


def read_threads(
    found: Iterable[tuple[re.Match[str] | None, list[str]]],
) -> tuple[ThreadStack, ...]:
    """
    What are the threads of a process doing?

    Args:
        found: What to give to :func:`read_thread`, for each thread.

    Returns:
        Those that have a stack.
    """
    blocks = [(match, list(lines)) for match, lines in found]
    # The stack without a name is of the thread that gdb looks at.
    current = next((m for m, _ in blocks if is_current(m)), None)
    seen = [
        (match or current, read_thread(match or current, lines))
        for match, lines in blocks
    ]
    filled = [(match, thread) for match, thread in seen if thread.frames]
    if any(match for match, _ in filled):
        # Before the threads comes the frame at which gdb stands.
        return unite(
            thread
            for match, thread in filled
            if match or len(thread.frames) > 1
        )
    if len(filled) == 1:
        # If it was not told otherwise, that is the main thread.
        return (attrs.evolve(filled[0][1], is_main=True),)
    return tuple(thread for _, thread in filled)


def header_of(line: str) -> re.Match[str] | None:
    """
    Does this line begin the stack of a thread?

    Args:
        line: One line of the output.

    Returns:
        What to give to :func:`read_thread`, or ``None``.
    """
    text = line.strip()
    if text[:1] == "*" or text[:1].isdigit():
        return row_of(text)
    if len(text) > _MOST_HEADER or not text.startswith(_BEGINNINGS):
        return None
    return next((m for h in _HEADERS if (m := h.fullmatch(text))), None)


def looks_at_gpu(line: str) -> bool:
    """
    Does cuda-gdb turn from the process to its GPU?

    Args:
        line: One line of its output.

    Returns:
        Whether the frames that follow are of a kernel.
    """
    return "CUDA kernel" in line and _GPU.search(line[:400]) is not None


def process_id(line: str) -> int | None:
    """
    Which process does gdb speak of in this line?

    Args:
        line: One line of its output.

    Returns:
        The number, or ``None``.
    """
    match = _PROCESS.search(line)
    number = next((g for g in match.groups() if g), "") if match else ""
    return int(number) if number else None


def read_thread(
    match: re.Match[str] | None, lines: Iterable[str]
) -> ThreadStack:
    """
    What is this thread doing?

    Args:
        match: What *header_of* returned; ``None`` if there was no header.

        lines: The lines that follow.

    Returns:
        The thread.
    """
    number, lwp, name = _who(match)
    if match is not None and is_row(match):
        lines = (f"#0  {match['frame']}", *lines)
    frames, native = _stacks(lines)
    return ThreadStack(
        name=name,
        thread_id=lwp,
        frames=frames,
        is_main=number == "1",
        waits_for_gil=wants_gil(native or frames),
        native=native,
    )


def _who(match: re.Match[str] | None) -> tuple[str, int | None, str]:
    if match is None:
        return "", None, ""

    groups = match.groupdict()
    lwp = groups.get("lwp") or groups.get("row_lwp") or ""
    return (
        groups.get("number") or groups.get("row") or "",
        int(lwp) if lwp.isdecimal() else None,
        groups.get("name") or "",
    )


def _stacks(lines: Iterable[str]) -> tuple[Frames, Frames]:
    """
    The longest stack among these lines, and the native one beside it.
    """
    stacks: list[list[StackFrame]] = [[]]
    host = takewhile(lambda line: not looks_at_gpu(line), lines)
    for parts in _statements(host):
        match = FRAME.match(parts[0])
        if parts[0].strip() == PY_BT or (match and not int(match["depth"])):
            stacks.append([])
        stacks[-1] += _frame(_joined(parts)) if match else _python(parts)
    # Of a thread that was shown twice, as Python and as machine code.
    python = max(filter(_is_python, stacks), key=len, default=())
    native = max((s for s in stacks if not _is_python(s)), key=len, default=())
    found = (python, native) if python else (native, ())
    return tuple(found[0]), tuple(found[1])


def _is_python(frames: Sequence[StackFrame]) -> bool:
    return bool(frames) and not any(frame.is_native for frame in frames)


def _statements(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    """
    Put the lines together that belong to one frame.
    """
    parts: list[str] = []
    unclosed = 0
    for line in _unglued(lines):
        is_frame = FRAME.match(line) is not None
        if is_frame or _PYTHON_LINE.match(line) or line.strip() == PY_BT:
            if parts:
                yield parts
            parts, unclosed = [line], _unclosed(line) if is_frame else 0
        elif 0 < len(parts) < _MOST_LINES and _belongs(line, parts, unclosed):
            parts.append(line)
            unclosed += _unclosed(line)
        else:
            if parts:
                yield parts
            parts = []
    if parts:
        yield parts


def _belongs(line: str, parts: Sequence[str], unclosed: int) -> bool:
    if FRAME.match(parts[0]):
        return _continues(line, unclosed)
    # The code of a line of Python stands deeper than the line.
    return len(parts) == 1 and _depth(line) > _depth(parts[0])


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _unclosed(line: str) -> int:
    plain = _STRINGS.sub("", line)
    return plain.count("(") - plain.count(")")


def _continues(line: str, unclosed: int) -> bool:
    body = line.strip()
    if body.startswith(("at ", "from ", "(")):
        return True
    return bool(body) and line[:1].isspace() and unclosed > 0


def _unglued(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        short = shorten(line).rstrip()
        if short.count("#") < 2 or not _GLUED.search(short):
            yield short.lstrip() if FRAME.match(short.lstrip()) else short
        else:
            yield from map(str.strip, _GLUED.split(short))


def _joined(parts: Sequence[str]) -> str:
    return shorten(" ".join(" ".join(parts).split()))


def _python(parts: Sequence[str]) -> Iterator[StackFrame]:
    if match := _PYTHON_LINE.match(parts[0]):
        frame = make_frame(
            match["name"], match["file"], int(match["line"]), is_native=False
        )
        code = "".join(parts[1:]).strip()[:MOST_CODE]
        yield attrs.evolve(frame, code=code) if code else frame


def _frame(text: str) -> Iterator[StackFrame]:
    if match := _PYTHON.search(text):
        yield make_frame(
            match["name"], match["file"], int(match["line"]), is_native=False
        )
        return

    body = _BEFORE_CALL.sub("", text, count=1)
    call, filename, line = _place(_STRINGS.sub('""', body).strip())
    name = _function(call)
    if name:
        yield make_frame(name, filename, line, is_native=True)


def _place(text: str) -> tuple[str, str, int]:
    """
    The call, and the file and line, or library, that follow it.
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


def _function(call: str) -> str:
    if call.startswith("<") and call.endswith(">"):
        return call
    found = split_brackets(call)
    if found is None:
        return call
    name, inside = found
    return name or f"({inside})"
