"""
List the files of the inputs that no reader took for evidence.
"""

from __future__ import annotations

import os
import re

from collections.abc import Collection, Iterable, Sequence

from .._io import FileWalk, is_folder, is_within
from .._text import list_text
from ..findings import Missing
from ..flight_recorder import parse_dump_name
from ..stacks import is_stack_file
from .log_evidence import is_source_file


# What snapshots write beside evidence, and hidden files.
_OWN_FILE = re.compile(
    r"(?:manifest|node|workers)\.json|REPORT\.txt|.+\.sidecar\.json"
    r"|.+\.html?|\..*",
    re.IGNORECASE,
)
_NO_JOB_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_CORE_DUMP = re.compile(r"core(?:\.[\w.-]+)?|.+\.core")
_MOST_FILES = 100_000
_MOST_NAMES = 4


def find_unread_files(
    paths: Iterable[str | os.PathLike[str]],
    read: Collection[str],
    sessions: Sequence[str] = (),
) -> tuple[Missing, ...]:
    """
    Return a note for each path with files that were not read.

    Of a folder, these are the files that lie beside evidence.

    Args:
        paths: The inputs of a diagnosis.

        read: The files that were read, or that another note names.

        sessions: Folders of Ray sessions, whose files have a reader of their
            own.
    """
    # Without looking at them again: all walks begin at the same paths.
    known = {os.path.abspath(path) for path in read}  # noqa: PTH100 of thousands
    # Data of the job lie elsewhere.
    folders = {os.path.dirname(path) for path in known}  # noqa: PTH120 of thousands
    unread: dict[str, list[str]] = {}
    walk = FileWalk(paths, is_wanted=_may_be_of_job, max_files=_MOST_FILES)
    for file in walk:
        path = os.path.abspath(file.path)  # noqa: PTH100 see above
        is_near = file.path == file.root or (
            os.path.dirname(path) in folders  # noqa: PTH120 see above
        )
        if (
            is_near
            and path not in known
            # Only these few are resolved, which asks the server again.
            and not is_within(os.path.realpath(path), *sessions)
        ):
            unread.setdefault(file.root, []).append(file.path)
    return tuple(
        Missing(what="file", reason=_reason(root, files), source=root)
        for root, files in unread.items()
    )


def _may_be_of_job(entry: os.DirEntry[str], _: object) -> bool:
    name = entry.name
    if entry.is_dir():
        return name not in _NO_JOB_FOLDERS and name[0] != "."
    # The reader of dumps says why a dump was not read.
    is_tried = is_stack_file(entry.path) or parse_dump_name(name).is_dump_like
    return not (is_tried or is_source_file(name) or _OWN_FILE.fullmatch(name))


def _reason(root: str, files: Sequence[str]) -> str:
    if not is_folder(root):
        return _reason_of_one(root)

    cores = [x for x in files if _is_core_dump(x)]
    rest = [x for x in files if not _is_core_dump(x)]
    parts = []
    if rest:
        is_one = len(rest) == 1
        verb, them = (
            ("file was", "it is") if is_one else ("files were", "they are")
        )
        parts.append(
            f"{len(rest):,} {verb} not read ({_names(rest, root)}): {them} "
            "no evidence by name and first bytes; name a log itself to have "
            "it read"
        )
    if cores:
        parts.append(f"{_names(cores, root)}: {_CORE_HINT}")
    return "; ".join(parts)


_CORE_HINT = "a core dump is for a debugger: gdb, or pystack core"


def _reason_of_one(path: str) -> str:
    if _is_core_dump(path):
        return _CORE_HINT
    return "it is no dump, stack, or log by its name and first bytes"


def _is_core_dump(path: str) -> bool:
    return _CORE_DUMP.fullmatch(os.path.basename(path)) is not None  # noqa: PTH119 of thousands


def _names(files: Sequence[str], root: str) -> str:
    names = (os.path.relpath(path, root) for path in files)
    return list_text(names, most=_MOST_NAMES)
