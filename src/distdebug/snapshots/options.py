"""
What is to be taken from a job?
"""

from __future__ import annotations

import os

from collections.abc import Iterable
from pathlib import Path

import attrs

from ..capture import Native
from ..processes import compile_patterns


def _paths(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[Path, ...]:
    # One text is one path, and not many of one letter.
    if isinstance(paths, (str, os.PathLike)):
        return (Path(paths),)
    return tuple(map(Path, paths))


def _pids(pids: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if pids is None else tuple(pids)


def _patterns(patterns: str | Iterable[str]) -> tuple[str, ...]:
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    compile_patterns(patterns)
    return patterns


@attrs.frozen(kw_only=True)
class Wanted:
    """
    What to take.

    Attributes:
        dump_dir: Where the ranks put their Flight Recorder dumps; by default
            the ranks themselves tell.

        pids: Which processes; by default the workers that are found.

        patterns: Regular expressions for the command lines of workers.

        logs: Files of which the end is kept.

        native: Whose native stacks to take.

        cuda: Whether to attach cuda-gdb to every process.

        debug_server: Where a server of ``torch.distributed.debug`` answers,
            as ``HOST:PORT``; it tells about all ranks of the job.

        timeout_s: How long it may take, in seconds.

    Raises:
        PatternError: A pattern is no regular expression.
    """

    dump_dir: Path | None = attrs.field(
        default=None, converter=attrs.converters.optional(Path)
    )
    pids: tuple[int, ...] | None = attrs.field(default=None, converter=_pids)
    patterns: tuple[str, ...] = attrs.field(default=(), converter=_patterns)
    logs: tuple[Path, ...] = attrs.field(default=(), converter=_paths)
    native: Native = "none"
    cuda: bool = False
    debug_server: str = ""
    timeout_s: float = 120.0
