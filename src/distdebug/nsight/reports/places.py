"""
Of which node, and of which session, is what lies in this folder?
"""

from __future__ import annotations

import os
import re
import socket

from collections.abc import Collection, Mapping
from pathlib import Path

from ..._files import matching, resolved


__all__ = ["node_of", "session_of", "temporary_folders"]

_SESSION = re.compile(r"session_[\w.-]{1,100}")
# Folders of Ray, and of those who copy its logs; any other is named after a
# node.
_COMMON = frozenset(
    {"ray", "logs", "nsight", "nsys", "tmp", "reports", "profiles"}
)


def temporary_folders(
    environ: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """
    Where does Ray keep its sessions on this node?

    Args:
        environ: The environment; by default that of this process.

    Returns:
        The folders ``logs/nsight`` of all sessions that are there.
    """
    environ = os.environ if environ is None else environ
    bases = [environ.get("RAY_TMPDIR"), environ.get("TMPDIR"), "/tmp"]  # noqa: S108 it is where Ray looks
    roots = {Path(base, "ray") for base in bases if base}
    found = {
        resolved(folder)
        for root in roots
        for folder in matching(root, "session*/logs/nsight")
    }
    return tuple(sorted(found))


def session_of(path: Path) -> str:
    """
    Of which session of Ray is this file?

    Args:
        path: Its path.

    Returns:
        The name of the session, if a folder bears it; else ``""``.
    """
    names = (part for part in path.parts if _SESSION.fullmatch(part))
    return next(names, "")


def node_of(path: Path, root: Path, own: Collection[Path] = ()) -> str:
    """
    Of which node is this file?

    Args:
        path: Its path.

        root: The folder below which it was found.

        own: Where Ray keeps such files on this node.

    Returns:
        The innermost folder below *root* whose name is not that of any
        session; this node, if Ray itself keeps the file here; else ``""``.
    """
    if path.parent in own:
        return socket.gethostname()

    names = (
        part
        for part in reversed(path.relative_to(root).parts[:-1])
        if part not in _COMMON and not _SESSION.fullmatch(part)
    )
    return next(names, "")
