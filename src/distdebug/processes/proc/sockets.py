"""
Which connection is behind a socket?
"""

from __future__ import annotations

import socket
import struct

from collections.abc import Iterator

from .procfs import read_proc


__all__ = ["describe_socket", "tcp_inodes"]

# A node that serves many clients has long tables; 16 MiB are 100,000 lines.
_MOST = 1 << 24
# As in the kernel's ``tcp_states.h``.
_STATES = {
    "01": "",  # established: what one expects
    "02": "SYN_SENT",
    "03": "SYN_RECV",
    "04": "FIN_WAIT1",
    "05": "FIN_WAIT2",
    "06": "TIME_WAIT",
    "07": "CLOSE",
    "08": "CLOSE_WAIT",
    "09": "LAST_ACK",
    "0A": "LISTEN",
    "0B": "CLOSING",
}


def describe_socket(pid: int, inode: str, root: str = "/proc") -> str:
    """
    Which connection is behind a socket?

    Args:
        pid: A process in the network that the socket belongs to.

        inode: What the kernel calls the socket.

        root: Where the kernel's files are.

    Returns:
        ``"tcp 10.0.0.1:5000 -> 10.0.0.2:29500"``, with the state at its end
        if it is not established; ``"unix PATH"``; ``""`` if unknown.
    """
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _rows(pid, name, root):
            if len(fields) > 9 and fields[9] == inode:
                return _connection(name.rstrip("6"), fields)

    for fields in _rows(pid, "unix", root):
        if len(fields) > 6 and fields[6] == inode:
            return " ".join(["unix", *fields[7:]])
    return ""


def tcp_inodes(pid: int, root: str = "/proc") -> frozenset[str]:
    """
    Which sockets, in the network of this process, are of TCP?

    Args:
        pid: A process in that network.

        root: Where the kernel's files are.

    Returns:
        What the kernel calls them.
    """
    return frozenset(
        fields[9]
        for name in ("tcp", "tcp6")
        for fields in _rows(pid, name, root)
        if len(fields) > 9
    )


def _rows(pid: int, name: str, root: str) -> Iterator[list[str]]:
    data = read_proc(f"{root}/{pid}/net/{name}", limit=_MOST) or b""
    lines = data.decode(errors="replace").split("\n")
    return (line.split() for line in lines[1:])


def _connection(kind: str, fields: list[str]) -> str:
    local, remote = _address(fields[1]), _address(fields[2])
    state = _STATES.get(fields[3], "") if kind == "tcp" else ""
    has_peer = not remote.endswith(":0")
    return " ".join(
        [kind, local, *(["->", remote] if has_peer else []), state]
    ).rstrip()


def _address(text: str) -> str:
    """
    Read an address as the kernel prints it: words of 32 bits, swapped.
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

    # Sockets of both families show addresses of the old one in the new.
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
