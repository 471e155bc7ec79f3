"""
Socket folders, message framing, and peer checks of the debugger protocol.

A debugger runs code as the user of the job, so no other user may reach its
sockets: only the owner may access their folder.

Training jobs import this module: it needs only the standard library.
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

from .._io import make_private_folder
from ..errors import DebuggerError
from ..identity import current_identity


_SOCKET_SUFFIX = ".sock"
# sun_path has 108 bytes, with the final NUL (man 7 unix).
_MAX_SOCKET_PATH = 107


def base_folder() -> Path:
    """
    Return the folder that holds the job folders of this user on this node.

    The folder may not exist yet.  It does not follow ``TMPDIR``: jobs and
    terminals often have different values of it.
    """
    return Path(f"/tmp/distdebug-{os.geteuid()}")  # noqa: S108 it is checked


def job_folder() -> Path:
    """
    Return the folder for the sockets of this job.

    Returns:
        ``DISTDEBUG_DIR``, or a folder below :func:`base_folder` that has the
        name of the job.
    """
    if chosen := os.environ.get("DISTDEBUG_DIR"):
        return Path(chosen).absolute()

    job = current_identity().job or "job"
    name = re.sub(r"[^A-Za-z0-9._-]", "-", job).lstrip(".-") or "job"
    if len(name) > 32:
        import hashlib  # slow to import

        digest = hashlib.sha256(job.encode()).hexdigest()[:8]
        name = f"{name[:23]}-{digest}"
    return base_folder() / name


def job_folders() -> tuple[Path, ...]:
    """
    Return the folders of all jobs of this user on this node, sorted.

    A folder stays when its job has ended.

    Raises:
        DebuggerError: Other users can access :func:`base_folder`.
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
    Create a folder that only this user can access, unless it exists.

    Raises:
        DebuggerError: The path is not a folder, or other users can access it.

        OSError: The folder cannot be created.
    """
    if path.parent == base_folder():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        check_folder(path.parent)
    make_private_folder(path)
    check_folder(path)


def check_folder(path: Path, *, allow_other_owner: bool = False) -> None:
    """
    Check that a folder is private to this user.

    Args:
        allow_other_owner: Whether root accepts the folder of another user, as
            when root names the folder to read.  Nothing is written there.

    Raises:
        DebuggerError: The path is a link or no folder, has another owner, or
            gives other users access.

        OSError: The folder cannot be read.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        _raise_unsafe(path, "it is not a folder")
    may_be_other_owner = allow_other_owner and os.geteuid() == 0
    if status.st_uid != os.geteuid() and not may_be_other_owner:
        _raise_unsafe(path, f"it belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        _raise_unsafe(path, "others may enter it")


def _raise_unsafe(path: Path, reason: str) -> None:
    msg = f"{path} is not safe for a debugger: {reason}"
    raise DebuggerError(
        msg, remedy=f"chmod 700 {path}, or name another in DISTDEBUG_DIR"
    )


def socket_path(folder: Path, rank: int | None) -> Path:
    """
    Return the path of the socket of this process.

    Args:
        rank: None if the rank is unknown.

    Raises:
        DebuggerError: The path is too long for the kernel.
    """
    rank_part = "x" if rank is None else rank
    path = (
        folder
        / f"{rank_part}.{_pid_namespace():x}.{os.getpid()}{_SOCKET_SUFFIX}"
    )
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        msg = f"{path} is too long for a socket"
        raise DebuggerError(
            msg, remedy="name a shorter folder in DISTDEBUG_DIR"
        )

    return path


def _pid_namespace() -> int:
    """
    Return the inode of our PID namespace: each container may have its own.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 lighter
    except OSError:
        return 0


def socket_paths(folder: Path) -> Iterator[tuple[Path, int]]:
    """
    Yield the path of each socket in a folder, and the PID of its process.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            _, _, pid = entry.name.removesuffix(_SOCKET_SUFFIX).rpartition(".")
            if entry.name.endswith(_SOCKET_SUFFIX) and pid.isdecimal():
                yield Path(entry.path), int(pid)


def socket_rank(path: str) -> int | None:
    """
    Return the rank in the name of a socket; ``None`` if it has none.
    """
    number, _, _ = path.rpartition("/")[2].partition(".")
    # Other nodes may send any name.
    return int(number) if number.isdecimal() and len(number) < 10 else None


_SITE_FOLDER = Path(__file__).parent / "on_path"


def job_environment(
    environ: Mapping[str, str] | None = None, *, post_mortem: bool = False
) -> dict[str, str]:
    """
    Return the variables that make every rank debuggable without code changes.

    Each rank listens from its start on, and ``breakpoint()`` stops it.  For
    Ray, pass them as the ``env_vars`` of a runtime environment.

    Args:
        environ: The environment of the job; by default that of this process.

        post_mortem: Whether a rank that fails waits for a client, too.

    Returns:
        The variables to set.  Other entries of ``PYTHONPATH`` are kept, and
        another ``sitecustomize`` still runs.
    """
    variables = os.environ if environ is None else environ
    path = variables.get("PYTHONPATH", "")
    rest = [p for p in path.split(os.pathsep) if p and p != str(_SITE_FOLDER)]
    return {
        "DISTDEBUG": "1",
        **({"DISTDEBUG_POST_MORTEM": "1"} if post_mortem else {}),
        "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
        "PYTHONPATH": os.pathsep.join([str(_SITE_FOLDER), *rest]),
    }


def is_selected(
    by_rank: Iterable[range],
    by_dimension: Iterable[tuple[str, Iterable[range]]],
    rank: int,
    coords: Mapping[str, int],
) -> bool:
    """
    Return whether a selection contains a rank.

    Args:
        by_rank: The selected ranks; ignored if a dimension is named.

        by_dimension: The selected indexes, by dimension name.

        coords: The index of the rank in each of its dimensions.

    Returns:
        Always False if the rank lacks one of the named dimensions.
    """
    ranges_by_name = dict(by_dimension)
    if not ranges_by_name:
        rank = int(rank)  # `in` is slow on a range for other types
        return any(rank in ranks for ranks in by_rank)

    return all(
        name in coords and any(coords[name] in indexes for indexes in ranges)
        for name, ranges in ranges_by_name.items()
    )


MAX_MESSAGE_BYTES = 1 << 20

Message = dict[str, Any]
"""A request or an answer: plain data."""

_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


class WireError(DebuggerError, ValueError):
    """
    Raised for data that is no valid message.
    """


class MessageDecoder:
    """
    Decode messages from a stream of bytes.
    """

    def __init__(self) -> None:
        self._rest = b""

    def decode(self, data: bytes) -> list[Message]:
        """
        Return the messages that *data* completes, in order.

        Raises:
            WireError: A line is too long, no JSON, or no object.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > MAX_MESSAGE_BYTES:
            msg = f"a message is longer than {MAX_MESSAGE_BYTES:,} bytes"
            raise WireError(msg)

        return [_parse_message(line) for line in lines]


def _parse_message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        msg = "a message is not JSON"
        raise WireError(msg) from exc

    if not isinstance(message, dict):
        msg = "a message is not an object"
        raise WireError(msg)

    return message


def encode_message(message: Message) -> bytes:
    """
    Encode a message as one line of JSON.

    Raises:
        WireError: The line is too long.
    """
    line = json.dumps(message, separators=(",", ":")).encode()
    if len(line) > MAX_MESSAGE_BYTES:
        msg = f"the message is longer than {MAX_MESSAGE_BYTES:,} bytes"
        raise WireError(msg)

    return line + b"\n"


def encode_answer(answer: Message) -> bytes:
    """
    Encode an answer; one that is too long becomes an error with its ID.
    """
    try:
        return encode_message(answer)
    except WireError as exc:
        return encode_message({"id": answer.get("id"), "error": str(exc)})


def peer_uid(connection: socket.socket) -> int:
    """
    Return the user ID of the peer, as the kernel reports it.

    Args:
        connection: A connected Unix socket.

    Raises:
        OSError: The kernel does not report it.
    """
    data = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size
    )
    _, uid, _ = _UCRED.unpack(data)
    return int(uid)


def is_allowed_peer(uid: int) -> bool:
    """
    Return whether a user may debug this process: its owner, or root.
    """
    return uid in {os.geteuid(), 0}
