"""
In which folder do the sockets of a job lie, and is it ours alone?

A debugger runs code as the user of the job, so nobody else may get at its
sockets: the folder must belong to us, and be open to nobody else.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import DebuggerError
from ..identity import current_identity


_SUFFIX = ".sock"
# What the kernel keeps of the name of a Unix socket, with a NUL at its end.
_LONGEST = 107


def base_folder() -> Path:
    """
    Where are the folders of all jobs of this user on this node?

    Returns:
        A folder that need not be there.  It does not follow ``TMPDIR``, which
        jobs and terminals often have different ideas of.
    """
    return Path(f"/tmp/distdebug-{os.geteuid()}")  # noqa: S108 it is checked


def job_folder() -> Path:
    """
    Where do the sockets of this job lie?

    Returns:
        ``DISTDEBUG_DIR``, or a folder below :func:`base_folder` that is named
        after the job.
    """
    if chosen := os.environ.get("DISTDEBUG_DIR"):
        return Path(chosen).absolute()

    job = current_identity().job or "job"
    name = re.sub(r"[^A-Za-z0-9._-]", "-", job).lstrip(".-") or "job"
    if len(name) > 32:
        import hashlib  # which loads a large library

        digest = hashlib.sha256(job.encode()).hexdigest()[:8]
        name = f"{name[:23]}-{digest}"
    return base_folder() / name


def job_folders() -> tuple[Path, ...]:
    """
    Which jobs of this user have, or had, sockets on this node?

    Returns:
        Their folders, sorted.

    Raises:
        DebuggerError: The folder of all jobs is not ours alone.
    """
    base = base_folder()
    if not base.exists():
        return ()

    check_folder(base)
    return tuple(
        sorted(p for p in base.iterdir() if p.is_dir() and not p.is_symlink())
    )


def make_folder(path: Path) -> None:
    """
    Make a folder that is ours alone, if it is not there.

    Args:
        path: The folder.

    Raises:
        DebuggerError: Something else is there, or it is not ours alone.

        OSError: It cannot be made.
    """
    if path.parent == base_folder():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        check_folder(path.parent)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path)


def check_folder(path: Path, *, or_anothers: bool = False) -> None:
    """
    Find out whether a folder is ours alone.

    Args:
        path: The folder.

        or_anothers: Whether root takes that of one other user as well, as it
            may to read one that it named.  Nothing is ever written there.

    Raises:
        DebuggerError: It is a link, is not ours, or others may enter it.

        OSError: It cannot be looked at.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        _refuse(path, "it is not a folder")
    may_be_anothers = or_anothers and os.geteuid() == 0
    if status.st_uid != os.geteuid() and not may_be_anothers:
        _refuse(path, f"it belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        _refuse(path, "others may enter it")


def _refuse(path: Path, reason: str) -> None:
    msg = f"{path} is not safe for a debugger: {reason}"
    raise DebuggerError(
        msg, remedy=f"chmod 700 {path}, or name another in DISTDEBUG_DIR"
    )


def socket_path(folder: Path, rank: int | None) -> Path:
    """
    Where does this process listen?

    Args:
        folder: The folder of the job.

        rank: Its rank.

    Returns:
        The path of its socket.

    Raises:
        DebuggerError: The kernel does not take so long a path.
    """
    who = "x" if rank is None else rank
    path = folder / f"{who}.{_namespace():x}.{os.getpid()}{_SUFFIX}"
    if len(os.fsencode(path)) > _LONGEST:
        msg = f"{path} is too long for a socket"
        raise DebuggerError(
            msg, remedy="name a shorter folder in DISTDEBUG_DIR"
        )

    return path


def _namespace() -> int:
    """
    In which namespace is our number ours?  Each container may have its own.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 lighter
    except OSError:
        return 0


def socket_paths(folder: Path) -> Iterator[tuple[Path, int]]:
    """
    Which sockets are in a folder?

    Args:
        folder: The folder of a job.

    Yields:
        The path of each, and the process that made it.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            _, _, pid = entry.name.removesuffix(_SUFFIX).rpartition(".")
            if entry.name.endswith(_SUFFIX) and pid.isdecimal():
                yield Path(entry.path), int(pid)


_ON_PATH = Path(__file__).parent / "on_path"


def job_environment(
    environ: Mapping[str, str] | None = None, *, post_mortem: bool = False
) -> dict[str, str]:
    """
    Which variables let every rank be asked, with no code of ours in the job?

    Each rank listens from its start on, and ``breakpoint()`` stops it.  For Ray,
    they are the ``env_vars`` of a runtime environment.

    Args:
        environ: The environment of the job so far; by default this one.

        post_mortem: Whether a rank that fails waits to be looked at, too.

    Returns:
        The variables to set.  What else is in ``PYTHONPATH`` stays there, and
        another ``sitecustomize`` runs as before.
    """
    known = os.environ if environ is None else environ
    path = known.get("PYTHONPATH", "")
    rest = [p for p in path.split(os.pathsep) if p and p != str(_ON_PATH)]
    return {
        "DISTDEBUG": "1",
        **({"DISTDEBUG_POST_MORTEM": "1"} if post_mortem else {}),
        "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
        "PYTHONPATH": os.pathsep.join([str(_ON_PATH), *rest]),
    }


def is_selected(
    by_rank: Iterable[range],
    by_dimension: Iterable[tuple[str, Iterable[range]]],
    rank: int,
    coords: Mapping[str, int],
) -> bool:
    """
    Is a rank among those that are meant?

    Args:
        by_rank: Ranks, if no dimension is named.

        by_dimension: The wanted indexes in some dimensions, by name.

        rank: The rank.

        coords: Its index in each dimension that it has.

    Returns:
        Whether it is; never, if it lacks one of the dimensions.
    """
    wanted = dict(by_dimension)
    if not wanted:
        rank = int(rank)  # ranges go through all they hold for other kinds
        return any(rank in ranks for ranks in by_rank)

    return all(
        name in coords and any(coords[name] in indexes for indexes in ranges)
        for name, ranges in wanted.items()
    )


LIMIT_BYTES = 1 << 20

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class WireError(ValueError):
    """
    What came is no message.
    """


class Feed:
    """
    Puts messages together from the pieces in which they arrive.
    """

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """
        Which messages are complete now?

        Args:
            data: What has arrived since the last call.

        Returns:
            The messages, in their order.

        Raises:
            WireError: A line is too long, no JSON, or no object.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LIMIT_BYTES:
            msg = f"a message is longer than {LIMIT_BYTES:,} bytes"
            raise WireError(msg)

        return [_message(line) for line in lines]


def _message(line: bytes) -> dict[str, Any]:
    if len(line) > LIMIT_BYTES:
        msg = f"a message is longer than {LIMIT_BYTES:,} bytes"
        raise WireError(msg)

    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        msg = "a message is not JSON"
        raise WireError(msg) from exc

    if not isinstance(message, dict):
        msg = "a message is not an object"
        raise WireError(msg)

    return message


def pack(message: dict[str, Any]) -> bytes:
    """
    How is a message sent?

    Args:
        message: Plain data.

    Returns:
        One line.

    Raises:
        WireError: It is too long.
    """
    line = json.dumps(message, separators=(",", ":")).encode()
    if len(line) > LIMIT_BYTES:
        msg = f"the message is longer than {LIMIT_BYTES:,} bytes"
        raise WireError(msg)

    return line + b"\n"


def peer_uid(connection: socket.socket) -> int:
    """
    Which user is at the other end, as the kernel says?

    Args:
        connection: A connected Unix socket.

    Returns:
        The number of the user.

    Raises:
        OSError: The kernel does not tell.
    """
    data = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


def may_talk(uid: int) -> bool:
    """
    May this user ask us, or answer us?

    Args:
        uid: Who is at the other end.

    Returns:
        Whether it is us, or root, who can do everything anyway.
    """
    return uid in {os.geteuid(), 0}
