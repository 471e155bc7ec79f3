"""
What is in a snapshot, and what is not, and why?

::

    OUTPUT_DIR/
      manifest.json     who was asked, what came of it, what was left out
      REPORT.txt        the diagnosis
      report.html       the same as a page, if jinja2 is installed
      HOST/node.json    facts about the node
      HOST/workers.json, HOST/pyspy_HOST_PID.json, ...
      HOST/flight_recorder/, HOST/logs/
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil

from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from .._io import (
    UPGRADE,
    LaterLayoutError,
    check_layout,
    open_ordinary,
    read_ordinary,
    write_whole,
)
from .._text import reason_of
from ..errors import BundleError
from ..findings import Missing


# There while a snapshot is taken; still there if that was killed.
MARK = ".unfinished"

# Names of nodes never begin like these.
_RUN = ".run"
_HEIR = ".heir"
_MOST_BYTES = 1 << 20
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}


def set_mark(bundle: Path, host: str, run: str | None) -> bool:
    """
    Say that a snapshot is taken, unless somebody says so already.

    Args:
        bundle: Its folder.

        host: The node that begins it, and is the one to finish it.

        run: What tells the run of the job from others; ``None`` if nobody is
            to take part.

    Returns:
        Whether it is ours.

    Raises:
        OSError: It cannot be written.
    """
    mark = bundle / MARK
    draft = bundle / f"{MARK}.{secrets.token_hex(8)}"
    try:
        draft.mkdir(mode=0o700)
        _note(draft, host, run)
        # Over another mark that says anything, that fails.
        draft.rename(mark)
    except OSError as exc:
        shutil.rmtree(draft, ignore_errors=True)
        if exc.errno in _TAKEN or os.path.lexists(mark):
            return False
        raise

    return True


def take_over(bundle: Path, host: str) -> bool:
    """
    Become the one to finish a snapshot whose first node died.

    Args:
        bundle: Its folder.

        host: The node that wants to.

    Returns:
        Whether it is ours to finish; once for each snapshot, and never of one
        that is finished.
    """
    mark = bundle / MARK
    try:
        (mark / _HEIR).mkdir(mode=0o700)
        # If we are killed too, another of this node goes on.
        (mark / host).touch(mode=0o600)
    except OSError:
        return False

    return True


def unmark(bundle: Path) -> None:
    """
    Say that a snapshot is done.

    Args:
        bundle: Its folder.
    """
    shutil.rmtree(bundle / MARK, ignore_errors=True)


def is_begun_by(bundle: Path, host: str) -> bool:
    """
    Find out whether it is on a node to finish a snapshot.

    Args:
        bundle: Its folder.

        host: The node.

    Returns:
        Whether it began it, or took it over, and has not finished it.
    """
    return os.path.exists(bundle / MARK / host)  # noqa: PTH110 never raises


def run_in_mark(bundle: Path) -> str | None:
    """
    Read whose snapshot is taken.

    Args:
        bundle: Its folder.

    Returns:
        What tells the run of the job from others; ``None`` if there is no
        mark, or if it does not tell.
    """
    try:
        data = read_ordinary(bundle / MARK / _RUN, _MOST_BYTES)
        return data.decode("utf-8", "surrogatepass")
    except (OSError, ValueError):
        return None


def _note(mark: Path, host: str, run: str | None) -> None:
    (mark / host).touch(mode=0o600)
    if run is not None:
        (mark / _RUN).write_bytes(run.encode("utf-8", "surrogatepass"))


NodeStatus = Literal["ok", "partial", "failed"]

MANIFEST = "manifest.json"

_SCHEMA = 1
# One line for each of 100,000 nodes stays below.
_MANIFEST_MOST_BYTES = 1 << 26
# What comes of reading data that have another shape.
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)


@attrs.frozen(kw_only=True)
class NodeEntry:
    """
    What came of one node.

    Attributes:
        host: Its name.

        status: ``"ok"``; ``"partial"`` if something could not be taken;
            ``"failed"`` if nothing could be.

        seconds: How long it took.

        files: How many files are there.

        reason: What went wrong, or ``""``.
    """

    host: str
    status: NodeStatus
    seconds: float = 0.0
    files: int = 0
    reason: str = ""


@attrs.frozen(kw_only=True)
class Manifest:
    """
    What is in a snapshot.

    Attributes:
        version: Version of *distdebug* that took it.

        created: When, in seconds since 1970.

        job: What tells the job from others, or ``""``.

        nodes: Every node that was asked.

        skipped: What is not there, and why.

        run: What tells the run of the job from others, or ``""``.

        schema: Version of this layout; it only changes if something is not
            understood any more.
    """

    version: str
    created: float
    job: str = ""
    nodes: tuple[NodeEntry, ...] = ()
    skipped: tuple[Missing, ...] = ()
    run: str = ""
    schema: int = _SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, in the layout of the file.
        """
        return {"tool": "distdebug", **attrs.asdict(self)}


def is_done(folder: Path) -> bool:
    """
    Find out whether a snapshot, or the part of a node, is finished.

    Args:
        folder: Its folder.

    Returns:
        Whether its manifest is there, which comes last.
    """
    return os.path.exists(folder / MANIFEST)  # noqa: PTH110 never raises


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """
    Write the manifest, which ends a snapshot: whole or not at all.

    Args:
        folder: The folder of the snapshot.

        manifest: What is in it.  If it does not tell the run of the job, the
            mark of the snapshot does.

    Returns:
        The file.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / MANIFEST
    if not manifest.run:
        manifest = attrs.evolve(manifest, run=_run_of(folder))
    text = json.dumps(manifest.to_dict(), indent=1)
    write_whole(path, text.encode())
    unmark(folder)
    return path


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """
    Read what is in a snapshot.

    Args:
        folder: The folder of the snapshot.

    Returns:
        Its manifest.

    Raises:
        BundleError: There is none, or it is not one that can be understood.
    """
    path = Path(folder) / MANIFEST
    try:
        return _parse(json.loads(_read(path)))
    except FileNotFoundError:
        reason = "the snapshot was never finished, or is none"
    except OSError as exc:
        reason = reason_of(exc)
    except LaterLayoutError as exc:
        msg = f"the manifest in {folder} cannot be read: {exc}"
        raise BundleError(msg, remedy=UPGRADE) from None
    except _DAMAGE as exc:
        reason = _damage(exc)
    msg = f"no manifest in {folder}: {reason}"
    raise BundleError(msg, remedy="distdebug diagnose needs no manifest")


def _run_of(folder: Path) -> str:
    """
    Of a snapshot, or of the one that this is a part of.
    """
    return run_in_mark(folder) or run_in_mark(folder.parent) or ""


def parse_manifest(data: object) -> Manifest:
    """
    Understand what somebody else wrote as a manifest.

    Args:
        data: What was read as JSON.

    Returns:
        The manifest.

    Raises:
        BundleError: It is not one that can be understood.
    """
    try:
        return _parse(data)  # type: ignore[arg-type]
    except LaterLayoutError as exc:
        raise BundleError(str(exc), remedy=UPGRADE) from None
    except _DAMAGE as exc:
        raise BundleError(_damage(exc)) from None


def _damage(exc: Exception) -> str:
    return f"it is damaged ({type(exc).__name__}: {exc})"


def _read(path: Path) -> bytes:
    with open_ordinary(path, "it is not a file") as file:
        data = file.read(_MANIFEST_MOST_BYTES + 1)
    if len(data) > _MANIFEST_MOST_BYTES:
        msg = "it is too large"
        raise ValueError(msg)

    return data


def _parse(data: dict[str, Any]) -> Manifest:
    if data["tool"] != "distdebug":
        msg = "it was written by something else"
        raise ValueError(msg)

    check_layout(data["schema"], _SCHEMA)

    return Manifest(
        version=_text(data["version"]),
        created=_finite(data["created"]),
        job=_text(data["job"]),
        nodes=tuple(map(_node, data["nodes"])),
        skipped=tuple(map(_missing, data["skipped"])),
        run=_text(data.get("run", "")),
    )


def _node(row: dict[str, Any]) -> NodeEntry:
    if row["status"] not in get_args(NodeStatus):
        msg = "a node has no status"
        raise ValueError(msg)

    return NodeEntry(
        host=_text(row["host"]),
        status=row["status"],
        seconds=_finite(row["seconds"]),
        files=int(row["files"]),
        reason=_text(row["reason"]),
    )


def _missing(row: dict[str, Any]) -> Missing:
    rank, source = row["rank"], row["source"]
    return Missing(
        what=_text(row["what"]),
        reason=_text(row["reason"]),
        rank=None if rank is None else int(rank),
        source=None if source is None else _text(source),
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        msg = "there is no number where one is expected"
        raise ValueError(msg)

    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = "there is no text where one is expected"
        raise TypeError(msg)

    return value
