"""
Options of a snapshot: which processes, logs, and sources to collect.
"""

from __future__ import annotations

import os

from collections.abc import Iterable
from pathlib import Path

import attrs

from ..capture import Native
from ..processes import as_patterns


def _as_paths(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[Path, ...]:
    # A string is one path, not a sequence of letters.
    if isinstance(paths, (str, os.PathLike)):
        return (Path(paths),)
    return tuple(map(Path, paths))


def _as_pids(pids: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if pids is None else tuple(pids)


@attrs.frozen(kw_only=True)
class SnapshotOptions:
    """
    What a snapshot collects.

    Attributes:
        dump_dir: Folder of the Flight Recorder dumps; by default found in the
            environment of the ranks.

        pids: Processes to capture; by default the workers that are found.

        patterns: Regular expressions for the command lines of workers.

        logs: Log files; the end of each is saved.

        native: Which processes to take native stacks of.

        cuda: Whether to attach cuda-gdb to every process.

        debug_server: Address of a ``torch.distributed.debug`` server, as
            ``HOST:PORT``; it has data of all ranks.

        timeout_s: Time limit in seconds.

    Raises:
        PatternError: A pattern is no regular expression.
    """

    dump_dir: Path | None = attrs.field(
        default=None, converter=attrs.converters.optional(Path)
    )
    pids: tuple[int, ...] | None = attrs.field(
        default=None, converter=_as_pids
    )
    patterns: tuple[str, ...] = attrs.field(default=(), converter=as_patterns)
    logs: tuple[Path, ...] = attrs.field(default=(), converter=_as_paths)
    native: Native = "none"
    cuda: bool = False
    debug_server: str = ""
    timeout_s: float = 120.0
