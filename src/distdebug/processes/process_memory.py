"""
Read the environment of a process as it is now, from its memory.

``/proc/PID/environ`` shows the memory where the kernel put the environment
when the process started.  Changing the process title overwrites it, and
variables set later are not there.  So ``environ`` of the C library is looked
up by its ELF symbol; ``/proc/PID/environ`` is the fallback.
"""

from __future__ import annotations

import os
import re
import struct

from collections.abc import Iterable, Iterator
from itertools import takewhile
from operator import itemgetter

import attrs

from .procfs import (
    MemoryReader,
    open_memory,
    read_c_string,
    read_items,
    read_link,
    read_proc,
)


# A process with torch and CUDA has some 5,000 lines of 100 bytes.
_MAX_MAPS_BYTES = 1 << 23
# glibc up to 2.33 (libc-2.31.so) and later (libc.so.6), and musl.
_C_LIBRARY = re.compile(
    rb"/(?:libc(?:-[\d.]+)?\.so(?:\.6)?|ld-musl-[\w-]+\.so\.1)$"
)
_ADDRESS = re.compile(rb"[0-9a-f]{1,16}")
_TORCH_LIBRARY = re.compile(rb"/libtorch(?:_cpu|_python|_cuda|_hip)?\.so")


@attrs.frozen(kw_only=True)
class Maps:
    """
    Loaded images of a process.

    Attributes:
        images: Start addresses of the program and the C library, in the order
            in which the loader resolves a symbol.

        has_torch: Whether torch is loaded.
    """

    images: tuple[int, ...] = ()
    has_torch: bool = False


def read_maps(pid: int, root: str = "/proc") -> Maps | None:
    """
    Return loaded images of a process; ``None`` if they may not be read.

    Args:
        root: Mount point of procfs.
    """
    data = read_proc(f"{root}/{pid}/maps", limit=_MAX_MAPS_BYTES)
    if data is None:
        return None

    program = read_link(f"{root}/{pid}/exe").encode(errors="surrogateescape")
    starts: dict[str, int] = {}
    for line in data.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[2] == b"00000000":
            kind = _image_kind(fields[5], program)
            begin = _ADDRESS.match(fields[0])
            if kind and begin:
                starts.setdefault(kind, int(begin[0], 16))

    images = [starts[kind] for kind in ("program", "libc") if kind in starts]
    return Maps(
        images=tuple(images), has_torch=_TORCH_LIBRARY.search(data) is not None
    )


def _image_kind(path: bytes, program: bytes) -> str:
    if path == program:
        return "program"
    return (
        "libc" if _C_LIBRARY.search(path.removesuffix(b" (deleted)")) else ""
    )


_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_POINTER = struct.Struct("<Q")

_ELF_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little end first
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 4, 5, 6, 0x6FFFFEF5

# Larger than any valid table; memory of the process is not trusted.
_MAX_SEGMENTS = 64
_MAX_ENTRIES = 256
_MAX_CHAIN = 4096
_PAGE = 4096


def find_symbol(memory: MemoryReader, start: int, names: Iterable[str]) -> int:
    """
    Return the address of the first of some symbols that an image defines.

    Args:
        memory: Memory of the process.

        start: Start address of the image.

        names: Symbol names, in order of preference.

    Returns:
        The address; 0 if the image defines none of them.
    """
    shift, dynamic = _find_dynamic(memory, start)
    entries = read_items(memory, _DYNAMIC_ENTRY, dynamic, _MAX_ENTRIES)
    # The section ends in an empty entry.
    tables: dict[int, int] = dict(takewhile(itemgetter(0), entries))
    if not {_DT_STRTAB, _DT_SYMTAB} <= tables.keys():
        return 0

    # glibc relocates these offsets to addresses on load; musl does not.
    for kind in (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH):
        if tables.get(kind, start) < start:
            tables[kind] += shift

    for name in names:
        for index in _symbol_candidates(memory, tables, name):
            value = _symbol_value(memory, tables, index, name)
            if value:
                return shift + value
    return 0


def _find_dynamic(memory: MemoryReader, start: int) -> tuple[int, int]:
    """
    Return the load offset of an image, and the address of its dynamic section.
    """
    data = memory(start, _ELF_HEADER.size)
    if len(data) < _ELF_HEADER.size or not data.startswith(_ELF_MAGIC):
        return 0, 0

    header = _ELF_HEADER.unpack(data)
    offset, count = header[5], min(header[10], _MAX_SEGMENTS)
    segments = read_items(memory, _PROGRAM_HEADER, start + offset, count)
    linked_at = [x[3] for x in segments if x[0] == _PT_LOAD]
    dynamic = [x[3] for x in segments if x[0] == _PT_DYNAMIC]
    if not linked_at or not dynamic:
        return 0, 0

    shift = start - min(linked_at) // _PAGE * _PAGE
    return shift, shift + dynamic[0]


def _symbol_candidates(
    memory: MemoryReader, tables: dict[int, int], name: str
) -> Iterator[int]:
    """
    Yield indices of symbols whose hash matches a name, from either hash table.
    """
    if _DT_GNU_HASH in tables:
        return _lookup_gnu_hash(memory, tables[_DT_GNU_HASH], name.encode())
    if _DT_HASH in tables:
        return _lookup_sysv_hash(memory, tables[_DT_HASH], name.encode())
    return iter(())


def _lookup_gnu_hash(
    memory: MemoryReader, at: int, name: bytes
) -> Iterator[int]:
    value = 5381
    for char in name:
        value = (value * 33 + char) & 0xFFFFFFFF

    buckets, first, words = _read_words(memory, at, 3)
    if not buckets:
        return
    table = at + 16 + 8 * words
    (index,) = _read_words(memory, table + 4 * (value % buckets), 1)
    if index < first:
        return

    chain = table + 4 * buckets
    for slot in range(index, index + _MAX_CHAIN):
        (found,) = _read_words(memory, chain + 4 * (slot - first), 1)
        if found | 1 == value | 1:
            yield slot
        if found & 1:  # the last of its chain
            return


def _lookup_sysv_hash(
    memory: MemoryReader, at: int, name: bytes
) -> Iterator[int]:
    value = 0
    for char in name:
        value = (value << 4) + char
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF

    (buckets,) = _read_words(memory, at, 1)
    if not buckets:
        return
    (index,) = _read_words(memory, at + 8 + 4 * (value % buckets), 1)
    for _ in range(_MAX_CHAIN):
        if not index:
            return
        yield index
        (index,) = _read_words(memory, at + 8 + 4 * (buckets + index), 1)


def _symbol_value(
    memory: MemoryReader, tables: dict[int, int], index: int, name: str
) -> int:
    place = tables[_DT_SYMTAB] + _SYMBOL.size * index
    for at, _, _, section, value, _ in read_items(memory, _SYMBOL, place, 1):
        found = read_c_string(memory, tables[_DT_STRTAB] + at, limit=64)
        # Section 0 (SHN_UNDEF): another image defines the symbol.
        if section and found == name:
            return int(value)
    return 0


def _read_words(
    memory: MemoryReader, address: int, count: int
) -> tuple[int, ...]:
    data = memory(address, 4 * count).ljust(4 * count, b"\0")
    return struct.unpack(f"<{count}I", data)


# A program that uses the variable has its own copy (copy relocation), which
# the C library uses too; so the program is searched first.
_ENVIRON_SYMBOLS = ("environ", "__environ", "_environ")

_MAX_VARIABLES = 4096
_MAX_VARIABLE_BYTES = 1 << 15
_MAX_ENVIRON_BYTES = 1 << 20


def read_environ(
    pid: int, root: str = "/proc", *, maps: Maps | None = None
) -> tuple[dict[str, str], str]:
    """
    Return the environment of a process, and its source.

    Values may be long and hold anything: the process is not trusted.

    Args:
        root: Mount point of procfs.

        maps: Its loaded images, if read already.

    Returns:
        The variables; and ``"memory"`` (as they are now), ``"environ"`` (as
        they were when it started), or ``""`` if they may not be read.
    """
    maps = maps or read_maps(pid, root)
    if maps is not None and maps.images:
        with open_memory(pid, root) as memory:
            variables = _parse_memory(memory, maps.images)
        if variables:
            return variables, "memory"

    data = read_proc(f"{root}/{pid}/environ", limit=_MAX_ENVIRON_BYTES)
    variables = _parse_variables(
        (data or b"").decode(errors="replace").split("\0")
    )
    return variables, "environ" if variables else ""


def _parse_memory(
    memory: MemoryReader, images: tuple[int, ...]
) -> dict[str, str]:
    for start in images:
        address = find_symbol(memory, start, _ENVIRON_SYMBOLS)
        if address:
            ((table,),) = read_items(memory, _POINTER, address, 1) or [(0,)]
            return _parse_variables(_read_strings(memory, table))
    return {}


def _read_strings(memory: MemoryReader, table: int) -> list[str]:
    strings: list[str] = []
    left = _MAX_ENVIRON_BYTES
    for (address,) in read_items(memory, _POINTER, table, _MAX_VARIABLES):
        if not address or left <= 0:
            break
        limit = min(left, _MAX_VARIABLE_BYTES)
        strings.append(read_c_string(memory, address, limit=limit))
        left -= len(strings[-1])
    return strings


def _parse_variables(strings: list[str]) -> dict[str, str]:
    pairs = (text.partition("=") for text in strings)
    return {
        os.fsdecode(name): value
        for name, sign, value in pairs
        if sign and name
    }
