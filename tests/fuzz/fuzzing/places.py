"""
Where do files lie that parsers want to open?
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from functools import cache
from pathlib import Path


__all__ = ["file_of", "folder_of", "parcel_of", "tidy"]

_MARK = b"\n@@@ "
_MOST_FILES = 64


@cache
def _scratch(pid: int) -> Path:
    # In memory where that is possible: nothing here outlives the process.
    folder = tempfile.mkdtemp(
        prefix="distdebug-fuzz-",
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
    )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def file_of(data: bytes, name: str = "input") -> Path:
    """
    A file that holds *data*; there is one of each name.
    """
    path = _scratch(os.getpid()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def folder_of(data: bytes, name: str = "folder") -> Path:
    """
    A folder with the files that *data* tells of, as `parcel_of` writes them.
    """
    folder = _scratch(os.getpid()) / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    parts = (b"\n" + data).split(_MARK, _MOST_FILES)
    for part in parts[1:]:
        head, _, content = part.partition(b"\n")
        # Only within the folder, whatever is asked for.
        names = [
            os.fsdecode(x[:200].replace(b"\0", b""))
            for x in head.strip().split(b"/")[:8]
        ]
        steps = [x for x in names if x not in {"", ".", ".."}]
        if steps:
            try:
                path = folder.joinpath(*steps)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError:  # a file stands where a folder is wanted
                continue
    return folder


def parcel_of(folder: Path, *, most: int) -> bytes:
    """
    Some files of a folder, each cut off, in one text.
    """
    parts = []
    for file in sorted(folder.rglob("*"))[:_MOST_FILES]:
        if file.is_file() and not file.is_symlink():
            name = os.fsencode(file.relative_to(folder))
            parts.append(_MARK + name + b"\n" + file.read_bytes()[:most])
    return b"".join(parts)[1:]


def tidy() -> None:
    """
    Leave nothing behind, also if the process ends without a word.
    """
    shutil.rmtree(_scratch(os.getpid()), ignore_errors=True)
