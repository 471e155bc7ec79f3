"""
Who is at work on a snapshot that is not finished?

A mark in its folder tells.  It is there at once with all that it says, so that
nobody ever sees half of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil

from pathlib import Path

from .._files import read_ordinary


__all__ = [
    "MARK",
    "is_begun_by",
    "run_in_mark",
    "set_mark",
    "take_over",
    "unmark",
]

# There while a snapshot is taken; still there if that was killed.
MARK = ".unfinished"

# Names of nodes never begin like these.
_RUN = ".run"
_HEIR = ".heir"
_MOST_BYTES = 1 << 20
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}


def set_mark(bundle: Path, host: str, run: str | None) -> bool:
    """
    Say that a snapshot is taken, unless somebody says so already.

    Args:
        bundle: Its folder.

        host: The node that begins it, and is the one to finish it.

        run: What tells the run of the job from others; ``None`` if nobody is
            to take part.

    Returns:
        Whether it is ours.

    Raises:
        OSError: It cannot be written.
    """
    mark = bundle / MARK
    draft = bundle / f"{MARK}.{secrets.token_hex(8)}"
    try:
        draft.mkdir(mode=0o700)
        _note(draft, host, run)
        # Over another mark that says anything, that fails.
        draft.rename(mark)
    except OSError as exc:
        shutil.rmtree(draft, ignore_errors=True)
        if exc.errno in _TAKEN or os.path.lexists(mark):
            return False
        raise

    return True


def take_over(bundle: Path, host: str) -> bool:
    """
    Become the one to finish a snapshot whose first node died.

    Args:
        bundle: Its folder.

        host: The node that wants to.

    Returns:
        Whether it is ours to finish; once for each snapshot, and never of one
        that is finished.
    """
    mark = bundle / MARK
    try:
        (mark / _HEIR).mkdir(mode=0o700)
        # If we are killed too, another of this node goes on.
        (mark / host).touch(mode=0o600)
    except OSError:
        return False

    return True


def unmark(bundle: Path) -> None:
    """
    Say that a snapshot is done.

    Args:
        bundle: Its folder.
    """
    shutil.rmtree(bundle / MARK, ignore_errors=True)


def is_begun_by(bundle: Path, host: str) -> bool:
    """
    Find out whether it is on a node to finish a snapshot.

    Args:
        bundle: Its folder.

        host: The node.

    Returns:
        Whether it began it, or took it over, and has not finished it.
    """
    return os.path.exists(bundle / MARK / host)  # noqa: PTH110 never raises


def run_in_mark(bundle: Path) -> str | None:
    """
    Read whose snapshot is taken.

    Args:
        bundle: Its folder.

    Returns:
        What tells the run of the job from others; ``None`` if there is no
        mark, or if it does not tell.
    """
    try:
        data = read_ordinary(bundle / MARK / _RUN, _MOST_BYTES)
        return data.decode("utf-8", "surrogatepass")
    except (OSError, ValueError):
        return None


def _note(mark: Path, host: str, run: str | None) -> None:
    (mark / host).touch(mode=0o600)
    if run is not None:
        (mark / _RUN).write_bytes(run.encode("utf-8", "surrogatepass"))
