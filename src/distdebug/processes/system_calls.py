"""
Find the system call that a thread is blocked in, and what it waits for.

Only this needs permission to trace the process; it does not stop it.
"""

from __future__ import annotations

import os
import re
import stat
import struct

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .._rules import read_toml
from .._text import clean
from .procfs import (
    find_lock_holder,
    open_memory,
    parse_stat,
    read_c_string,
    read_items,
    read_link,
    read_mounts,
    read_proc,
)
from .threads import describe_socket


class BlockedCall(NamedTuple):
    """
    A system call that a thread is blocked in.

    Attributes:
        name: Such as ``"read"``; ``"running"`` if the thread is not blocked.

        target: A path, a connection, a pipe, or a process; ``""`` if unknown.

        holder: The process that holds the lock it waits for; ``None`` if it
            waits for none, or nobody knows.

        note: What is particular about the target, such as ``"on nfs4 from
            filer:/home"``.

        is_fifo: Whether the target is a FIFO, which waits for its other end.
    """

    name: str
    target: str = ""
    holder: int | None = None
    note: str = ""
    is_fifo: bool = False


_MAX_TARGET_CHARS, _MAX_NOTE_CHARS = 400, 200


def read_system_call(
    pid: int, thread_id: int, root: str = "/proc"
) -> BlockedCall | None:
    """
    Return the system call that a thread is blocked in.

    Returns:
        ``None`` if the kernel does not say.
    """
    thread = f"{root}/{pid}/task/{thread_id}"
    data = read_proc(f"{thread}/syscall", limit=512)
    fields = (data or b"").decode("ascii", errors="replace").split()
    if fields[:1] == ["running"]:
        return BlockedCall("running")

    try:
        number = int(fields[0])
        arguments = [int(x, 16) for x in fields[1:7]]
    except (ValueError, IndexError):
        return None
    if number < 0:  # blocked outside a system call: on a page fault
        return None

    name = system_call_name(number)
    target = describe_target(pid, name, arguments, root)
    note, is_fifo = _describe_file(thread, name, arguments, target)
    return BlockedCall(
        name=name,
        target=clean(target, limit=_MAX_TARGET_CHARS),
        holder=find_lock_holder(pid, root) if name in _LOCK_CALLS else None,
        note=clean(note, limit=_MAX_NOTE_CHARS),
        is_fifo=is_fifo,
    )


_LOCK_CALLS = frozenset({"flock", "fcntl"})
_POLLFD = struct.Struct("=ihh")
_MAX_POLLED = 4
_P_PID = 1  # of waitid
_AT_FDCWD = -100


def describe_target(
    pid: int, name: str, arguments: Sequence[int], root: str = "/proc"
) -> str:
    """
    Return the file, connection, or process that a system call is about.

    Args:
        pid: The process that made the call.

        name: The call.

        arguments: Its arguments, as in ``/proc/PID/syscall``.

    Returns:
        A path, a connection, a pipe, a process, or ``""`` if unknown.
    """
    first, second = (*arguments, 0, 0)[:2]
    known = _system_calls()["arguments"]
    if name in known["descriptor"]:
        return describe_descriptor(pid, _to_int32(first), root)
    if name in known["first_path"]:
        return _read_path(pid, first, _AT_FDCWD, root)
    if name in known["second_path"]:
        return _read_path(pid, second, _to_int32(first), root)
    if name in {"poll", "ppoll"}:
        return _describe_polled(pid, first, second, root)
    if name in {"wait4", "waitid"}:
        return _describe_child(name, _to_int32(first), _to_int32(second))
    return ""


def describe_descriptor(pid: int, number: int, root: str = "/proc") -> str:
    """
    Return the file or connection of a file descriptor.

    Args:
        pid: The process that has it.

        number: The descriptor.

    Returns:
        A path, ``"pipe:[7]"``, ``"tcp LOCAL -> REMOTE"`` with its state if it
        is not established, ``"unix PATH"``, or another link target of the
        kernel; ``""`` if unknown.
    """
    link = read_link(f"{root}/{pid}/fd/{number}")
    if link.startswith("socket:["):
        return describe_socket(pid, link[8:-1], root) or link
    return link


# Of open and openat, the argument with the flags.
_OPEN_FLAGS = {"open": 1, "openat": 2}
# File systems over a network, whose servers may not answer.
_REMOTE_FILE_SYSTEM = re.compile(
    r"nfs|autofs|lustre|gpfs|ceph|cifs|smb|fuse|beegfs|wekafs|9p|afs|glusterfs|panfs"
)


def _describe_file(
    thread: str, name: str, arguments: Sequence[int], path: str
) -> tuple[str, bool]:
    """
    Say what is particular about a file that a thread waits for.

    Args:
        thread: The folder of the thread in ``/proc``.

        arguments: Those of the system call.

        path: The file, as :func:`describe_target` returns it.

    Returns:
        That it lies on a network, or is a FIFO, which waits for its other end,
        ``""`` if it is an ordinary file, or no file; and whether it is a FIFO.
    """
    if not path.startswith("/"):
        return "", False
    kind, source = _find_mount(thread, path)
    if _REMOTE_FILE_SYSTEM.match(kind):
        return f"on {kind} from {source}", False
    if not _is_fifo(thread, path):
        return "", False
    if name not in _OPEN_FLAGS:
        return "a FIFO", True
    flags = (*arguments, 0, 0, 0)[_OPEN_FLAGS[name]]
    other = "reading" if flags & os.O_ACCMODE == os.O_WRONLY else "writing"
    return f"a FIFO that no process has open for {other}", True


def _is_fifo(thread: str, path: str) -> bool:
    """
    Return whether a thread that sleeps waits for a FIFO.

    A thread that does not sleep may wait for a disk that does not answer, and
    whoever asks for the type of the file would wait for it, too.
    """
    state = parse_stat(read_proc(f"{thread}/stat"))
    if state is None or state.letter != "S":
        return False
    try:
        return stat.S_ISFIFO(os.stat(f"{thread}/root{path}").st_mode)  # noqa: PTH116
    except OSError:
        return False


def _find_mount(thread: str, path: str) -> tuple[str, str]:
    """
    Return type and source of the file system that a path lies on.
    """
    below = [
        mount
        for mount in read_mounts(thread)
        if path.startswith(mount.point.rstrip("/") + "/")
    ]
    # Of those at one point, the last hides the others.
    best = max(reversed(below), key=lambda x: len(x.point), default=None)
    return (best.kind, best.source) if best else ("", "")


def _read_path(pid: int, address: int, folder: int, root: str) -> str:
    """
    Return a path from the memory of a process.

    Args:
        folder: The descriptor of the folder that it is relative to.
    """
    with open_memory(pid, root) as memory:
        path = read_c_string(memory, address, limit=4096)
    if not path or path.startswith("/"):
        return path
    link = "cwd" if folder == _AT_FDCWD else f"fd/{folder}"
    base = read_link(f"{root}/{pid}/{link}")
    return f"{base}/{path.removeprefix('./')}" if base else path


def _describe_polled(pid: int, address: int, count: int, root: str) -> str:
    with open_memory(pid, root) as memory:
        found = read_items(memory, _POLLFD, address, min(count, _MAX_POLLED))
    numbers = [fd for fd, _, _ in found if fd >= 0]
    shown = [describe_descriptor(pid, fd, root) for fd in numbers]
    more = [f"{count - _MAX_POLLED} more"] if count > _MAX_POLLED else []
    return ", ".join([x for x in shown if x] + more)


def _describe_child(name: str, first: int, second: int) -> str:
    if name == "waitid":  # the first argument gives the type of the second
        first = second if first == _P_PID else 0
    return f"process {first}" if first > 0 else "any child"


def _to_int32(argument: int) -> int:
    # The kernel shows 64 bits; an int is the lower 32.
    number = argument & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


@cache
def _system_calls() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("system_calls.toml"))


@cache
def _call_names(machine: str) -> dict[int, str]:
    numbers = _system_calls()["numbers"]
    known = numbers["common"] | numbers[machine] if machine in numbers else {}
    return {number: name for name, number in known.items()}


def system_call_name(number: int, machine: str | None = None) -> str:
    """
    Return the name of a system call.

    Args:
        number: As in ``/proc/PID/syscall``.

        machine: Architecture, as in ``uname -m``; by default that of this
            machine.

    Returns:
        Its name; ``"syscall_N"`` if unknown.
    """
    names = _call_names(machine or os.uname().machine)
    return names.get(number, f"syscall_{number}")
