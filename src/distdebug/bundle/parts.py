"""
What did each node take, of a snapshot of many?

Each writes a manifest of its own when it is done, so that nobody has to know
the others.
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import BundleError
from ..findings import Missing
from .manifest import Manifest, NodeEntry, is_done, read_manifest
from .mark import MARK


__all__ = ["count_parts", "lost_part", "merge_manifests", "read_parts"]


_NOTHING_KNOWN: Mapping[str, Manifest] = {}
_UNDONE = "it was not done, or its snapshot was killed"


def read_parts(
    folder: Path, *, known: Mapping[str, Manifest] = _NOTHING_KNOWN
) -> list[Manifest]:
    """
    Read what each node took, of a snapshot that has no manifest yet.

    Args:
        folder: The folder of all nodes.

        known: Manifests that the caller has, by the names of the folders:
            what counts if one cannot be read, because the disk is full.

    Returns:
        Their manifests, by name of the node.  That of one that is not done,
        or was killed, says so.

    Raises:
        OSError: The folder cannot be read.
    """
    return [_read_part(part, known) for part in _parts(folder)]


def count_parts(folder: Path) -> tuple[int, int]:
    """
    Count the nodes that take part.

    Args:
        folder: The folder of all nodes.

    Returns:
        How many are done, and how many are not.

    Raises:
        OSError: The folder cannot be read.
    """
    parts = _parts(folder)
    done = [part for part in parts if is_done(part)]
    # Who was killed, and began once more, does not go on here.
    dead = {folder / part.name.rpartition(".")[0] for part in done}
    return len(done), len(set(parts) - set(done) - dead)


def lost_part(node: NodeEntry, remedy: str = "") -> Manifest:
    """
    Say that the part of a node is not there.

    Args:
        node: The node, and why.

        remedy: What to do about it, or ``""``.

    Returns:
        A manifest that tells nothing else.
    """
    more = f" (try: {remedy})" if remedy else ""
    reason = f"{node.reason}{more}"
    lost = Missing(what="node", reason=reason, source=node.host)
    return Manifest(version="", created=0.0, nodes=(node,), skipped=(lost,))


def merge_manifests(
    manifests: Iterable[Manifest], *, version: str, created: float
) -> Manifest:
    """
    Put together what several nodes took.

    Args:
        manifests: The manifest of each.

        version: Version of *distdebug* that puts it together.

        created: When it was begun, in seconds since 1970.

    Returns:
        One for all of them.
    """
    parts = list(manifests)
    jobs = {part.job for part in parts if part.job}
    runs = {part.run for part in parts if part.run}
    return Manifest(
        version=version,
        created=created,
        job=" ".join(sorted(jobs)),
        nodes=tuple(node for part in parts for node in part.nodes),
        skipped=tuple(lost for part in parts for lost in part.skipped),
        run=runs.pop() if len(runs) == 1 else "",
    )


def _parts(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and not entry.name.startswith(MARK)
        )
    return [folder / name for name in names]


def _read_part(folder: Path, known: Mapping[str, Manifest]) -> Manifest:
    try:
        return read_manifest(folder)
    except BundleError as exc:
        told = str(exc) if is_done(folder) else _UNDONE
        return known.get(folder.name) or _unread(folder.name, told)


def _unread(host: str, reason: str) -> Manifest:
    return lost_part(NodeEntry(host=host, status="partial", reason=reason))
