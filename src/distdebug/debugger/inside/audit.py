"""
Who asked what of which rank?

Every command is kept in ``audit.jsonl`` beside the sockets, and told to the
audit hooks of the interpreter as ``distdebug.command``.
"""

from __future__ import annotations

import json
import os
import sys
import time

from contextlib import suppress
from pathlib import Path


__all__ = ["keep_record"]

_NAME = "audit.jsonl"
_MOST_BYTES = 16 << 20
_LONGEST = 4000


def keep_record(  # noqa: PLR0913 all of them are written
    folder: Path, *, uid: int, pid: int, key: str, op: str, line: str
) -> None:
    """
    Write down a command before it is obeyed.

    Args:
        folder: Where the sockets are.

        uid: The user who asks.

        pid: This process.

        key: Which stops are meant.

        op: What kind of command it is.

        line: What was typed.

    Raises:
        Exception: A hook of :func:`sys.addaudithook` forbids it.
    """
    sys.audit("distdebug.command", op, key, line)
    record = {
        "time": round(time.time(), 3),
        "uid": uid,
        "pid": pid,
        "key": key[:_LONGEST],
        "op": op,
        "line": line[:_LONGEST],
    }
    # A full disk must not keep anybody from letting a rank go on.
    with suppress(OSError):
        _append(folder / _NAME, json.dumps(record).encode() + b"\n")


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
        is_full = os.fstat(fd).st_size > _MOST_BYTES
    finally:
        os.close(fd)
    if is_full:
        path.replace(path.with_name(f"{_NAME}.1"))
