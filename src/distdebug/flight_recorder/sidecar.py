"""
Read and write sidecars: JSON files that describe the rank of each dump.

A Flight Recorder dump does not name its rank, its host, the time it was taken,
or the members of a process group (on Gloo).  *distdebug* writes all that to a
small JSON file beside it.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import json

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .._io import LaterLayoutError, check_layout, open_ordinary, write_whole


SIDECAR_SUFFIX = ".sidecar.json"

# No job has more; a larger number in a file would make us count to a billion.
MAX_RANKS = 1 << 20

_SCHEMA = 1
_MAX_BYTES = 64 << 20
_MAX_NUMBER = 1 << 31
_MAX_SECONDS = 1 << 33  # in nanoseconds, they fit into 64 bits


class SidecarGroup(NamedTuple):
    """
    One process group of the rank.

    Attributes:
        name: Torch's name of the group.

        desc: Its description.

        ranks: Global ranks in group order.

        backend: Such as ``"gloo"`` or ``"nccl"``.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str


class SidecarFrame(NamedTuple):
    """
    One line of a thread's Python stack at the time of the sidecar.
    """

    name: str
    filename: str
    line: int


class Sidecar(NamedTuple):
    """
    State of a rank that *distdebug* writes beside its dump.

    Attributes:
        path: The file it was read from; ``""`` while it is being written.

        rank: Global rank.

        world_size: Number of ranks of the job.

        host: Name of the node.

        pid: Process id on that node.

        started: When recording was enabled, in seconds since the epoch.

        written: When this sidecar (and its dump) was written, likewise.

        reason: ``"start"``, ``"request"``, ``"call"``, ``"exception"``,
            ``"SIGTERM"``, ``"SIGABRT"``, …, ``"exit"``.

        error: The exception that ended the process, in one line, or ``""``.

        dump: File name of the dump beside it, or ``""``.

        job: Identifies the run: launcher's run id, restart count, address.

        torch: Version of torch.

        groups: The process groups of the rank.

        mesh: Size of each mesh dimension, outermost first.

        threads: Python stack of each thread by thread name, innermost line
            first; the main thread is called ``"MainThread"``.
    """

    path: str
    rank: int
    world_size: int
    host: str
    pid: int
    started: float
    written: float
    reason: str
    error: str = ""
    dump: str = ""
    job: str = ""
    torch: str = ""
    groups: tuple[SidecarGroup, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    threads: tuple[tuple[str, tuple[SidecarFrame, ...]], ...] = ()

    @property
    def process(self) -> tuple[str, int, float]:
        """
        Return host, process id, and start, equal for sidecars of one process.
        """
        return self.host, self.pid, self.started

    def to_json(self) -> dict[str, Any]:
        """
        Return plain data, in the layout of the file.
        """
        data = {"schema": _SCHEMA, "kind": "distdebug-sidecar"}
        data |= self._asdict()
        del data["path"]
        return data | {
            "groups": [g._asdict() for g in self.groups],
            "mesh": dict(self.mesh),
            "threads": {
                name: [f._asdict() for f in frames]
                for name, frames in self.threads
            },
        }


def mesh_of(sidecars: Iterable[Sidecar]) -> dict[str, int]:
    """
    Return the mesh of a job, outermost dimension first; empty if unknown.
    """
    return dict(next((x.mesh for x in sidecars if x.mesh), ()))


def write_sidecar(sidecar: Sidecar, dump: Path) -> Path:
    """
    Write a sidecar beside its dump, whole or not at all.

    Args:
        dump: Path of the dump it belongs to, which need not exist.

    Returns:
        The file.

    Raises:
        OSError: It cannot be written.
    """
    path = dump.with_name(dump.name + SIDECAR_SUFFIX)
    write_whole(path, json.dumps(sidecar.to_json()).encode())
    return path


def read_sidecar(path: Path) -> Sidecar:
    """
    Read a sidecar from a file that may hold anything.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is not a sidecar, or one of a later version.
    """
    with open_ordinary(
        path, "not a sidecar: it is not a regular file"
    ) as file:
        data = file.read(_MAX_BYTES)
    try:
        return parse_sidecar(json.loads(data), str(path))
    except LaterLayoutError as exc:
        msg = f"a sidecar that cannot be read: {exc}"
        raise ValueError(msg) from None
    except (
        *(AttributeError, KeyError, OverflowError),
        *(RecursionError, TypeError, ValueError),
    ) as exc:
        msg = f"not a sidecar: {type(exc).__name__}: {exc}"
        raise ValueError(msg) from None


def parse_sidecar(data: Any, path: str) -> Sidecar:
    """
    Parse the JSON of a sidecar.  Absent fields get their defaults.

    Args:
        data: Returned by :func:`json.loads`.

        path: The file it comes from.

    Raises:
        AttributeError, KeyError, OverflowError, TypeError, ValueError: *data*
            is not a sidecar.
    """
    if data["kind"] != "distdebug-sidecar":
        msg = f"not a sidecar: {path}"
        raise ValueError(msg)

    check_layout(data.get("schema", _SCHEMA), _SCHEMA)
    return Sidecar(
        path=path,
        rank=_check_number(data["rank"], MAX_RANKS),
        world_size=_check_number(data["world_size"], MAX_RANKS + 1),
        host=str(data.get("host", "")),
        pid=_check_number(data.get("pid", 0)),
        started=_check_time(data.get("started", 0)),
        written=_check_time(data.get("written", 0)),
        reason=str(data.get("reason", "")),
        error=str(data.get("error", "")),
        dump=str(data.get("dump", "")),
        job=str(data.get("job", "")),
        torch=str(data.get("torch", "")),
        groups=tuple(_parse_group(g) for g in data.get("groups", ())),
        mesh=tuple(
            (str(k), _check_number(v)) for k, v in data.get("mesh", {}).items()
        ),
        threads=tuple(
            (str(name), tuple(_parse_frame(f) for f in frames))
            for name, frames in data.get("threads", {}).items()
        ),
    )


def _check_number(value: Any, limit: int = _MAX_NUMBER) -> int:
    if not isinstance(value, int) or not 0 <= value < limit:
        msg = f"not a count below {limit}: {value!r:.80}"
        raise ValueError(msg)

    return value


def _check_time(value: Any) -> float:
    seconds = float(value)
    # Both comparisons are false for NaN.
    if not 0 <= seconds < _MAX_SECONDS:
        msg = f"not a moment: {seconds}"
        raise ValueError(msg)

    return seconds


def _parse_group(data: Any) -> SidecarGroup:
    return SidecarGroup(
        name=str(data["name"]),
        desc=str(data.get("desc", "")),
        ranks=tuple(_check_number(r, MAX_RANKS) for r in data["ranks"]),
        backend=str(data.get("backend", "")),
    )


def _parse_frame(data: Any) -> SidecarFrame:
    return SidecarFrame(
        name=str(data["name"]),
        filename=str(data["filename"]),
        line=_check_number(data["line"]),
    )
