"""
Which folder does a snapshot go to, so that none touches another?

Many take part in one of a job on many nodes, and they know nothing of each
other but the folder.  Whoever makes a folder has it: that is the only lock that
every file system has.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import time

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs


__all__ = [
    "MANIFEST",
    "MARK",
    "Part",
    "is_taken",
    "join_bundle",
    "new_bundle",
    "node_name",
    "unmark",
]

_NAMES = ("DISTDEBUG_NODE", "SLURMD_NODENAME")

MANIFEST = "manifest.json"
# There while a snapshot is taken; still there if that was killed.
MARK = ".unfinished"


@attrs.frozen(kw_only=True)
class Part:
    """
    The part of this node in a snapshot of many.

    Attributes:
        bundle: The folder of all nodes.

        folder: The folder of this one; ``None`` if somebody else of this node
            has taken its part already.

        is_first: Whether this node made the folder of all nodes, and is the
            one to finish it.
    """

    bundle: Path
    folder: Path | None
    is_first: bool = False


def node_name() -> str:
    """
    What is this node called?

    Returns:
        The name that whoever sent us here, or Slurm, knows; or else that of
        the host.
    """
    name = next(filter(None, map(os.environ.get, _NAMES)), "")
    name = name or socket.gethostname()
    return name.replace("/", "_").lstrip(".") or "unknown"


def new_bundle(output_dir: str | os.PathLike[str]) -> Path:
    """
    Make the folder of a snapshot, for its owner alone.

    An earlier snapshot is never touched, also if two are taken at once.

    Args:
        output_dir: The folder that is wanted.

    Returns:
        *output_dir* if it is new or empty; or else ``OUTPUT_DIR.2``, and so
        on.

    Raises:
        OSError: It cannot be made.
    """
    host = node_name()
    return next(
        folder for folder in _names(output_dir) if _claim(folder, host)
    )


def join_bundle(
    output_dir: str | os.PathLike[str],
    host: str,
    *,
    window_s: float,
    but: frozenset[Path] = frozenset(),
) -> Part:
    """
    Take part in the snapshot that others of the job take now, or begin one.

    Args:
        output_dir: The folder that is wanted; the same on all nodes.

        host: The name of this node.

        window_s: How many seconds ago the others may have begun or ended; who
            ended earlier looked at something else.  Of this node nobody else
            may be at work: what is not done here is taken to be dead.

        but: Snapshots to take no part in, because we did so before.

    Returns:
        What is ours of it.

    Raises:
        OSError: It cannot be made.
    """
    for bundle in _names(output_dir):
        if bundle in but:
            continue
        is_first = _claim(bundle, host)
        if is_first or _age_s(bundle) <= window_s:
            folder = _claim_part(bundle, host)
            return Part(
                bundle=bundle,
                folder=folder,
                # Whoever of this node began it was killed.
                is_first=is_first or _is_ours(bundle, host),
            )

    raise AssertionError  # the names never end


def is_taken(
    output_dir: str | os.PathLike[str],
    host: str,
    *,
    window_s: float,
    but: frozenset[Path] = frozenset(),
) -> Path | None:
    """
    Find out whether somebody of this node has taken part already.

    Args:
        output_dir: As for :func:`join_bundle`, like the others.

        host: The name of this node.

        window_s: How many seconds ago they may have begun or ended.

        but: Snapshots that do not count.

    Returns:
        The folder of all nodes; ``None`` if nobody has, or if this node has
        begun it and did not finish it.
    """
    for bundle in itertools.takewhile(Path.exists, _names(output_dir)):
        is_new = bundle not in but and _age_s(bundle) <= window_s
        # Whoever began it here was killed while it waited for the others.
        is_left = _is_ours(bundle, host)
        is_done = any(map(_is_done, _parts_of(bundle, host)))
        if is_new and is_done and not is_left:
            return bundle
    return None


def unmark(bundle: Path) -> None:
    """
    Say that a snapshot is done.

    Args:
        bundle: Its folder.
    """
    shutil.rmtree(bundle / MARK, ignore_errors=True)


def _names(output_dir: str | os.PathLike[str]) -> Iterator[Path]:
    wanted = Path(output_dir).absolute()
    yield wanted
    for number in itertools.count(2):
        yield wanted.with_name(f"{wanted.name}.{number}")


def _age_s(bundle: Path) -> float:
    """
    How long ago somebody was at work; for ever if it is no snapshot.
    """
    ages = []
    for name in (MARK, MANIFEST):
        with suppress(OSError):
            ages.append(time.time() - (bundle / name).stat().st_mtime)
    return min(ages, default=float("inf"))


def _claim_part(bundle: Path, host: str) -> Path | None:
    for folder in _parts_of(bundle, host):
        if _is_done(folder):
            return None
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder

    raise AssertionError  # the names never end


def _parts_of(bundle: Path, host: str) -> Iterator[Path]:
    """
    The folders of a node, and the first one that is free.
    """
    for folder in _names(bundle / host):
        yield folder
        if not folder.exists():
            return


def _is_ours(bundle: Path, host: str) -> bool:
    """
    Whether this node began it, and did not finish it.
    """
    return (bundle / MARK / host).exists()


def _is_done(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def _claim(folder: Path, host: str) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:  # it is a file
        return False

    if any(folder.iterdir()):
        return False

    mark = folder / MARK
    try:
        mark.mkdir(mode=0o700)
    except FileExistsError:
        return False

    # Somebody may have begun and ended since it was seen to be empty; what
    # else is there now is by those who join us.
    if _is_done(folder):
        unmark(folder)
        return False

    (mark / host).touch(mode=0o600)
    # It may have been made with wider permissions by somebody else.
    with suppress(OSError):
        folder.chmod(0o700)
    return True
