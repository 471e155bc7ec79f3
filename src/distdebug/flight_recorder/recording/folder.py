"""
Where may dumps be put?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import stat
import tempfile

from pathlib import Path

from ...errors import RecorderError


__all__ = ["default_root", "make_folder", "unguessable_root"]

_REMEDY = "name a folder of your own with dump_dir= or DISTDEBUG_DUMP_DIR"


def default_root() -> Path:
    """
    Below which folder do dumps go when nobody says where?

    Returns:
        A folder of this user in the system's temporary folder.
    """
    return Path(tempfile.gettempdir(), f"distdebug-{os.getuid()}").absolute()


def unguessable_root() -> Path:
    """
    Where can dumps go if they cannot go where they should?

    Returns:
        A folder that nobody knows, and that is not there yet.
    """
    root = default_root()
    return root.with_name(f"{root.name}-{os.urandom(8).hex()}")


def make_folder(folder: Path) -> None:
    """
    Make the folder of the dumps, for its owner alone.

    Anybody can guess :func:`default_root`, and make it first to read our
    stacks or to have us write elsewhere.  There, every part must be ours.

    Args:
        folder: The folder.

    Raises:
        RecorderError: It cannot be made, or is not safe to use.
    """
    root = default_root()
    try:
        if root in (folder, *folder.parents):
            for part in (*reversed(folder.parents), folder):
                if root in (part, *part.parents):
                    _make_private(part)
        else:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        msg = f"cannot make the folder for dumps: {exc}"
        raise RecorderError(msg, remedy=_REMEDY) from exc

    if not os.access(folder, os.W_OK | os.X_OK):
        msg = f"cannot write to the folder for dumps: {folder}"
        raise RecorderError(msg, remedy=_REMEDY)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            return
        msg = f"somebody else made the folder for dumps: {folder}"
        raise RecorderError(msg, remedy=_REMEDY) from None
