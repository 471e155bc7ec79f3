"""
Open files without waiting, and write them whole or not at all.

Training jobs import this module: it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import itertools
import os
import stat

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import OutputError


_BLOCK = 1 << 12


def open_ordinary(path: str | os.PathLike[str], complaint: str) -> IO[bytes]:
    """
    Open *path* for reading if it is a regular file.

    Opening a pipe would wait for a writer, so it is opened without blocking.

    Args:
        path: The file.

        complaint: The message of the error for anything else.

    Raises:
        OSError: It cannot be opened.

        ValueError: It is not a regular file.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb", opener=_open_at_once))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(complaint)

        stack.pop_all()
        return file


def read_ordinary(path: str | os.PathLike[str], most: int) -> bytes:
    """
    Read a regular file of at most *most* bytes.

    Raises:
        OSError: It cannot be read.

        ValueError: It is not a regular file, or too large.
    """
    with open_ordinary(path, "not an ordinary file") as file:
        data = file.read(most + 1)
    if len(data) > most:
        msg = f"larger than {most:,} bytes"
        raise ValueError(msg)

    return data


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# Up to Python 3.13 the methods of Path raise where a folder may not be entered or
# the file server does not answer; those of os.path return False.


def is_file(path: str | os.PathLike[str]) -> bool:
    """
    Return whether *path* is a file or a link to one; False if it cannot be checked.
    """
    return os.path.isfile(path)  # noqa: PTH113 see above


def is_folder(path: str | os.PathLike[str]) -> bool:
    """
    Return whether *path* is a folder or a link to one; False if it cannot be
    checked.
    """
    return os.path.isdir(path)  # noqa: PTH112 see above


def is_link(path: str | os.PathLike[str]) -> bool:
    """
    Return whether *path* is a symbolic link; False if it cannot be checked.
    """
    return os.path.islink(path)  # noqa: PTH114 see above


def is_there(path: str | os.PathLike[str]) -> bool:
    """
    Return whether *path* exists; False for a dangling link, or if it cannot be
    checked.
    """
    return os.path.exists(path)  # noqa: PTH110 see above


def resolved(path: Path) -> Path:
    """
    Return *path* without links, or made absolute where links form a loop.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links that lead to each other
        return path.absolute()


def stays_in(
    path: str | os.PathLike[str], folder: str | os.PathLike[str]
) -> bool:
    """
    Return whether *path* lies in *folder* after all links are followed.
    """
    # Path.resolve() raises where links form a loop.
    target, top = os.path.realpath(path), os.path.realpath(folder)
    return f"{target}/".startswith(f"{top.rstrip('/')}/")


def matching(folder: str | os.PathLike[str], pattern: str) -> list[Path]:
    """
    Return the paths in *folder* that match a pattern of :mod:`glob`, sorted.
    """
    names = glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 see above
    return sorted(Path(folder, name) for name in names)


@contextlib.contextmanager
def output_to(path: str | os.PathLike[str]) -> Iterator[None]:
    """
    Turn an ``OSError`` of the block into an error that names the output.

    Args:
        path: Where the output goes.

    Raises:
        OutputError: The block could not write.
    """
    try:
        yield
    except OSError as exc:
        msg = f"cannot write to {path}: {exc.strerror or exc}"
        raise OutputError(
            msg, remedy="name another folder, which is yours and has room"
        ) from exc


def numbered(path: Path) -> Iterator[Path]:
    """
    Yield *path*, ``PATH.2``, ``PATH.3``, and so on without end.
    """
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}.{number}")


def write_whole(path: Path, data: bytes) -> None:
    """
    Write a file under a temporary name beside it, then rename it.

    A reader of *path* sees the earlier file or all of the new one.  Only the owner
    may read it: stacks can hold secrets.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    with open_whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[IO[bytes]]:
    """
    Open a file for writing in pieces; it appears when the block ends well.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    # Opened once: before a second time, another user of the folder could put a
    # link there.
    with (
        _renamed(path) as temporary,
        open(temporary, "xb", opener=_open_private) as file,
    ):
        yield file


def scratch_file() -> IO[bytes]:
    """
    Open an empty file without a name, to share with another process.

    It is in memory where no disk has room.

    Raises:
        OSError: No file can be opened at all.
    """
    import tempfile  # jobs have no use for it

    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        # A full disk is only seen when something is written.
        file.write(bytes(_BLOCK))
        file.flush()
        file.seek(0)
        file.truncate()
        stack.pop_all()
        return file

    return os.fdopen(os.memfd_create("distdebug"), "w+b")


def replace_link(path: Path, target: str) -> None:
    """
    Make *path* a symbolic link to *target*, replacing an earlier link.

    Args:
        path: The link.

        target: What it points to, relative to its folder.

    Raises:
        OSError: It cannot be made; nothing is left behind.
    """
    with _renamed(path) as temporary:
        temporary.symlink_to(target)


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    _refuse_special(path)
    # Processes of several containers may have the same number.
    temporary = path.parent / f".{os.urandom(6).hex()}.tmp"
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _refuse_special(path: Path) -> None:
    """
    A device such as /dev/null would be replaced, and be gone for everybody.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            reason = os.strerror(errno.EISDIR)
            raise IsADirectoryError(errno.EISDIR, reason, str(path))
        if not stat.S_ISREG(mode):
            reason = "it is no ordinary file, and stays as it is"
            raise FileExistsError(errno.EEXIST, reason, str(path))


UPGRADE = "pip install --upgrade distdebug"


class LaterLayoutError(ValueError):
    """
    It has a layout that nobody had thought of when this was written.
    """


def check_layout(schema: object, known: int) -> None:
    """
    Refuse what would be misunderstood.

    Args:
        schema: What a file says of its layout.

        known: The latest layout that is understood.

    Raises:
        LaterLayoutError: A later version wrote it.

        ValueError: It is no layout of ours.
    """
    if type(schema) is not int or schema < 1:
        msg = f"it has no layout of ours: {schema!r:.80}"
        raise ValueError(msg)
    if schema > known:
        msg = (
            f"a later distdebug wrote it (layout {schema}; this one knows "
            f"{known}): {UPGRADE}"
        )
        raise LaterLayoutError(msg)
