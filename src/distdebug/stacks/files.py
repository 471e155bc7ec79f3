"""
Which files hold stacks, and what is in them?

Only ordinary files of ordinary size are opened: a folder of a job holds pipes,
links, and gigabytes of other things.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterator
from pathlib import Path

from .._files import is_link, read_ordinary, stays_in


__all__ = ["is_captured", "is_stack_like", "read_text", "stack_files_in"]

# A process with 10,000 threads of 200 frames stays below.
_MOST_BYTES = 1 << 28

_CAPTURED = re.compile(r"(?:pyspy|cudagdb)_.+_\d{1,10}\.(?:json|txt)")
_STACK_LIKE = re.compile(
    r"py-?spy|cuda-?gdb|pystack|faulthandler|back-?trace|(?:^|[_.-])gdb[_.-]"
    r"|\.stacks?\b|stack.*\.(?:txt|json|log|out)$|\.bt$"
    r"|^rank[ _-]?\d+[^/]*\.(?:txt|out)$|^trace-.*\.out$|^VLLM_STACK_DUMP_",
    re.IGNORECASE,
)


def is_captured(name: str) -> bool:
    """
    Is this the name of a file that a capture writes?

    Args:
        name: The name without folders.

    Returns:
        Whether it has to hold a stack, so that it is worth a word if not.
    """
    return _CAPTURED.fullmatch(name) is not None


def is_stack_like(name: str) -> bool:
    """
    Is this the name of a file that may hold stacks?

    Args:
        name: The name without folders.

    Returns:
        Whether it is worth a look.
    """
    return _STACK_LIKE.search(name) is not None


def stack_files_in(folder: Path) -> list[Path]:
    """
    Which files of a folder may hold stacks?

    Args:
        folder: The folder; those in it are searched too.  Links are followed
            only if they stay in it: others may have made it.

    Returns:
        The files, in order, JSON before a text of the same name.
    """
    return sorted(
        file
        for file in _below(folder)
        if is_stack_like(file.name)
        and not (is_link(file) and not stays_in(file, folder))
    )


def _below(folder: Path) -> Iterator[Path]:
    # Those of Python call themselves once per level, of which there may be
    # more than that can be done.
    todo = [str(folder)]
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except OSError:
            continue

        yield from map(Path, entries)
        todo += (e.path for e in entries if e.is_dir(follow_symlinks=False))


def read_text(file: Path) -> str:
    """
    What is in this file?

    Args:
        file: A file of any kind.

    Returns:
        Its text.

    Raises:
        ValueError: It is no ordinary file, or too large.

        OSError: It cannot be read.
    """
    if not file.is_file():
        msg = "not a file" if file.exists() else "no such file"
        raise ValueError(msg)

    return read_ordinary(file, _MOST_BYTES).decode("utf-8-sig", "replace")
