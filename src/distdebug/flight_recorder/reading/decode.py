"""
What does one dump file hold?

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
import stat
import struct
import sys
import zlib

from typing import Any, BinaryIO

from .extract import KEYS, NotADumpError, describe, frames_of, tabulate
from .unpickle import SIZE_LIMIT, limit_process, load_plain


__all__ = ["LENGTHS", "Message", "UnreadableError", "answer", "main", "pack"]

Message = bytes | bytearray

# Of the header and of the columns, in bytes.
LENGTHS = struct.Struct("<II")

_NOT_A_DUMP = "it is not a Flight Recorder dump"
_TOO_LARGE = "it is larger than any dump"

_HEAD = 4096
_MIB = 1 << 20


class UnreadableError(Exception):
    """
    The file looks like a dump, but nothing can be made of it.
    """


class _RefusedError(Exception):
    """
    A pickle asks for something that is not data.
    """


class _PlainUnpickler(pickle.Unpickler):
    """
    Plain data does not import anything, so nothing is ever imported.
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
    Answer requests until there are no more.
    """
    import gc

    # Nothing here is cyclic, and collecting takes ten times as long as
    # decoding.
    gc.disable()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(answer(json.loads(line)))
        sys.stdout.buffer.flush()


def answer(request: dict[str, Any]) -> bytes:
    """
    Decode one file.

    Args:
        request: *path*, in which each character stands for a byte; and, if
            stacks are wanted instead of columns, *rows*.

    Returns:
        A message; a failure is a message, too.
    """
    try:
        header, columns = _decode(**request)
    except NotADumpError as exc:
        return pack({"failure": "alien", "reason": str(exc)})
    except UnreadableError as exc:
        return pack({"failure": "broken", "reason": str(exc)})
    except MemoryError:
        reason = "it takes more memory to decode than a dump of its size may"
        return pack({"failure": "broken", "reason": reason})
    except OSError as exc:
        return pack({"failure": "broken", "reason": exc.strerror or str(exc)})
    except Exception as exc:  # noqa: BLE001
        # Whatever a hostile file does, it must cost no other file.
        reason = f"it cannot be decoded: {type(exc).__name__}: {exc}"
        return pack({"failure": "broken", "reason": reason[:_HEAD]})
    return pack(header, columns)


def pack(header: dict[str, Any], columns: list[bytes] | None = None) -> bytes:
    """
    Make a message of a header and columns.
    """
    head = json.dumps(header).encode()
    # NumPy reads aligned numbers faster.
    head += b" " * (-len(head) % 8)
    body = b"".join(columns or ())
    return b"".join([LENGTHS.pack(len(head), len(body)), head, body])


def _decode(
    path: str, rows: list[int] | None = None
) -> tuple[dict[str, Any], list[bytes]]:
    value, damage, is_limited = _load(os.fsdecode(path.encode("latin-1")))
    try:
        header, entries = describe(value)
    except NotADumpError:
        if damage:
            raise UnreadableError(damage) from None

        raise

    if damage and not entries:
        raise UnreadableError(damage)

    tables, columns, kept = tabulate(entries, strict=not is_limited)
    if rows is not None:
        stacks = [
            frames_of(kept[row]) if 0 <= row < len(kept) else []
            for row in rows
        ]
        return {"frames": stacks}, []

    counts = {
        "count": len(kept),
        "unreadable": len(entries) - len(kept),
        "damage": damage,
    }
    return {**header, **tables, **counts}, columns


def _load(path: str) -> tuple[Any, str, bool]:
    with _open_regular(path) as file:
        head = file.peek(_HEAD)[:_HEAD]
        size = os.fstat(file.fileno()).st_size
        if head.startswith(b"\x1f\x8b"):
            limit_process(SIZE_LIMIT)
            data = _inflate(file)
            return _load_from(_buffered(data), data[:_HEAD], len(data))

        return _load_from(file, head, size)


def _open_regular(path: str) -> io.BufferedReader:
    # A pipe or device of that name would block, or worse.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    raw: Any = io.FileIO(os.open(path, flags))
    file = io.BufferedReader(raw, _MIB)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        msg = "it is not a regular file"
        raise NotADumpError(msg)

    return file


def _buffered(data: bytes) -> io.BufferedReader:
    # The unpickler is four times slower without a `peek`.
    return io.BufferedReader(io.BytesIO(data), _MIB)


def _inflate(file: BinaryIO) -> bytes:
    """
    Decompress, as far as the file is whole and of a sane size.
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


def _load_from(
    file: io.BufferedReader, head: bytes, size: int
) -> tuple[Any, str, bool]:
    """
    Return the value, why it is not whole, and whether memory was limited.
    """
    if not head:
        msg = "the file is empty"
        raise NotADumpError(msg)

    if size > SIZE_LIMIT:
        raise NotADumpError(_TOO_LARGE)

    is_limited = limit_process(size)
    if head[0] == 0x80:
        if not _has_keys(head):
            # Asking for code is worth mentioning, but it takes an unpickler.
            refusal = _refusal(head) if is_limited else ""
            raise NotADumpError(refusal or _NOT_A_DUMP)

        return *_load_pickle(file, is_limited=is_limited), is_limited

    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}:
        if not _has_keys(head):
            raise NotADumpError(_NOT_A_DUMP)

        return _load_json(file), "", is_limited

    msg = "it is neither a pickle nor JSON"
    raise NotADumpError(msg)


def _has_keys(head: bytes) -> bool:
    return any(key.encode() in head for key in KEYS)


def _refusal(head: bytes) -> str:
    """
    Why is that not a pickle of plain data, judging by its beginning?
    """
    try:
        _PlainUnpickler(_buffered(head)).load()
    except _RefusedError as exc:
        return str(exc)
    except Exception:  # noqa: BLE001
        # It ends in the middle, and need not be a pickle at all.
        return ""

    return ""


def _load_pickle(
    file: io.BufferedReader, *, is_limited: bool
) -> tuple[Any, str]:
    damage = ""
    if is_limited:
        try:
            return _PlainUnpickler(file).load(), ""
        except _RefusedError as exc:
            damage = str(exc)
        except Exception:  # noqa: BLE001, S110
            # Unpicklers raise anything; the other one says what is wrong.
            pass
        file.seek(0)

    value, found = load_plain(file.read())
    if value is None:
        raise UnreadableError(damage or found)

    return value, damage or found


def _load_json(file: io.BufferedReader) -> Any:
    try:
        return json.loads(file.read())
    except RecursionError:
        msg = "its JSON is nested too deeply"
        raise UnreadableError(msg) from None
    except ValueError as exc:
        msg = f"its JSON is broken: {exc}"
        raise UnreadableError(msg) from None
