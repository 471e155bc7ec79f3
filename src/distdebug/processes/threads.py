"""
Read thread states, idle times, and sockets from ``/proc``.

Nothing here stops a process, or needs permission to trace it.
"""

from __future__ import annotations

import os
import re
import socket
import struct

from collections.abc import Iterable, Iterator

import attrs

from .._text import clean
from .model import ProcessState
from .procfs import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
    whole_number,
)


# A node with many clients has long tables; 16 MiB are 100,000 lines.
_MAX_TABLE_BYTES = 1 << 24
# As in the kernel's ``tcp_states.h``, from 2; 1 is ESTABLISHED, not shown.
_TCP_STATE_NAMES = """
SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK
LISTEN CLOSING
"""
_TCP_STATES = {
    f"{number:02X}": name
    for number, name in enumerate(_TCP_STATE_NAMES.split(), 2)
}


def describe_socket(pid: int, inode: str, root: str = "/proc") -> str:
    """
    Return the connection of a socket, as text.

    Args:
        pid: A process in the network namespace of the socket.

        inode: Inode of the socket.

        root: Mount point of procfs.

    Returns:
        ``"tcp 10.0.0.1:5000 -> 10.0.0.2:29500"``, with the state at its end if
        it is not established; ``"unix PATH"``; ``""`` if unknown.
    """
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _socket_rows(pid, name, root):
            if len(fields) > 9 and fields[9] == inode:
                return _describe_connection(name.rstrip("6"), fields)

    for fields in _socket_rows(pid, "unix", root):
        if len(fields) > 6 and fields[6] == inode:
            return " ".join(["unix", *fields[7:]])
    return ""


def tcp_inodes(pid: int, root: str = "/proc") -> frozenset[str]:
    """
    Return the inodes of all TCP sockets in the network namespace of a process.
    """
    return frozenset(
        fields[9]
        for name in ("tcp", "tcp6")
        for fields in _socket_rows(pid, name, root)
        if len(fields) > 9
    )


def _socket_rows(pid: int, name: str, root: str) -> Iterator[list[str]]:
    data = read_proc(f"{root}/{pid}/net/{name}", limit=_MAX_TABLE_BYTES) or b""
    lines = data.decode(errors="replace").split("\n")
    return (line.split() for line in lines[1:])


def _describe_connection(kind: str, fields: list[str]) -> str:
    local, remote = _parse_address(fields[1]), _parse_address(fields[2])
    state = _TCP_STATES.get(fields[3], "") if kind == "tcp" else ""
    has_peer = not remote.endswith(":0")
    return " ".join(
        [kind, local, *(["->", remote] if has_peer else []), state]
    ).rstrip()


def _parse_address(text: str) -> str:
    """
    Parse an address of ``/proc/net/tcp``: byte-swapped words of 32 bits in
    hex.
    """
    digits, _, port = text.partition(":")
    try:
        raw = bytes.fromhex(digits)
        words = struct.unpack(f"={len(raw) // 4}I", raw)
        swapped = struct.pack(f">{len(words)}I", *words)
        family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
        host = socket.inet_ntop(family, swapped)
        number = int(port, 16)
    except (ValueError, struct.error):
        return text

    # IPv6 sockets show IPv4 peers as mapped addresses.
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


_MAX_THREADS = 4096
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class ThreadFacts:
    """
    State and counters of a thread, which every user may read.

    Attributes:
        name: Its name of at most 15 characters.

        state: The letter of its state, such as ``"S"``.

        voluntary: Number of voluntary context switches.

        involuntary: Number of involuntary context switches.

        cpu_s: CPU time since it started, in seconds.

        io_bytes: What it has written, to whatever, and read from storage, in
            bytes; ``None`` if it may not be read.
    """

    name: str
    state: str
    voluntary: int
    involuntary: int
    cpu_s: float
    io_bytes: int | None = None


def read_threads(pid: int, root: str = "/proc") -> dict[int, ThreadFacts]:
    """
    Return state and counters of the threads of a process.

    Returns:
        By thread ID, in order; of the first 4,096 threads.  Empty if the
        process has ended.
    """
    folder = f"{root}/{pid}/task"
    facts = {
        thread: _read_facts(f"{folder}/{thread}")
        for thread in list_numbers(folder)[:_MAX_THREADS]
    }
    return {thread: x for thread, x in facts.items() if x is not None}


def _read_facts(folder: str) -> ThreadFacts | None:
    stat = parse_stat(read_proc(f"{folder}/stat"))
    if stat is None:
        return None

    status = parse_status(read_proc(f"{folder}/status"))
    return ThreadFacts(
        name=clean(stat.name),
        state=stat.letter,
        voluntary=whole_number(status.get("voluntary_ctxt_switches")) or 0,
        involuntary=whole_number(status.get("nonvoluntary_ctxt_switches"))
        or 0,
        cpu_s=_read_cpu_s(folder, stat.cpu_ticks),
        io_bytes=_read_io_bytes(folder),
    )


def _read_cpu_s(folder: str, ticks: int) -> float:
    # schedstat has nanoseconds; ticks are 10 ms.
    data = read_proc(f"{folder}/schedstat", limit=128)
    spent = whole_number(next(iter((data or b"").split()), None))
    return ticks / _TICKS_PER_S if spent is None else spent / 1e9


def _read_io_bytes(folder: str) -> int | None:
    # A loop that reads a cached file again and again has no read_bytes.
    counts = parse_status(read_proc(f"{folder}/io"))
    written = whole_number(counts.get("wchar"))
    read = whole_number(counts.get("read_bytes"))
    return None if written is None or read is None else written + read


_EXEC_START = re.compile(rb"^se\.exec_start\s*:\s*(\d+\.\d+)", re.MULTILINE)
_MAX_BYTES = 4096


def idle_seconds(pid: int, tid: int, *, root: str = "/proc") -> float | None:
    """
    Return how long ago a thread last ran.

    CPU clocks differ by a few milliseconds, and by more on busy virtual
    machines.

    Args:
        root: Mount point of procfs.

    Returns:
        Seconds, approximately; ``None`` if this kernel does not report it.
    """
    now = _read_exec_start(f"{root}/thread-self/sched")
    last = _read_exec_start(f"{root}/{pid}/task/{tid}/sched")
    # It is 0 for a thread that has not run since it moved to another CPU.
    if not now or not last:
        return None

    return max(0.0, (now - last) / 1000)


def _read_exec_start(path: str) -> float | None:
    match = _EXEC_START.search(read_proc(path, limit=_MAX_BYTES) or b"")
    return float(match[1]) if match else None


def read_state(pid: int, root: str = "/proc") -> ProcessState | None:
    """
    Return the state of a process; ``None`` if there is no such process.

    Args:
        root: Mount point of procfs.
    """
    stat = parse_stat(read_proc(f"{root}/{pid}/stat"))
    if stat is None:
        return None

    status = parse_status(read_proc(f"{root}/{pid}/status"))
    return ProcessState(
        letter=stat.letter,
        start_ticks=stat.start_ticks,
        tracer_pid=_parse_column(status.get("TracerPid"), 0),
        uid=_parse_column(status.get("Uid"), 1),
        uninterruptible=_list_uninterruptible(pid, root),
        pid_inside=_parse_column(status.get("NSpid"), -1) or pid,
    )


def first_start(pids: Iterable[int], root: str = "/proc") -> float | None:
    """
    Return when the first of some processes started.

    Args:
        root: Mount point of procfs.

    Returns:
        Seconds since boot; ``None`` if there is none of them.
    """
    stats = (parse_stat(read_proc(f"{root}/{pid}/stat")) for pid in pids)
    ticks = min((x.start_ticks for x in stats if x), default=None)
    return None if ticks is None else ticks / _TICKS_PER_S


def _parse_column(text: str | None, column: int) -> int:
    try:
        return int((text or "").split()[column])
    except (ValueError, IndexError):
        return 0


def _list_uninterruptible(pid: int, root: str) -> tuple[int, ...]:
    folder = f"{root}/{pid}/task"
    threads = list_numbers(folder)[:_MAX_THREADS]
    stats = ((t, parse_stat(read_proc(f"{folder}/{t}/stat"))) for t in threads)
    return tuple(t for t, stat in stats if stat and stat.letter == "D")
