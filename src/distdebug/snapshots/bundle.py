"""
Which folder does a snapshot go to, so that none touches another?

Many take part in one of a job on many nodes, and they know nothing of each
other but the folder.  Whoever makes a folder has it: that is the only lock that
every file system has.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import secrets
import shutil
import socket
import time

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from .._io import (
    UPGRADE,
    LaterLayoutError,
    check_layout,
    numbered,
    open_ordinary,
    read_ordinary,
    write_whole,
)
from .._text import clean, reason_of
from ..errors import BundleError, ConfigError
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


_NAMES = ("DISTDEBUG_NODE", "SLURMD_NODENAME")
# A file system takes 255 bytes, and we add to them.
_MOST_NAME = 100
_MOST_NAME_BYTES = 200
# Clocks of nodes differ; what is later than this was set by somebody.
_MOST_SKEW_S = 60.0


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
    name = clean(name or socket.gethostname(), limit=_MOST_NAME)
    name = name.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
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
        ConfigError: It cannot be meant as a folder.

        OSError: It cannot be made.
    """
    _check(os.fspath(output_dir))
    host = node_name()
    return next(
        folder for folder in _names(output_dir) if _claim(folder, host, None)
    )


def _check(wanted: str) -> None:
    remedy = "name a folder that is not there yet, such as ./hang"
    if not wanted or not _has_name(Path(wanted).absolute()):
        msg = f"{wanted!r} cannot be the folder of a snapshot: it has no name"
        raise ConfigError(msg, remedy=remedy)
    if "\0" in wanted or (os.path.lexists(wanted) and not _is_dir(wanted)):
        msg = f"{wanted!r} cannot be the folder of a snapshot: it is no folder"
        raise ConfigError(msg, remedy=remedy)


def join_bundle(
    output_dir: str | os.PathLike[str],
    host: str,
    *,
    run: str,
    window_s: float,
    but: frozenset[Path] = frozenset(),
) -> Part:
    """
    Take part in the snapshot that others of the job take now, or begin one.

    Args:
        output_dir: The folder that is wanted; the same on all nodes.

        host: The name of this node.

        run: What tells this run of the job from other runs and other jobs:
            their snapshots are left to them.

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
        is_first = _claim(bundle, host, run)
        if is_first or _is_of(bundle, run, window_s):
            folder = _claim_part(bundle, host)
            return Part(
                bundle=bundle,
                folder=folder,
                # Whoever of this node began it was killed.
                is_first=is_first or _is_left(bundle, host),
            )

    raise AssertionError  # the names never end


def is_taken(
    output_dir: str | os.PathLike[str],
    host: str,
    *,
    run: str,
    window_s: float,
    but: frozenset[Path] = frozenset(),
) -> Path | None:
    """
    Find out whether somebody of this node has taken part already.

    Args:
        output_dir: As for :func:`join_bundle`, like the others.

        host: The name of this node.

        run: What tells this run of the job from others.

        window_s: How many seconds ago they may have begun or ended.

        but: Snapshots that do not count.

    Returns:
        The folder of all nodes; ``None`` if nobody has, or if this node has
        begun it and did not finish it.
    """
    for bundle in itertools.takewhile(os.path.lexists, _names(output_dir)):
        if bundle in but or not _is_of(bundle, run, window_s):
            continue
        # Whoever began it here was killed while it waited for the others.
        has_part = any(map(is_done, _parts_of(bundle, host)))
        if has_part and not _is_left(bundle, host):
            return bundle
    return None


def age_s(bundle: Path) -> float:
    """
    Tell how long ago somebody was at work.

    Args:
        bundle: The folder of all nodes.

    Returns:
        Seconds since it was begun, taken over, or finished, whichever was
        last; for ever if it is no snapshot, or if its times are not true.
    """
    ages = []
    for name in (MARK, MANIFEST):
        with suppress(OSError):
            age = time.time() - (bundle / name).stat().st_mtime
            ages.append(age if age > -_MOST_SKEW_S else float("inf"))
    return min(ages, default=float("inf"))


def _names(output_dir: str | os.PathLike[str]) -> Iterator[Path]:
    wanted = Path(output_dir).absolute()
    if not _has_name(wanted):
        raise OSError(errno.EINVAL, "a folder needs a name", str(wanted))

    return numbered(wanted)


def _has_name(path: Path) -> bool:
    return path.name not in {"", ".."}


def _is_of(bundle: Path, run: str, window_s: float) -> bool:
    """
    Whether those of a run are at work there, or were just now.
    """
    if age_s(bundle) > window_s:
        return False

    # In this order: whoever finishes it writes the one, and then removes the
    # other.
    told = run_in_mark(bundle)
    with suppress(BundleError):
        told = read_manifest(bundle).run
    return told == run


def _claim_part(bundle: Path, host: str) -> Path | None:
    for folder in numbered(bundle / host):
        if is_done(folder):
            return None
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder

    raise AssertionError  # the names never end


def _parts_of(bundle: Path, host: str) -> Iterator[Path]:
    """
    The folders of a node.
    """
    return itertools.takewhile(os.path.lexists, numbered(bundle / host))


def _is_left(bundle: Path, host: str) -> bool:
    """
    Whether it is on this node to finish it.
    """
    return is_begun_by(bundle, host) and not is_done(bundle)


def _is_dir(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 never raises


def _claim(folder: Path, host: str, run: str | None) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_empty(folder) or not set_mark(folder, host, run):
            return False
    except FileExistsError:  # it is a file
        return False

    # Somebody may have begun and ended since it was seen to be empty; what
    # else is there now is by those who join us.
    if is_done(folder):
        unmark(folder)
        return False

    # It may have been made with wider permissions by somebody else.
    with suppress(OSError):
        folder.chmod(0o700)
    return True


def _is_empty(folder: Path) -> bool:
    """
    Whether nothing is there but what others write who want it too.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 only names
    except PermissionError:  # it is somebody else's
        return False

    return all(name.startswith(f"{MARK}.") for name in names)


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
