"""
Make, join, and read snapshot bundles: folders, markers, manifests.

Processes on many nodes share a bundle, and only its folder connects them.
Creating a folder is the lock, because every file system supports it.
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
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from .._io import (
    UPGRADE,
    LaterLayoutError,
    check_layout,
    is_folder,
    is_there,
    make_private_folder,
    numbered,
    open_ordinary,
    read_ordinary,
    write_whole,
)
from .._text import clean, reason_of
from ..errors import BundleError, ConfigError
from ..findings import Missing


# Exists while a snapshot is in progress, or if it was killed.
IN_PROGRESS_MARKER = ".unfinished"

# No node name begins with a dot.
_RUN_FILE = ".run"
_TAKEOVER = ".heir"
_MAX_RUN_BYTES = 1 << 20
_EXISTS_ERRNOS = {errno.EEXIST, errno.ENOTEMPTY}


def set_in_progress_marker(bundle: Path, host: str, run: str | None) -> bool:
    """
    Mark a bundle as in progress, unless it is marked already.

    Args:
        bundle: Its folder.

        host: The node that begins it, and finishes it.

        run: Identifies the run of the job; ``None`` if no other node may join.

    Returns:
        Whether this call set the marker.

    Raises:
        OSError: It cannot be written.
    """
    marker = bundle / IN_PROGRESS_MARKER
    draft = bundle / f"{IN_PROGRESS_MARKER}.{secrets.token_hex(8)}"
    try:
        draft.mkdir(mode=0o700)
        (draft / host).touch(mode=0o600)
        if run is not None:
            name = run.encode("utf-8", "surrogatepass")
            (draft / _RUN_FILE).write_bytes(name)
        # Renaming over another marker fails, because it is not empty.
        draft.rename(marker)
    except OSError as exc:
        shutil.rmtree(draft, ignore_errors=True)
        if exc.errno in _EXISTS_ERRNOS or os.path.lexists(marker):
            return False
        raise

    return True


def take_over(bundle: Path, host: str) -> bool:
    """
    Take over a snapshot whose first node died.

    Returns:
        Whether *host* now has to finish it.  Succeeds once per snapshot, and
        never if it is finished.
    """
    marker = bundle / IN_PROGRESS_MARKER
    try:
        (marker / _TAKEOVER).mkdir(mode=0o700)
        # If this process is killed too, another one of this node goes on.
        (marker / host).touch(mode=0o600)
    except OSError:
        return False

    return True


def remove_in_progress_marker(bundle: Path) -> None:
    """
    Mark a bundle as done.
    """
    shutil.rmtree(bundle / IN_PROGRESS_MARKER, ignore_errors=True)


def read_marker_run(bundle: Path) -> str | None:
    """
    Return which run of a job a bundle in progress belongs to.

    Returns:
        The run; ``None`` if there is no marker, or it does not say.
    """
    try:
        data = read_ordinary(
            bundle / IN_PROGRESS_MARKER / _RUN_FILE, _MAX_RUN_BYTES
        )
        return data.decode("utf-8", "surrogatepass")
    except (OSError, ValueError):
        return None


def distdebug_version() -> str:
    """
    Return the version of *distdebug*.
    """
    # The import linter takes a plain import for one of all rooms.
    package = import_module(__package__.partition(".")[0])
    return str(package.__version__)


NodeStatus = Literal["ok", "partial", "failed"]

MANIFEST = "manifest.json"

_SCHEMA = 1
# Enough for 100,000 nodes.
_MAX_MANIFEST_BYTES = 1 << 26
# What parsing raises on data of another shape.
_PARSE_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    RecursionError,
)


@attrs.frozen(kw_only=True)
class NodeEntry:
    """
    Result of one node in a manifest.

    Attributes:
        host: Its name.

        status: ``"ok"``; ``"partial"`` if some evidence is missing;
            ``"failed"`` if all is.

        seconds: Duration.

        files: Number of files.

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
    Contents of a bundle.

    Attributes:
        version: Version of *distdebug* that wrote it.

        created: Time in seconds since 1970.

        job: Identifies the job, or ``""``.

        nodes: All nodes that were asked.

        skipped: Missing evidence, and why.

        run: Identifies the run of the job, or ``""``.

        schema: Version of this layout; it changes only if older readers would
            misread it.
    """

    version: str = attrs.Factory(distdebug_version)
    created: float
    job: str = ""
    nodes: tuple[NodeEntry, ...] = ()
    skipped: tuple[Missing, ...] = ()
    run: str = ""
    schema: int = _SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data, in the layout of the file.
        """
        return {"tool": "distdebug", **attrs.asdict(self)}


def is_done(folder: Path) -> bool:
    """
    Return whether a bundle, or the part of a node, is finished.

    The manifest is written last.
    """
    return is_there(folder / MANIFEST)


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """
    Write the manifest atomically, which finishes the bundle.

    Args:
        folder: The folder of the bundle, or of a part.

        manifest: If it has no run, the run in the marker is added.

    Returns:
        The file.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / MANIFEST
    if not manifest.run:
        # The marker of a part is that of the bundle around it.
        run = read_marker_run(folder) or read_marker_run(folder.parent)
        manifest = attrs.evolve(manifest, run=run or "")
    text = json.dumps(manifest.to_dict(), indent=1)
    write_whole(path, text.encode())
    remove_in_progress_marker(folder)
    return path


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """
    Read the manifest of a bundle.

    Raises:
        BundleError: There is none, or it is damaged.
    """
    path = Path(folder) / MANIFEST
    try:
        return _parse_data(json.loads(_read_bytes(path)))
    except FileNotFoundError:
        reason = "the snapshot was never finished, or is none"
    except OSError as exc:
        reason = reason_of(exc)
    except LaterLayoutError as exc:
        msg = f"the manifest in {folder} cannot be read: {exc}"
        raise BundleError(msg, remedy=UPGRADE) from None
    except _PARSE_ERRORS as exc:
        reason = _damage_text(exc)
    msg = f"no manifest in {folder}: {reason}"
    raise BundleError(msg, remedy="distdebug diagnose needs no manifest")


def parse_manifest(data: object) -> Manifest:
    """
    Parse the JSON data of a manifest.

    Raises:
        BundleError: It has another layout.
    """
    try:
        return _parse_data(data)  # type: ignore[arg-type]
    except LaterLayoutError as exc:
        raise BundleError(str(exc), remedy=UPGRADE) from None
    except _PARSE_ERRORS as exc:
        raise BundleError(_damage_text(exc)) from None


def _damage_text(exc: Exception) -> str:
    return f"it is damaged ({type(exc).__name__}: {exc})"


def _read_bytes(path: Path) -> bytes:
    with open_ordinary(path, "it is not a file") as file:
        data = file.read(_MAX_MANIFEST_BYTES + 1)
    if len(data) > _MAX_MANIFEST_BYTES:
        msg = "it is too large"
        raise ValueError(msg)

    return data


def _parse_data(data: dict[str, Any]) -> Manifest:
    if data["tool"] != "distdebug":
        msg = "it was written by something else"
        raise ValueError(msg)

    check_layout(data["schema"], _SCHEMA)

    return Manifest(
        version=_check_text(data["version"]),
        created=_check_finite(data["created"]),
        job=_check_text(data["job"]),
        nodes=tuple(map(_parse_node, data["nodes"])),
        skipped=tuple(map(_parse_missing, data["skipped"])),
        run=_check_text(data.get("run", "")),
    )


def _parse_node(row: dict[str, Any]) -> NodeEntry:
    if row["status"] not in get_args(NodeStatus):
        msg = "a node has no status"
        raise ValueError(msg)

    return NodeEntry(
        host=_check_text(row["host"]),
        status=row["status"],
        seconds=_check_finite(row["seconds"]),
        files=int(row["files"]),
        reason=_check_text(row["reason"]),
    )


def _parse_missing(row: dict[str, Any]) -> Missing:
    rank, source = row["rank"], row["source"]
    return Missing(
        what=_check_text(row["what"]),
        reason=_check_text(row["reason"]),
        rank=None if rank is None else int(rank),
        source=None if source is None else _check_text(source),
    )


def _check_finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        msg = "there is no number where one is expected"
        raise ValueError(msg)

    return number


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        msg = "there is no text where one is expected"
        raise TypeError(msg)

    return value


_NAME_VARIABLES = ("DISTDEBUG_NODE", "SLURMD_NODENAME")
# File systems allow 255 bytes, and suffixes are added.
_MAX_NAME = 100
_MAX_NAME_BYTES = 200
# Clocks of nodes differ by at most this; a later time is not true.
_MAX_SKEW_S = 60.0


@attrs.frozen(kw_only=True)
class Part:
    """
    Part of this node in a bundle of many nodes.

    Attributes:
        bundle: The folder of all nodes.

        folder: The folder of this node; ``None`` if another process of this
            node has finished its part.

        is_first: Whether this node made the bundle, and has to finish it.
    """

    bundle: Path
    folder: Path | None
    is_first: bool = False


def node_name() -> str:
    """
    Return the name of this node, usable as the name of a folder.

    The launcher or Slurm gives it in a variable; the host name is the
    fallback.
    """
    name = next(filter(None, map(os.environ.get, _NAME_VARIABLES)), "")
    name = clean(name or socket.gethostname(), limit=_MAX_NAME)
    name = name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    return name.replace("/", "_").lstrip(".") or "unknown"


def new_bundle(output_dir: str | os.PathLike[str]) -> Path:
    """
    Make the folder of a bundle, readable by its owner only.

    Never reuses the folder of another snapshot, even if two start at once.

    Args:
        output_dir: The requested folder.

    Returns:
        *output_dir* if it is new or empty; or else ``OUTPUT_DIR.2``, and so
        on.

    Raises:
        ConfigError: The path has no name, or is not a folder.

        OSError: It cannot be made.
    """
    _check_output_dir(os.fspath(output_dir))
    host = node_name()
    return next(
        folder
        for folder in _candidate_folders(output_dir)
        if _claim_folder(folder, host, None)
    )


def _check_output_dir(output_dir: str) -> None:
    why = ""
    if not output_dir or not _has_name(Path(output_dir).absolute()):
        why = "it has no name"
    elif "\0" in output_dir or (
        os.path.lexists(output_dir) and not is_folder(output_dir)
    ):
        why = "it is not a folder"
    if why:
        msg = f"{output_dir!r} cannot be the folder of a snapshot: {why}"
        remedy = "name a folder that is not there yet, such as ./hang"
        raise ConfigError(msg, remedy=remedy)


@attrs.frozen
class SharedBundle:
    """
    The snapshot that the nodes of a job take together.

    Attributes:
        output_dir: The requested folder; the same on all nodes.

        host: The name of this node.

        run: Identifies this run of the job.  Bundles of other runs and jobs
            are left alone.

        window_s: Maximum age, in seconds, of a bundle; an older one is of
            another hang.

        excluded: Bundles that do not count, because this process took part in
            them before.
    """

    output_dir: str | os.PathLike[str]
    host: str
    run: str = attrs.field(kw_only=True)
    window_s: float = attrs.field(kw_only=True)
    excluded: frozenset[Path] = attrs.field(default=frozenset(), kw_only=True)

    def join(self) -> Part:
        """
        Join the snapshot that other nodes take, or begin one.

        No other process of this node may be at work: an unfinished part of
        this node counts as dead.

        Raises:
            OSError: It cannot be made.
        """
        for bundle in _candidate_folders(self.output_dir):
            if bundle in self.excluded:
                continue
            is_first = _claim_folder(bundle, self.host, self.run)
            if is_first or self._is_active(bundle):
                return Part(
                    bundle=bundle,
                    folder=_claim_part(bundle, self.host),
                    # An earlier process of this node began it and was killed.
                    is_first=is_first or _is_unfinished_by(bundle, self.host),
                )

        raise AssertionError  # the names never end

    def find_taken(self) -> Path | None:
        """
        Find the bundle that has a finished part of this node already.

        Returns:
            The folder of all nodes; ``None`` if there is none, or if this node
            still has to finish it.
        """
        folders = _candidate_folders(self.output_dir)
        for bundle in itertools.takewhile(os.path.lexists, folders):
            if bundle in self.excluded or not self._is_active(bundle):
                continue
            # The process that began it may have been killed while it waited.
            names = numbered(bundle / self.host)
            parts = itertools.takewhile(os.path.lexists, names)
            has_part = any(map(is_done, parts))
            if has_part and not _is_unfinished_by(bundle, self.host):
                return bundle
        return None

    def _is_active(self, bundle: Path) -> bool:
        """
        Return whether nodes of this run work on a bundle, or did just now.
        """
        if bundle_age_s(bundle) > self.window_s:
            return False

        # In this order: finishing writes the manifest, then removes the marker.
        active_run = read_marker_run(bundle)
        with suppress(BundleError):
            active_run = read_manifest(bundle).run
        return active_run == self.run


def bundle_age_s(bundle: Path) -> float:
    """
    Return the age of a bundle in seconds.

    Returns:
        Seconds since it was begun, taken over, or finished, whichever was
        last; infinity if it is no bundle, or its times are in the future.
    """
    ages = []
    for name in (IN_PROGRESS_MARKER, MANIFEST):
        with suppress(OSError):
            age = time.time() - (bundle / name).stat().st_mtime
            ages.append(age if age > -_MAX_SKEW_S else float("inf"))
    return min(ages, default=float("inf"))


def _candidate_folders(output_dir: str | os.PathLike[str]) -> Iterator[Path]:
    target = Path(output_dir).absolute()
    if not _has_name(target):
        raise OSError(errno.EINVAL, "a folder needs a name", str(target))

    return numbered(target)


def _has_name(path: Path) -> bool:
    return path.name not in {"", ".."}


def _claim_part(bundle: Path, host: str) -> Path | None:
    for folder in numbered(bundle / host):
        if is_done(folder):
            return None
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder

    raise AssertionError  # the names never end


def _is_unfinished_by(bundle: Path, host: str) -> bool:
    """
    Return whether a node began or took over a bundle, and has to finish it.
    """
    is_owner = is_there(bundle / IN_PROGRESS_MARKER / host)
    return is_owner and not is_done(bundle)


def _claim_folder(folder: Path, host: str, run: str | None) -> bool:
    try:
        make_private_folder(folder)
    except FileExistsError:  # the path is a file
        return False
    if not _is_empty(folder) or not set_in_progress_marker(folder, host, run):
        return False

    # Another process may have finished a snapshot since the folder was empty;
    # other new files are from nodes that join this one.
    if is_done(folder):
        remove_in_progress_marker(folder)
        return False

    # Another process may have made it with wider permissions.
    with suppress(OSError):
        folder.chmod(0o700)
    return True


def _is_empty(folder: Path) -> bool:
    """
    Return whether a folder is empty, except for drafts of markers.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 only names
    except PermissionError:  # it belongs to another user
        return False

    return all(name.startswith(f"{IN_PROGRESS_MARKER}.") for name in names)


_NO_MANIFESTS: Mapping[str, Manifest] = {}
_UNFINISHED = "it was not done, or its snapshot was killed"


def read_parts(
    folder: Path, *, known: Mapping[str, Manifest] = _NO_MANIFESTS
) -> list[Manifest]:
    """
    Read the manifests of all nodes in a bundle that has none itself.

    Args:
        folder: The folder of all nodes.

        known: Manifests by folder name, used where one cannot be read, for
            example because the disk is full.

    Returns:
        The manifests, sorted by node.  That of an unfinished part says so.

    Raises:
        OSError: The folder cannot be read.
    """
    return [_read_part(part, known) for part in _list_parts(folder)]


def count_parts(folder: Path) -> tuple[int, int]:
    """
    Count the nodes that take part.

    Returns:
        The number of finished parts, and of unfinished ones.

    Raises:
        OSError: The folder cannot be read.
    """
    parts = _list_parts(folder)
    done = [part for part in parts if is_done(part)]
    # A node that was killed and began again left an older, dead part.
    restarted = {folder / part.name.rpartition(".")[0] for part in done}
    return len(done), len(set(parts) - set(done) - restarted)


def missing_part(node: NodeEntry, remedy: str = "") -> Manifest:
    """
    Return the manifest of a node whose part is missing.

    Args:
        node: The node, with the reason.

        remedy: What to do about it, or ``""``.
    """
    more = f" (try: {remedy})" if remedy else ""
    reason = f"{node.reason}{more}"
    lost = Missing(what="node", reason=reason, source=node.host)
    return Manifest(version="", created=0.0, nodes=(node,), skipped=(lost,))


def merge_manifests(
    manifests: Iterable[Manifest], *, created: float
) -> Manifest:
    """
    Merge the manifests of several nodes.

    Args:
        manifests: One per node.

        created: When the snapshot began, in seconds since 1970.
    """
    parts = list(manifests)
    jobs = {part.job for part in parts if part.job}
    runs = {part.run for part in parts if part.run}
    return Manifest(
        created=created,
        job=" ".join(sorted(jobs)),
        nodes=tuple(node for part in parts for node in part.nodes),
        skipped=tuple(lost for part in parts for lost in part.skipped),
        run=runs.pop() if len(runs) == 1 else "",
    )


def _list_parts(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and not entry.name.startswith(IN_PROGRESS_MARKER)
        )
    return [folder / name for name in names]


def _read_part(folder: Path, known: Mapping[str, Manifest]) -> Manifest:
    try:
        return read_manifest(folder)
    except BundleError as exc:
        reason = str(exc) if is_done(folder) else _UNFINISHED
        lost = NodeEntry(host=folder.name, status="partial", reason=reason)
        return known.get(folder.name) or missing_part(lost)
