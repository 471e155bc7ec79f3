"""
What is a system call about?

A number of a file descriptor says nothing; the file, pipe, or connection
behind it does.
"""

from __future__ import annotations

import struct

from collections.abc import Sequence

from ..._text import clean
from .file_locks import lock_holder
from .memory import open_memory, read_c_string
from .procfs import read_link
from .sockets import describe_socket


__all__ = ["describe_descriptor", "target_of"]

_DESCRIPTOR_CALLS = """
accept accept4 close connect copy_file_range epoll_pwait epoll_pwait2
epoll_wait fadvise64 fallocate fcntl fdatasync flock fstat fsync ftruncate
getdents getdents64 io_uring_enter ioctl lseek mq_timedreceive mq_timedsend
pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readv recvfrom recvmmsg
recvmsg sendfile sendmmsg sendmsg sendto splice sync_file_range syncfs write
writev
"""
_BY_DESCRIPTOR = frozenset(_DESCRIPTOR_CALLS.split())
_LOCKING = frozenset({"flock", "fcntl"})
# Which argument is the address of the path.
_BY_PATH = {
    "faccessat2": 1,
    "lstat": 0,
    "mkdir": 0,
    "mkdirat": 1,
    "newfstatat": 1,
    "open": 0,
    "openat": 1,
    "openat2": 1,
    "rename": 0,
    "renameat": 1,
    "renameat2": 1,
    "rmdir": 0,
    "stat": 0,
    "statx": 1,
    "truncate": 0,
    "unlink": 0,
    "unlinkat": 1,
}
_POLLFD = struct.Struct("=ihh")
_MOST_POLLED = 4
_MOST_NAME = 350
_P_PID = 1  # of waitid


def target_of(
    pid: int, name: str, arguments: Sequence[int], root: str = "/proc"
) -> str:
    """
    What is this system call about?

    Args:
        pid: The process that made it.

        name: The call.

        arguments: Its arguments, as the kernel shows them.

        root: Where the kernel's files are.

    Returns:
        A file, a connection, a pipe, a process, or ``""`` if that is unknown.
        After a file that is locked, ``", held by process 7"``.
    """
    first, second = (*arguments, 0, 0)[:2]
    if name in _BY_DESCRIPTOR:
        file = describe_descriptor(pid, _signed(first), root)
        return _lock(pid, file, root) if name in _LOCKING else file
    if name in _BY_PATH:
        return _path(pid, (first, second)[_BY_PATH[name]], root)
    if name in {"poll", "ppoll"}:
        return _polled(pid, first, second, root)
    if name in {"wait4", "waitid"}:
        return _process(name, _signed(first), _signed(second))
    return ""


def describe_descriptor(pid: int, number: int, root: str = "/proc") -> str:
    """
    What does a file descriptor stand for?

    Args:
        pid: The process that has it.

        number: The descriptor.

        root: Where the kernel's files are.

    Returns:
        A path, ``"pipe:[7]"``, ``"tcp LOCAL -> REMOTE"`` with its state if it
        is not established, ``"unix PATH"``, or what else the kernel calls it;
        ``""`` if that is unknown.
    """
    link = read_link(f"{root}/{pid}/fd/{number}")
    if link.startswith("socket:["):
        return describe_socket(pid, link[8:-1], root) or link
    return link


def _lock(pid: int, file: str, root: str) -> str:
    holder = lock_holder(pid, root)
    if holder is None:
        return file
    # Who holds it has to survive where long names are cut.
    return f"{clean(file, limit=_MOST_NAME)}, held by process {holder}"


def _path(pid: int, address: int, root: str) -> str:
    with open_memory(pid, root) as memory:
        return read_c_string(memory, address, limit=4096)


def _polled(pid: int, address: int, count: int, root: str) -> str:
    with open_memory(pid, root) as memory:
        data = memory(address, _POLLFD.size * min(count, _MOST_POLLED))

    whole = len(data) // _POLLFD.size * _POLLFD.size
    numbers = [fd for fd, _, _ in _POLLFD.iter_unpack(data[:whole]) if fd >= 0]
    shown = [describe_descriptor(pid, fd, root) for fd in numbers]
    more = [f"{count - _MOST_POLLED} more"] if count > _MOST_POLLED else []
    return ", ".join([x for x in shown if x] + more)


def _process(name: str, first: int, second: int) -> str:
    if name == "waitid":  # what the second is, the first one tells
        first = second if first == _P_PID else 0
    return f"process {first}" if first > 0 else "any child"


def _signed(argument: int) -> int:
    # Arguments are shown as 64 bits, of which an int takes the lower 32.
    number = argument & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number
