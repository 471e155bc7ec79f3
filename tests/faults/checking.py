"""
What may become of a call when the world fails, and what may be left of it?
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import os
import sys
import threading
import time

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from distdebug.errors import DistdebugError


# Whether to try everything, which takes half an hour.
IS_THOROUGH = os.environ.get("DISTDEBUG_FAULTS") == "all"
SETTLE_S = 5.0
# Where a pipe or a file cannot be opened, subprocess used to leave those open
# that it had opened before (cpython gh-87474).
CLOSES_PIPES = sys.version_info >= (3, 11, 4)


class Inventory(NamedTuple):
    """
    What belongs to this process: children, threads, and open files.
    """

    children: frozenset[int]
    threads: frozenset[int]
    files: frozenset[int]


def inventory() -> Inventory:
    """
    What belongs to this process now?
    """
    me = psutil.Process()
    return Inventory(
        frozenset(x.pid for x in me.children(recursive=True)),
        frozenset(x.ident for x in threading.enumerate() if x.ident),
        frozenset(int(x.name) for x in Path("/proc/self/fd").iterdir()),
    )


def left_over(before: Inventory, settle_s: float = SETTLE_S) -> str:
    """
    What is there that was not there before?  ``""`` if nothing is, soon.
    """
    deadline = time.monotonic() + settle_s
    while True:
        new = [
            now - then for now, then in zip(inventory(), before, strict=True)
        ]
        if not any(new):
            return ""
        if time.monotonic() > deadline:
            children, threads, files = new
            if not (CLOSES_PIPES or children or threads):
                pytest.skip("subprocess leaves pipes open before 3.11.4")
            return f"{set(children)} {set(threads)} {set(map(link, files))}"
        time.sleep(0.02)


def goes_on(pid: int) -> bool:
    """
    Whether a process lives, and nobody holds it.
    """
    held = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    dead = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return psutil.Process(pid).status() not in held | dead


def link(fd: int) -> str:
    """
    What an open file is.
    """
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    return "closed"


def contents(folder: Path) -> dict[str, str]:
    """
    What is in a folder, as far as it are ordinary files.
    """
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def is_whole(path: Path) -> bool:
    """
    Whether a file is of a kind that tells, and was written to its end.
    """
    kinds: dict[str, Callable[[bytes], object]] = {
        ".gz": lambda data: json.loads(gzip.decompress(data)),
        ".html": lambda data: data.rstrip().endswith(b"</html>") or 1 / 0,
        ".json": json.loads,
        ".py": ast.parse,
    }
    error = outcome(lambda: kinds[path.suffix](path.read_bytes()))
    return error is None


def outcome(act: Callable[[], object]) -> BaseException | None:
    """
    What an act raises, if it does; an interrupt may come late.
    """
    try:
        act()
        time.sleep(0)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 that is it
        return error
    return None


def objection(error: BaseException | None, *, in_job: bool = False) -> str:
    """
    What speaks against an outcome?  ``""`` if nothing does.

    A result is fine; an error is, if it is ours, tells what it is about, and
    what helps; but in a job none is.
    """
    if error is None:
        return ""
    if in_job:
        return f"it would end the job: {error!r}"
    if not isinstance(error, DistdebugError):
        return f"it is no error of ours: {error!r}"
    if not str(error) or not error.remedy:
        return f"it tells too little: {error!r}"
    return ""
