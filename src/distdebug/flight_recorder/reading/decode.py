"""
Decode one dump file (pickle or JSON) in a sandboxed child process.

A pickle is a program, and a few bytes of it can take all memory of a machine.
So this module runs in child processes (see `sandbox`) that have a limit on
their memory, refuse every pickle that asks for code, and may die.

It needs nothing but the standard library.  Requests come as lines of JSON;
each answer is the length of a header, the header in JSON, and the columns.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import stat
import struct
import sys
import zlib

from collections.abc import Callable
from functools import cache
from typing import Any, BinaryIO, NamedTuple

from .clog import is_clog, read_clog
from .extract import (
    KEYS,
    NotADumpError,
    build_columns,
    entry_frames,
    read_header,
    translate_hooks,
)
from .inspector import TAIL_BYTES, is_inspector, read_inspector


# Deeper than any dump, and far from the limits of the interpreter.
_DEPTH_LIMIT = 200


class DamagedError(Exception):
    """
    The bytes are not a complete pickle of plain data.
    """


class LoadResult(NamedTuple):
    """
    Result of reading a pickle.

    Attributes:
        value: The whole value; of a damaged dump, the part that could be read;
            or `None`.

        damage: Why reading stopped early; ``""`` if it did not.
    """

    value: Any
    damage: str


def load_plain_pickle(data: bytes) -> LoadResult:
    """
    Read a pickle of plain data, as far as it is intact.

    Args:
        data: A pickle of protocol 2 or later, made of nothing but `dict`,
            `list`, `tuple`, `str`, `int`, `float`, `bool`, and `None`.

    Returns:
        The value; or the part that could be read, and why reading stopped.
    """
    machine = _PickleMachine(data)
    try:
        return LoadResult(machine.run(), "")
    except DamagedError as exc:
        damage = f"{exc} at byte {machine.file.tell()}"
        return LoadResult(_salvage(machine), damage)


def _demand(is_sound: object, problem: str) -> None:
    if not is_sound:
        raise DamagedError(problem)


class _PickleMachine:
    """
    The stack machine that executes pickles, without opcodes that run code.
    """

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []
        # A dictionary, because a list would have to be as long as its
        # highest index, which may be any number.
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        readers = _argument_readers()
        while opcode := self.file.read(1):
            if opcode == b".":
                return self.pop()

            if (action := _ACTIONS.get(opcode)) is None:
                self.file.seek(-1, os.SEEK_CUR)
                msg = f"opcode {opcode!r}, which plain data does not need,"
                raise DamagedError(msg)

            start = self.file.tell()
            try:
                read = readers.get(opcode)
                argument = read(self.file) if read else None
            except UnicodeDecodeError:
                msg = "a string that is not UTF-8"
                raise DamagedError(msg) from None
            except ValueError:
                self.file.seek(start)
                break
            action(self, argument)

        msg = "the file ends too early"
        raise DamagedError(msg)

    def pop(self) -> Any:
        _demand(self.stack, "nothing to take from the stack")
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_mark(self) -> None:
        is_shallow = len(self.outer_stacks) < _DEPTH_LIMIT
        _demand(is_shallow, "nested too deeply")
        self.outer_stacks.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[Any]:
        _demand(self.outer_stacks, "no mark to go back to")
        items, self.stack = self.stack, self.outer_stacks.pop()
        return items

    def top_of_type(self, kind: type) -> Any:
        is_there = self.stack and type(self.stack[-1]) is kind
        _demand(is_there, f"no {kind.__name__} to fill")
        return self.stack[-1]

    def memoize(self, index: int) -> None:
        _demand(self.stack, "nothing to remember")
        self.memo[index] = self.stack[-1]

    def push_memo(self, index: int) -> None:
        _demand(index in self.memo, f"nothing is remembered as {index}")
        self.stack.append(self.memo[index])

    def push_tuple(self, size: int) -> None:
        items = [self.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(items)))


@cache
def _argument_readers() -> dict[bytes, Callable[[BinaryIO], Any]]:
    """
    Return how to read the argument of each opcode that has one.
    """
    from pickletools import opcodes  # few files need it

    return {x.code.encode("latin-1"): x.arg.reader for x in opcodes if x.arg}


def _append(m: _PickleMachine, _: object) -> None:
    item = m.pop()
    m.top_of_type(list).append(item)


def _appends(m: _PickleMachine, _: object) -> None:
    items = m.pop_to_mark()
    m.top_of_type(list).extend(items)


def _set_item(m: _PickleMachine, _: object) -> None:
    value, key = m.pop(), m.pop()
    _fill_dict(m.top_of_type(dict), [key, value])


def _set_items(m: _PickleMachine, _: object) -> None:
    items = m.pop_to_mark()
    _fill_dict(m.top_of_type(dict), items)


def _fill_dict(target: dict[Any, Any], items: list[Any]) -> None:
    keys = items[::2]
    # Plain data has no other keys; hashing a nested tuple can take forever.
    is_plain = all(k is None or isinstance(k, str | int | float) for k in keys)
    is_sound = is_plain and len(items) % 2 == 0
    _demand(is_sound, "a dictionary with broken keys")
    target.update(zip(keys, items[1::2], strict=True))


_ACTIONS: dict[bytes, Callable[[_PickleMachine, Any], object]] = {
    # Strings, integers, and floats.
    **dict.fromkeys(
        (b"X", b"\x8c", b"\x8d", b"J", b"K", b"M", b"\x8a", b"\x8b", b"G"),
        _PickleMachine.push,
    ),
    b"\x80": lambda _, x: _demand(x <= 5, "a protocol that is not known"),
    b"\x95": lambda *_: None,
    b"(": lambda m, _: m.push_mark(),
    b"}": lambda m, _: m.push({}),
    b"]": lambda m, _: m.push([]),
    b")": lambda m, _: m.push(()),
    b"s": _set_item,
    b"u": _set_items,
    b"a": _append,
    b"e": _appends,
    b"t": lambda m, _: m.push(tuple(m.pop_to_mark())),
    b"\x85": lambda m, _: m.push_tuple(1),
    b"\x86": lambda m, _: m.push_tuple(2),
    b"\x87": lambda m, _: m.push_tuple(3),
    b"N": lambda m, _: m.push(None),
    b"\x88": lambda m, _: m.stack.append(True),
    b"\x89": lambda m, _: m.stack.append(False),
    **dict.fromkeys((b"q", b"r"), _PickleMachine.memoize),
    b"\x94": lambda m, _: m.memoize(len(m.memo)),
    **dict.fromkeys((b"h", b"j"), _PickleMachine.push_memo),
    # Recursive tuples are popped, and recalled from the memo.
    b"0": lambda m, _: m.pop(),
    b"1": lambda m, _: m.pop_to_mark(),
}


def _salvage(machine: _PickleMachine) -> Any:
    """
    Build a dump from the records before the damage.

    Dictionaries and lists are filled from the stack only when they end, so an
    unfinished dump is on the stacks as: the outer container; its keys and
    values; the records so far; the parts of an unfinished record.
    """
    levels = [*machine.outer_stacks, machine.stack]
    container = levels[0][0] if levels[0] else None
    if isinstance(container, list):
        return container + _whole_records(levels[1:])

    if not isinstance(container, dict):
        return None

    items = levels[1] if len(levels) > 1 else []
    keys, values = items[::2], items[1::2]
    if len(levels) > 2 and keys and keys[-1] != "entries":
        # Its value is unfinished.
        keys.pop()

    pairs = dict(container)
    for key, value in zip(keys, values, strict=False):
        if key == "entries" and isinstance(value, list):
            pairs[key] = value + _whole_records(levels[2:])
        elif isinstance(key, str):
            pairs[key] = value

    return pairs


def _whole_records(levels: list[list[Any]]) -> list[Any]:
    is_open = len(levels) > 1
    records = levels[0][:-1] if is_open else [*levels, []][0]
    return [r for r in records if isinstance(r, dict) and r]


_MIB = 1 << 20

# A ring of 20,000 records makes a file of 3 MB.
SIZE_LIMIT = 128 * _MIB

# What genuine dumps take is allowed to each file: 10 to 15 times its size, of
# which gzip leaves a thirtieth, and 10 ms per MB.  More memory than that comes
# out of an allowance.
_MEMORY_PER_BYTE = 20
_MEMORY_PER_PACKED_BYTE = 30 * _MEMORY_PER_BYTE
_MEMORY_MAX = 2048 * _MIB
_SECONDS_BASE = 5
_SECONDS_PER_MIB = 0.5


#: For all processes that decode together, in bytes; one with nothing to do
#: takes 30 MiB.
MEMORY_ALLOWANCE = 512 * _MIB

# Larger ones that took too much memory are not tried by the slow unpickler.
_SLOW_LIMIT = 4 * _MIB


def limit_process(size: int, memory: int) -> bool:
    """
    Limit memory and processor time of this process.

    A process that takes more memory gets a :exc:`MemoryError`; one that takes
    more processor time is ended by the system, without a core file.

    Args:
        size: What it decodes, in bytes.

        memory: The most that it may take, in bytes.

    Returns:
        Whether memory is limited; some systems cannot do that.
    """
    try:
        import resource
    except ImportError:
        return False

    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime + _SECONDS_BASE
    seconds += _SECONDS_PER_MIB * size / _MIB
    _lower_limit(resource.RLIMIT_CPU, int(seconds) + 1)
    _lower_limit(resource.RLIMIT_CORE, 0)
    # Other systems accept the limit, but do not enforce it.
    is_limited = _lower_limit(resource.RLIMIT_AS, min(memory, _MEMORY_MAX))
    return is_limited and sys.platform.startswith("linux")


def _lower_limit(which: int, limit: int) -> bool:
    import resource

    try:
        _, hard_limit = resource.getrlimit(which)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(which, (limit, hard_limit))
    except (OSError, ValueError):
        return False

    return True


Message = bytes | bytearray

# Of the header and of the columns, in bytes.
LENGTHS = struct.Struct("<II")

_HEAD_BYTES = 4096


class UnreadableError(Exception):
    """
    The file looks like a dump, but cannot be read.
    """


class _RefusedError(Exception):
    """
    A pickle asks for code.
    """


class _PlainUnpickler(pickle.Unpickler):
    """
    An unpickler that refuses every import.
    """

    def find_class(self, module: str, name: str) -> Any:
        code = f"{module:.80}.{name:.80}"
        msg = f"it asks for the code {code}, which was refused"
        raise _RefusedError(msg)

    def persistent_load(self, pid: Any) -> Any:
        msg = f"it asks for an object outside ({pid!r:.80}), which was refused"
        raise _RefusedError(msg)


def main() -> None:
    """
    Answer requests until the input ends.
    """
    import gc

    # Nothing here is cyclic, and collecting takes ten times as long as
    # decoding.
    gc.disable()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(answer_request(json.loads(line)))
        sys.stdout.buffer.flush()


def answer_request(request: dict[str, Any]) -> bytes:
    """
    Decode one file.

    Args:
        request: *path*, in which each character stands for a byte; *rows* to
            read stacks instead of columns; and *memory*, its part of the
            allowance in bytes.

    Returns:
        A message; a failure is a message, too.
    """
    failure = "broken"
    try:
        return pack_message(*_decode(**request))
    except NotADumpError as exc:
        failure, reason = "alien", str(exc)
    except UnreadableError as exc:
        reason = str(exc)
    except MemoryError:
        return OUT_OF_MEMORY
    except OSError as exc:
        reason = exc.strerror or str(exc)
    except Exception as exc:  # noqa: BLE001
        # A malicious file must not affect others.
        reason = f"it cannot be decoded: {type(exc).__name__}: {exc}"
    return pack_message({"failure": failure, "reason": reason[:_HEAD_BYTES]})


def pack_message(
    header: dict[str, Any], columns: list[bytes] | None = None
) -> bytes:
    """
    Pack a header and columns into a message.
    """
    head = json.dumps(header).encode()
    # NumPy reads aligned numbers faster.
    head += b" " * (-len(head) % 8)
    body = b"".join(columns or ())
    return b"".join([LENGTHS.pack(len(head), len(body)), head, body])


_NOTHING = "the file is empty"

#: The message about an empty file.
EMPTY = pack_message({"failure": "alien", "reason": _NOTHING})

#: The message about a file that took all memory that its process may have.
OUT_OF_MEMORY = pack_message(
    {
        "failure": "broken",
        "reason": "it takes more memory to decode than a dump of its size may",
    }
)


def _decode(
    path: str,
    rows: list[int] | None = None,
    memory: int = MEMORY_ALLOWANCE,
) -> tuple[dict[str, Any], list[bytes]]:
    file_path = os.fsdecode(path.encode("latin-1"))
    value, damage, is_limited = _load(file_path, memory)
    try:
        header, entries = read_header(value)
    except NotADumpError:
        if damage:
            raise UnreadableError(damage) from None

        raise

    if damage and not entries:
        raise UnreadableError(damage)

    header, entries = translate_hooks(header, entries)
    if isinstance(value, dict) and "inspector" in value:
        header["inspector"] = value["inspector"]
    tables, columns, records = build_columns(entries, strict=not is_limited)
    if rows is not None:
        stacks = [
            entry_frames(records[row]) if 0 <= row < len(records) else []
            for row in rows
        ]
        return {"frames": stacks}, []

    counts = {
        "count": len(records),
        "unreadable": len(entries) - len(records),
        "damage": damage or header.get("damage", ""),
    }
    return {**header, **tables, **counts}, columns


def _load(path: str, memory: int) -> tuple[Any, str, bool]:
    with _open_regular(path) as file:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        size = os.fstat(file.fileno()).st_size
        if head.startswith(b"\x1f\x8b"):
            memory += _MEMORY_PER_PACKED_BYTE * size
            limit_process(SIZE_LIMIT, memory)
            data = _decompress(file)
            head, size = data[:_HEAD_BYTES], len(data)
            return _parse_content(_buffer(data), head, size, memory)

        memory += _MEMORY_PER_BYTE * size
        return _parse_content(file, head, size, memory)


def _open_regular(path: str) -> io.BufferedReader:
    # Opening a pipe or a device may block, or have side effects.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    raw: Any = io.FileIO(os.open(path, flags))
    file = io.BufferedReader(raw, _MIB)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        msg = "it is not a regular file"
        raise NotADumpError(msg)

    return file


def _buffer(data: bytes) -> io.BufferedReader:
    # The unpickler is four times slower without a `peek`.
    return io.BufferedReader(io.BytesIO(data), _MIB)


def _decompress(file: BinaryIO) -> bytes:
    """
    Decompress gzip until its end, an error, or the size limit.
    """
    stream = zlib.decompressobj(wbits=31)
    chunks: list[bytes] = []
    left = SIZE_LIMIT + 1
    data = file.read(_MIB)
    while data and left > 0 and not stream.eof:
        try:
            chunks.append(stream.decompress(data, left))
        except zlib.error:
            break
        left -= len(chunks[-1])
        data = stream.unconsumed_tail or file.read(_MIB)

    return b"".join(chunks)


def _parse_content(
    file: io.BufferedReader, head: bytes, size: int, memory: int
) -> tuple[Any, str, bool]:
    """
    Return the value, the damage, and whether memory was limited.
    """
    if is_inspector(head):
        is_limited = limit_process(TAIL_BYTES, memory)
        return read_inspector(file, size), "", is_limited

    is_pickle = head[:1] == b"\x80"
    is_limited = size <= SIZE_LIMIT and limit_process(size, memory)
    if is_clog(head):
        if size > SIZE_LIMIT:
            msg = "it is larger than any log of calls that can be read"
            raise UnreadableError(msg)
        return read_clog(file), "", is_limited

    problem = _problem_of(head, size)
    if problem == _FOREIGN and is_pickle and is_limited:
        # Only an unpickler finds out whether the file asks for code.
        problem = _unpickle(_buffer(head), len(head)).damage or problem
    if problem:
        raise NotADumpError(problem)

    if not is_pickle:
        return _load_json(file), "", is_limited

    value, damage = (
        _unpickle(file, size) if is_limited else LoadResult(None, "")
    )
    if value is None:
        file.seek(0)
        value, found = load_plain_pickle(file.read())
        damage = damage or found
        if value is None:
            raise UnreadableError(damage)

    return value, damage, is_limited


_FOREIGN = "it is not a Flight Recorder dump"


def _problem_of(head: bytes, size: int) -> str:
    """
    Return why a file cannot be a dump; ``""`` if it may be one.
    """
    if not head:
        return _NOTHING
    if size > SIZE_LIMIT:
        return "it is larger than any dump"
    if head[:1] != b"\x80" and _JSON_HEAD.match(head) is None:
        return "it is neither a pickle nor JSON"
    is_known = any(key.encode() in head for key in KEYS)
    return "" if is_known and not _RAS_HEAD.match(head) else _FOREIGN


# The status of NCCL's RAS, which has keys of dumps, too.
_RAS_HEAD = re.compile(rb'\s*\{\s*"nccl_version"[^{\[]*"communicators')


_JSON_HEAD = re.compile(rb"[\xef\xbb\xbf \t\r\n]*[{\[]")


def _unpickle(file: io.BufferedReader, size: int) -> LoadResult:
    """
    Read a pickle by the fast unpickler; no value if it refuses the pickle.

    Raises:
        MemoryError: It takes too much memory, and is large; a small one may
            just have a damaged index.
    """
    try:
        return LoadResult(_PlainUnpickler(file).load(), "")
    except _RefusedError as exc:
        return LoadResult(None, str(exc))
    except MemoryError:
        if size > _SLOW_LIMIT:
            raise
        return LoadResult(None, "")
    except Exception:  # noqa: BLE001
        # An unpickler may raise anything, and the plain one finds the reason.
        return LoadResult(None, "")


def _load_json(file: io.BufferedReader) -> Any:
    try:
        return json.loads(file.read())
    except RecursionError:
        msg = "its JSON is nested too deeply"
        raise UnreadableError(msg) from None
    except ValueError as exc:
        msg = f"its JSON is broken: {exc}"
        raise UnreadableError(msg) from None
