"""
Which files was all of it read from?
"""

from __future__ import annotations

import os

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from ..._text import size_text
from ...diagnosis.seen import Seen, seen_by
from ...findings import Diagnosis
from ..paths import short_path
from ..section import Section


__all__ = ["files_section"]

# Of each kind.
_MOST = 400


class _File(NamedTuple):
    """
    One file.
    """

    path: str
    size: str


class _Kind(NamedTuple):
    """
    All files of one kind.
    """

    name: str
    number: int
    size: str
    files: tuple[_File, ...]


def files_section(diagnosis: Diagnosis) -> Section | None:
    """
    Which files was a diagnosis made from?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The files of each kind, with their sizes as long as they are there.
    """
    seen = seen_by(diagnosis)
    by_kind: dict[str, dict[str, None]] = defaultdict(dict)
    for kind, path in _files(seen):
        by_kind[kind][path] = None
    if not by_kind:
        return None

    count = sum(map(len, by_kind.values()))
    return Section(
        name="files",
        title="Files",
        summary=f"{count:,} {'file' if count == 1 else 'files'}",
        values={
            "kinds": [
                _kind(name, list(paths), seen.paths)
                for name, paths in by_kind.items()
            ]
        },
        is_open=False,
    )


def _files(seen: Seen) -> Iterator[tuple[str, str]]:
    if seen.flight:
        dumps = seen.flight.dumps
        yield from (("dumps", dump.path) for dump in dumps)
        sidecars = dumps.sidecars.values()
        yield from (("side-cars", s.path) for s in sidecars if s.path)
    yield from (("stacks", process.source) for process in seen.stacks)
    for path in seen.logs.files:
        is_facts = os.path.basename(path) == "node.json"  # noqa: PTH119 text
        yield "facts of nodes" if is_facts else "logs", path
    for death in seen.logs.deaths.deaths:
        if death.log:
            yield "logs of Ray", os.fspath(death.log)


def _kind(name: str, paths: list[str], given: tuple[str, ...]) -> _Kind:
    sizes = [_size(path) for path in paths]
    known = [size for size in sizes if size is not None]
    files = tuple(
        _File(short_path(path, given), "" if size is None else size_text(size))
        for path, size in zip(paths[:_MOST], sizes, strict=False)
    )
    return _Kind(name, len(paths), size_text(sum(known)), files)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 thousands of them
    except (OSError, ValueError):
        return None
