"""
Which environment variables does torch's Flight Recorder listen to?

The names changed over the years.  The table here knows which torch reads
which; everything else only asks for a meaning, such as ``"buffer_size"``.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import re

from collections.abc import Mapping
from typing import NamedTuple


__all__ = ["VARIABLES", "Spelling", "Variable", "parse_version", "spellings"]


class Spelling(NamedTuple):
    """
    One name of a variable.

    Attributes:
        name: The name.

        since: First torch that reads it.

        until: First torch that no longer needs it.
    """

    name: str
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (999, 0)


class Variable(NamedTuple):
    """
    One thing that can be set, under all its names.

    Attributes:
        key: What *distdebug* calls it.

        spellings: Its names, the preferred one first.

        meaning: What it does, in one line.
    """

    key: str
    spellings: tuple[Spelling, ...]
    meaning: str


_NEW = (2, 8)

# torch warns about the old names from 2.8 on, and does not need them from 2.11 on.
_OLD = (2, 11)


VARIABLES = (
    Variable(
        "buffer_size",
        (
            Spelling("TORCH_FR_BUFFER_SIZE", since=_NEW),
            Spelling("TORCH_NCCL_TRACE_BUFFER_SIZE", until=_OLD),
        ),
        "how many calls each rank remembers",
    ),
    Variable(
        "dump_prefix",
        (
            Spelling("TORCH_FR_DUMP_TEMP_FILE", since=_NEW),
            Spelling("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", until=_OLD),
        ),
        "where torch writes its own dumps; it appends the rank",
    ),
    Variable(
        "cpp_stacks",
        (
            Spelling("TORCH_FR_CPP_STACK", since=_NEW),
            Spelling("TORCH_NCCL_TRACE_CPP_STACK", until=_OLD),
        ),
        "C++ frames in the stacks",
    ),
    Variable(
        "symbolize",
        (Spelling("TORCH_SYMBOLIZE_MODE"),),
        "how C++ addresses become names; all but 'fast' can take minutes",
    ),
    Variable(
        "dump_on_timeout",
        (Spelling("TORCH_NCCL_DUMP_ON_TIMEOUT"),),
        "NCCL: dump when a call times out",
    ),
    Variable(
        "extra_dump",
        (Spelling("TORCH_NCCL_EXTRA_DUMP_ON_EXEC", since=(2, 10)),),
        "NCCL: also dump when the watchdog meets an error",
    ),
    Variable(
        "pipe_prefix",
        (
            Spelling("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
            Spelling("TORCH_FR_DEBUG_INFO_PIPE_FILE", since=_NEW),
        ),
        "NCCL, XCCL: a pipe that asks for a dump; torch appends RANK.pipe",
    ),
    Variable(
        "timing",
        (Spelling("TORCH_NCCL_ENABLE_TIMING"),),
        "NCCL: note when each call started, and how long it took",
    ),
    Variable(
        "error_handling",
        (Spelling("TORCH_NCCL_ASYNC_ERROR_HANDLING"),),
        "NCCL: what happens after an error; 1 aborts before it dumps",
    ),
    Variable(
        "monitoring",
        (Spelling("TORCH_NCCL_ENABLE_MONITORING"),),
        "NCCL: the thread that writes the dumps",
    ),
    Variable(
        "blocking_wait",
        (
            Spelling("TORCH_NCCL_BLOCKING_WAIT"),
            Spelling("NCCL_BLOCKING_WAIT"),
        ),
        "NCCL: wait on the host; no watchdog, and so no dump",
    ),
)


def parse_version(version: str | None) -> tuple[int, int] | None:
    """
    Which release of torch is that?

    Args:
        version: Such as ``"2.13.0+cpu"``.

    Returns:
        Major and minor number, or ``None`` if it is not a version.
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    return (int(match[1]), int(match[2])) if match else None


def spellings(
    variable: Variable, version: tuple[int, int] | None
) -> tuple[str, ...]:
    """
    Under which names does that torch read a variable?

    Args:
        variable: One of :data:`VARIABLES`.

        version: Release of torch; ``None`` stands for all of them.

    Returns:
        The names, the preferred one first; none if that torch lacks it.
    """
    return tuple(
        s.name
        for s in variable.spellings
        if version is None or s.since <= version < s.until
    )


def lookup(
    variable: Variable, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """
    What is a variable set to, and under which name?

    Args:
        variable: One of :data:`VARIABLES`.

        environ: Environment variables.

    Returns:
        Name and value of the first spelling that is set, or ``None``.
    """
    for spelling in variable.spellings:
        if spelling.name in environ:
            return spelling.name, environ[spelling.name]
    return None
