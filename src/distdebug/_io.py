"""
Open files without waiting, and write them whole or not at all.

Training jobs import this module: it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import itertools
import os
import stat
import time

from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, NamedTuple

from .errors import OutputError


_BLOCK = 1 << 12
_KERNEL_FOLDERS = ("/proc/", "/sys/", "/dev/")


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


def open_private(path: str, flags: int) -> int:
    """
    Open a file for :func:`open`; one that is made is for this user alone.
    """
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """
    Make a folder, and its missing parents, for this user alone.

    Those that exist stay as they are.  ``mkdir(parents=True)`` would give the
    parents whatever the umask allows.

    Raises:
        OSError: It cannot be made, or is not a folder.
    """
    parents = itertools.takewhile(lambda x: not is_there(x), folder.parents)
    for part in (*reversed([*parents]), folder):
        part.mkdir(mode=0o700, exist_ok=True)


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
    return is_within(os.path.realpath(path), os.path.realpath(folder))


class WalkedFile(NamedTuple):
    """
    An ordinary file that a walk has found.

    Attributes:
        root: The given path, which may be the file itself.

        path: Its path.

        modified: When it was last changed, in seconds since the epoch.

        size: In bytes.
    """

    root: str
    path: str
    modified: float
    size: int


class _Memory(NamedTuple):
    """
    What walks have seen, by path.
    """

    entries: dict[str, list[os.DirEntry[str]]]
    statuses: dict[str, os.stat_result]


_memory: ContextVar[_Memory | None] = ContextVar("walks", default=None)


@contextlib.contextmanager
def remembered_walks() -> Iterator[None]:
    """
    Let walks use what others have seen since the block was entered.

    Several readers go through the same folders, and on NFS each file that is
    looked at is a question to the server.
    """
    token = _memory.set(_memory.get() or _Memory({}, {}))
    try:
        yield
    finally:
        _memory.reset(token)


_is_confined: ContextVar[bool] = ContextVar("is_confined", default=False)


@contextlib.contextmanager
def confined_walks() -> Iterator[None]:
    """
    Let no walk of the block leave its folder by a link, whatever reader walks.

    For whoever reads files on behalf of another.
    """
    token = _is_confined.set(True)
    try:
        yield
    finally:
        _is_confined.reset(token)


#: Looking at so many takes some seconds, and hundreds of MB.
MAX_FILES = 250_000


class FileWalk:
    """
    Iterate over the ordinary files below some paths, sorted, each once.

    Links in a folder come after all else, so that a file's own path is
    preferred.  Those to a parent of the folder, or to a file system of the
    kernel, are never followed: they have no end.

    Args:
        paths: Files and folders.

        is_wanted: Whether to look at an entry of a folder, given the names of
            all of its entries; by default all.

        follows_out: Whether links are followed that lead out of the given
            folder, and that others may have laid there.

        max_depth: Levels of folders; by default all.

        max_files: Files and folders to look at, for each path; by default
            several for each rank of the largest jobs.

        deadline: When to stop, on the monotonic clock.

    Attributes:
        problems: Paths that cannot be read, and why, as far as was walked.
    """

    def __init__(  # noqa: PLR0913 most can be left out
        self,
        paths: Iterable[str | os.PathLike[str]],
        *,
        is_wanted: Callable[[os.DirEntry[str], Collection[str]], bool]
        | None = None,
        follows_out: bool = False,
        max_depth: float = float("inf"),
        max_files: int = MAX_FILES,
        deadline: float = float("inf"),
    ) -> None:
        self.problems: list[tuple[str, str | Exception]] = []
        self._paths = [os.fspath(path) for path in paths]
        self._is_wanted = is_wanted
        self._follows_out = follows_out and not _is_confined.get()
        self._max_depth = max_depth
        self._max_files = max_files
        self._deadline = deadline
        self._seen: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[WalkedFile]:
        for root in self._paths:
            yield from self._walk(root)

    def _walk(self, root: str) -> Iterator[WalkedFile]:
        todo: list[tuple[str, int]] = [(root, 0)]
        links: list[tuple[str, int]] = []
        links_out: list[str] = []
        for left in itertools.count(self._max_files, -1):
            if not (todo or links):
                break
            if reason := self._reason_to_stop(left):
                self.problems.append((root, reason))
                break
            place, depth = todo.pop() if todo else links.pop()
            status = self._look_at(root, place)
            mode = status.st_mode if status else 0
            if status and stat.S_ISREG(mode):
                yield WalkedFile(root, place, status.st_mtime, status.st_size)
            elif stat.S_ISDIR(mode) and depth < self._max_depth:
                inner, found = self._list_folder(place, left)
                todo += ((child, depth + 1) for child in inner)
                inside, outside = self._sort_links(root, found)
                links += ((child, depth + 1) for child in inside)
                links_out += outside
            elif mode and place == root and not stat.S_ISDIR(mode):
                self.problems.append((root, "not an ordinary file"))
        if links_out:
            self.problems.append((root, _links_out_text(root, links_out)))

    def _reason_to_stop(self, left: int) -> str:
        if time.monotonic() > self._deadline:
            return "the time was over"
        if left <= 0:
            return (
                f"only its first {self._max_files:,} files were searched; "
                "name the folder in it that matters"
            )
        return ""

    def _look_at(self, root: str, place: str) -> os.stat_result | None:
        """
        Return the status of a path; ``None`` if it was seen, or is not there.
        """
        try:
            status = _status_of(place)
        except (OSError, ValueError) as exc:
            if place == root:
                self.problems.append((root, exc))
            return None

        key = status.st_dev, status.st_ino
        if key in self._seen:
            return None
        self._seen.add(key)
        return status

    def _list_folder(
        self, folder: str, most: int
    ) -> tuple[list[str], list[str]]:
        """
        Return the wanted entries of a folder, and its links; the last name first.
        """
        try:
            # One more, to notice that there are too many.
            entries = _entries_of(folder, most + 1)
        except OSError as exc:
            self.problems.append((folder, exc))
            return [], []

        names = {entry.name for entry in entries}
        found: tuple[list[str], list[str]] = [], []
        for entry in sorted(entries, key=lambda e: e.name, reverse=True):
            with contextlib.suppress(OSError):  # it is not there any more
                if self._is_wanted is None or self._is_wanted(entry, names):
                    found[_is_link(entry)].append(entry.path)
        return found

    def _sort_links(
        self, root: str, links: list[str]
    ) -> tuple[list[str], list[str]]:
        """
        Return the links to follow, and those that lead out and are not.
        """
        inside: list[str] = []
        outside: list[str] = []
        try:
            top = os.path.realpath(root) if links else ""
        except OSError:  # removed meanwhile
            return inside, outside

        for link in links:
            with contextlib.suppress(OSError):  # removed meanwhile
                target = os.path.realpath(link)
                is_endless = is_within(top, target) or is_within(
                    target, *_KERNEL_FOLDERS
                )
                if is_within(target, top) and target != top:
                    inside.append(link)
                elif is_there(target) and not is_endless:
                    (inside if self._follows_out else outside).append(link)
        return inside, outside


def _status_of(path: str) -> os.stat_result:
    memory = _memory.get()
    known = memory.statuses.get(path) if memory else None
    status = known or os.stat(path)  # noqa: PTH116 of millions
    if memory:
        memory.statuses[path] = status
    return status


def _entries_of(folder: str, most: int) -> list[os.DirEntry[str]]:
    memory = _memory.get()
    if memory and folder in memory.entries:
        return memory.entries[folder]
    with os.scandir(folder) as listed:
        entries = list(itertools.islice(listed, most))
    if memory and len(entries) < most:
        memory.entries[folder] = entries
    return entries


def _is_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink()
    except OSError:
        return True


def _links_out_text(root: str, links: Collection[str]) -> str:
    names = sorted(os.path.relpath(link, root) for link in links)
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return (
        "links that lead out of it are not followed: "
        f"{', '.join(names[:8])}{more}; name them, too, if you trust them"
    )


def is_within(path: str, *folders: str) -> bool:
    """
    Return whether a path without links is one of some folders, or in it.
    """
    return any(
        f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders
    )


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """
    Return the names in *folder*, in no order; none if it cannot be listed.
    """
    try:
        return os.listdir(folder)  # noqa: PTH208 names alone
    except OSError:
        return []


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
        open(temporary, "xb", opener=open_private) as file,
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


# Of a name of at most 255 bytes, so that a suffix has room.
_MOST_STEM = 50


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    _refuse_special(path)
    # Processes of several containers may have the same number.
    name = f".{path.name[:_MOST_STEM]}.{os.urandom(6).hex()}.tmp"
    temporary = path.with_name(name)
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


_LOCK_POLL_S = 0.05
# Some file systems do not support locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
# Some report different inodes for the same file.
_MOST_REPLACED = 1000

Opener = Callable[[str, int], int]


def open_lock(path: str, flags: int, mode: int = 0o644) -> int:
    """
    Open or make the file of a lock; neither a link nor a pipe leads elsewhere.
    """
    return os.open(
        path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, mode
    )


@contextlib.contextmanager
def file_lock(
    path: Path, wait_s: float, opener: Opener = open_lock
) -> Iterator[tuple[IO[bytes], bool]]:
    """
    Hold an exclusive lock between processes; its file is removed afterwards.

    Args:
        wait_s: How long to wait for another process, in seconds.

        opener: Opens the file, as that of :func:`open`.

    Yields:
        The file, and whether the lock is exclusive: not on a file system
        without locks.

    Raises:
        BlockingIOError: Another process still holds the lock.

        OSError: The file cannot be opened or locked.
    """
    deadline, replaced = time.monotonic() + wait_s, 0
    while True:
        is_last = time.monotonic() >= deadline
        with open(path, "r+b", buffering=0, opener=opener) as file:
            try:
                is_exclusive = _try_lock(file)
            except BlockingIOError:
                if is_last:
                    raise
                time.sleep(_LOCK_POLL_S)
                continue
            # The holder before may have removed the file since.
            if not _is_at(path, file) and replaced < _MOST_REPLACED:
                replaced += 1
                continue
            try:
                yield file, is_exclusive
            finally:
                # Remove it before its release: the next holder notices.
                with contextlib.suppress(OSError):
                    if _is_at(path, file):
                        path.unlink()
            return


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


UPGRADE = "pip install --upgrade distdebug"


class LaterLayoutError(ValueError):
    """
    Its layout is newer than this version.
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
