"""
What proves that a process is a rank?

A notebook may have torch loaded, and half a node may have inherited ``RANK``
from its container.  Threads of the libraries that carry collectives, or a
connection to the place where ranks meet, only ranks have.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from ...identity import Identity, identify
from ..environ import read_environ
from ..proc.maps import Maps, read_maps
from ..proc.procfs import list_numbers, read_link, read_proc
from ..proc.sockets import tcp_inodes
from .frameworks import RANK_THREADS


__all__ = ["Evidence", "has_connection", "has_rank_threads", "read_evidence"]

_MOST_THREADS = 1024
_MOST_DESCRIPTORS = 1024


@attrs.frozen(kw_only=True)
class Evidence:
    """
    What the memory of a process shows.

    Attributes:
        environ: Its environment.

        source: How that was learned; ``""`` if it was not.

        identity: Who the process is by its environment.

        has_torch: Whether torch is loaded.
    """

    environ: Mapping[str, str] = MappingProxyType({})
    source: str = ""
    identity: Identity = identify({})  # noqa: RUF009 it cannot be changed
    has_torch: bool = False


def read_evidence(pid: int, root: str = "/proc") -> Evidence:
    """
    What does the memory of a process show?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

    Returns:
        What may be read of it.
    """
    maps = read_maps(pid, root) or Maps()
    environ, source = read_environ(pid, root, maps=maps)
    return Evidence(
        environ=environ,
        source=source,
        identity=identify(environ),
        has_torch=maps.has_torch,
    )


def has_rank_threads(pid: int, root: str = "/proc") -> bool:
    """
    Does a process have threads that carry collectives?

    A forked child does not inherit them.

    Args:
        pid: Its number.

        root: Where the kernel's files are.
    """
    folder = f"{root}/{pid}/task"
    for thread in list_numbers(folder)[:_MOST_THREADS]:
        name = read_proc(f"{folder}/{thread}/comm", limit=64) or b""
        if RANK_THREADS.match(name.decode(errors="replace")):
            return True
    return False


def has_connection(pid: int, root: str = "/proc") -> bool:
    """
    Does a process have a TCP socket, such as to where ranks meet?

    Args:
        pid: Its number.

        root: Where the kernel's files are.
    """
    folder = f"{root}/{pid}/fd"
    links = (
        read_link(f"{folder}/{number}")
        for number in list_numbers(folder)[:_MOST_DESCRIPTORS]
    )
    inodes = {x[8:-1] for x in links if x.startswith("socket:[")}
    return bool(inodes) and not inodes.isdisjoint(tcp_inodes(pid, root))
