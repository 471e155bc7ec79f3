"""
Which environment does a process have?

``/proc/PID/environ`` shows where the kernel put it when the process started.
Changing the title overwrites that place, and variables that were set since are
not there.  The C library knows better.
"""

from __future__ import annotations

import os
import re
import struct

from collections.abc import Iterable, Iterator

import attrs

from .procfs import Memory, open_memory, read_c_string, read_link, read_proc


# A process with torch and CUDA has some 5,000 lines of 100 characters.
_MOST = 1 << 23
# glibc up to 2.33 (libc-2.31.so) and later (libc.so.6), and musl.
_LIBC = re.compile(
    rb"/(?:libc(?:-[\d.]+)?\.so(?:\.6)?|ld-musl-[\w-]+\.so\.1)$"
)
_ADDRESS = re.compile(rb"[0-9a-f]{1,16}")
_TORCH = re.compile(rb"/libtorch(?:_cpu|_python|_cuda|_hip)?\.so")


@attrs.frozen(kw_only=True)
class Maps:
    """
    What of the memory of a process matters here.

    Attributes:
        images: Where the program and the C library begin, in the order in
            which the loader looks for a name in them.

        has_torch: Whether torch is loaded.
    """

    images: tuple[int, ...] = ()
    has_torch: bool = False


def read_maps(pid: int, root: str = "/proc") -> Maps | None:
    """
    What is mapped into a process?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

    Returns:
        What matters of it; ``None`` if that may not be read.
    """
    data = read_proc(f"{root}/{pid}/maps", limit=_MOST)
    if data is None:
        return None

    program = read_link(f"{root}/{pid}/exe").encode(errors="surrogateescape")
    starts: dict[str, int] = {}
    for line in data.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[2] == b"00000000":
            kind = _kind(fields[5], program)
            begin = _ADDRESS.match(fields[0])
            if kind and begin:
                starts.setdefault(kind, int(begin[0], 16))

    images = [starts[kind] for kind in ("program", "libc") if kind in starts]
    return Maps(
        images=tuple(images), has_torch=_TORCH.search(data) is not None
    )


def _kind(path: bytes, program: bytes) -> str:
    if path == program:
        return "program"
    return "libc" if _LIBC.search(path.removesuffix(b" (deleted)")) else ""


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little end first
_LOAD, _DYNAMIC = 1, 2
_HASH, _STRINGS, _SYMBOLS, _GNU_HASH = 4, 5, 6, 0x6FFFFEF5

# What no honest table exceeds; the process may show anything.
_MOST_SEGMENTS = 64
_MOST_ENTRIES = 256
_LONGEST_CHAIN = 4096
_PAGE = 4096


def find_symbol(memory: Memory, start: int, names: Iterable[str]) -> int:
    """
    Where does an image define one of these names?

    Args:
        memory: The memory of the process.

        start: Where the image begins.

        names: What the variable may be called; the first that is found wins.

    Returns:
        Its address; 0 if the image does not define it.
    """
    shift, dynamic = _dynamic(memory, start)
    tables = dict(_entries(memory, dynamic)) if dynamic else {}
    if not {_STRINGS, _SYMBOLS} <= tables.keys():
        return 0

    # glibc turns offsets into addresses when it loads an image; musl leaves
    # them.
    for kind in {_HASH, _STRINGS, _SYMBOLS, _GNU_HASH} & tables.keys():
        if tables[kind] < start:
            tables[kind] += shift

    for name in names:
        for index in _candidates(memory, tables, name):
            value = _value(memory, tables, index, name)
            if value:
                return shift + value
    return 0


def _dynamic(memory: Memory, start: int) -> tuple[int, int]:
    """
    How far is the image from where it was linked, and where are its tables?
    """
    data = memory(start, _HEADER.size)
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        return 0, 0

    header = _HEADER.unpack(data)
    offset, count = header[5], min(header[10], _MOST_SEGMENTS)
    table = memory(start + offset, _SEGMENT.size * count)
    table = table[: len(table) // _SEGMENT.size * _SEGMENT.size]
    segments = [(x[0], x[3]) for x in _SEGMENT.iter_unpack(table)]
    linked_at = [address for kind, address in segments if kind == _LOAD]
    dynamic = [address for kind, address in segments if kind == _DYNAMIC]
    if not linked_at or not dynamic:
        return 0, 0

    shift = start - min(linked_at) // _PAGE * _PAGE
    return shift, shift + dynamic[0]


def _entries(memory: Memory, address: int) -> Iterator[tuple[int, int]]:
    data = memory(address, _ENTRY.size * _MOST_ENTRIES)
    whole = len(data) // _ENTRY.size * _ENTRY.size
    for tag, value in _ENTRY.iter_unpack(data[:whole]):
        if tag == 0:
            return
        yield tag, value


def _candidates(
    memory: Memory, tables: dict[int, int], name: str
) -> Iterator[int]:
    """
    Which symbols may have this name, by whichever table of hashes is there?
    """
    if _GNU_HASH in tables:
        return _by_gnu_hash(memory, tables[_GNU_HASH], name.encode())
    if _HASH in tables:
        return _by_old_hash(memory, tables[_HASH], name.encode())
    return iter(())


def _by_gnu_hash(memory: Memory, at: int, name: bytes) -> Iterator[int]:
    value = 5381
    for char in name:
        value = (value * 33 + char) & 0xFFFFFFFF

    buckets, first, words = _words(memory, at, 3)
    if not buckets:
        return
    table = at + 16 + 8 * words
    (index,) = _words(memory, table + 4 * (value % buckets), 1)
    if index < first:
        return

    chain = table + 4 * buckets
    for place in range(index, index + _LONGEST_CHAIN):
        (found,) = _words(memory, chain + 4 * (place - first), 1)
        if found | 1 == value | 1:
            yield place
        if found & 1:  # the last of its chain
            return


def _by_old_hash(memory: Memory, at: int, name: bytes) -> Iterator[int]:
    value = 0
    for char in name:
        value = (value << 4) + char
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF

    (buckets,) = _words(memory, at, 1)
    if not buckets:
        return
    (index,) = _words(memory, at + 8 + 4 * (value % buckets), 1)
    for _ in range(_LONGEST_CHAIN):
        if not index:
            return
        yield index
        (index,) = _words(memory, at + 8 + 4 * (buckets + index), 1)


def _value(
    memory: Memory, tables: dict[int, int], index: int, name: str
) -> int:
    data = memory(tables[_SYMBOLS] + _SYMBOL.size * index, _SYMBOL.size)
    if len(data) < _SYMBOL.size:
        return 0

    at, _, _, section, value, _ = _SYMBOL.unpack(data)
    found = read_c_string(memory, tables[_STRINGS] + at, limit=64)
    # Without a section, it is a name that the image wants and another has.
    return value if section and found == name else 0


def _words(memory: Memory, address: int, count: int) -> tuple[int, ...]:
    data = memory(address, 4 * count).ljust(4 * count, b"\0")
    return struct.unpack(f"<{count}I", data)


# A program that uses the variable owns it, and the C library looks there;
# that is why programs come first.
_NAMES = ("environ", "__environ", "_environ")

_MOST_VARIABLES = 4096
_LONGEST = 1 << 15
_ENVIRON_MOST = 1 << 20


def read_environ(
    pid: int, root: str = "/proc", *, maps: Maps | None = None
) -> tuple[dict[str, str], str]:
    """
    Which environment does a process have?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

        maps: What is mapped into it, if that is known already.

    Returns:
        Its variables; and how they were learned, ``"memory"`` (as they are
        now), ``"environ"`` (as they were when it started), or ``""`` if they
        may not be read.  What it shows is not to be trusted: values may be
        long, and hold anything.
    """
    maps = maps or read_maps(pid, root)
    if maps is not None and maps.images:
        with open_memory(pid, root) as memory:
            variables = _from_memory(memory, maps.images)
        if variables:
            return variables, "memory"

    data = read_proc(f"{root}/{pid}/environ", limit=_ENVIRON_MOST)
    variables = _parse((data or b"").decode(errors="replace").split("\0"))
    return variables, "environ" if variables else ""


def _from_memory(memory: Memory, images: tuple[int, ...]) -> dict[str, str]:
    for start in images:
        address = find_symbol(memory, start, _NAMES)
        if address:
            (table,) = _pointers(memory, address, 1) or (0,)
            return _parse(_strings(memory, table))
    return {}


def _strings(memory: Memory, table: int) -> list[str]:
    strings: list[str] = []
    left = _ENVIRON_MOST
    for address in _pointers(memory, table, _MOST_VARIABLES):
        if not address or left <= 0:
            break
        strings.append(
            read_c_string(memory, address, limit=min(left, _LONGEST))
        )
        left -= len(strings[-1])
    return strings


def _pointers(memory: Memory, address: int, count: int) -> tuple[int, ...]:
    data = memory(address, 8 * count)
    return struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])


def _parse(strings: list[str]) -> dict[str, str]:
    pairs = (text.partition("=") for text in strings)
    return {
        os.fsdecode(name): value
        for name, sign, value in pairs
        if sign and name
    }
