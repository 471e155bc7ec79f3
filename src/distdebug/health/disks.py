"""
Is there space where the job writes, and may it write there?
"""

from __future__ import annotations

import os
import time

from collections.abc import Iterable, Mapping

import attrs

from .._in_time import answers_in_time
from .._text import clean, reason_of, size_text
from ..findings import Cause, Confidence, Evidence, Finding
from .judged import Judged, as_finding


__all__ = ["Disk", "judge_disks", "read_disks"]

#: Where every job writes.
PLACES: Mapping[str, str] = {
    "tmp": "/tmp",  # noqa: S108 only its size
    "shm": "/dev/shm",  # noqa: S108 only its size
}
_FULL = 1 << 20
_NEARLY_FULL = 256 << 20
_FEW_FILES = 100
# What container engines give; DataLoader workers and NCCL want far more.
_SMALL_SHM = 256 << 20


@attrs.frozen(kw_only=True)
class Disk:
    """
    A file system, as seen at a folder.

    Attributes:
        name: What the folder is to the job: ``"tmp"``, ``"shm"``, or its
            path.

        path: The folder.

        total: Bytes there are.

        free: Bytes that the user may still write.

        files: How many files it can hold; 0 if it does not count them.

        free_files: How many more.

        is_read_only: Whether nobody may write to it.

        answers: Whether it answered in time.

        problem: Why nothing is known of it.
    """

    name: str
    path: str
    total: int | None = None
    free: int | None = None
    files: int | None = None
    free_files: int | None = None
    is_read_only: bool = False
    answers: bool = True
    problem: str = ""


def read_disks(
    folders: Iterable[str | os.PathLike[str]] = (),
    *,
    timeout_s: float = 5.0,
    places: Mapping[str, str] = PLACES,
) -> tuple[Disk, ...]:
    """
    Ask the file systems that a job writes to.

    Args:
        folders: Folders of the job, such as that of its checkpoints.

        timeout_s: How long it may take, in seconds.

        places: Folders that every job uses, by name.

    Returns:
        One for each folder that is there, also if it does not answer.
    """
    wanted = dict(places)
    wanted.update({os.fspath(folder): os.fspath(folder) for folder in folders})
    deadline = time.monotonic() + timeout_s
    answers = dict(
        answers_in_time(_ask, list(wanted.items()), deadline, threads=64)
    )
    found = []
    for item in wanted.items():
        silent = Disk(name=clean(item[0]), path=item[1], answers=False)
        disk = answers.get(item, silent)
        if not disk.problem or item[0] not in places:
            found.append(disk)
    return tuple(found)


def _ask(item: tuple[str, str]) -> Disk:
    name, path = item
    try:
        status = os.statvfs(path)
    except (OSError, ValueError) as exc:
        why = reason_of(exc)
        return Disk(name=clean(name), path=path, problem=why)

    return Disk(
        name=clean(name),
        path=path,
        total=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        files=status.f_files,
        free_files=status.f_favail,
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def judge_disks(
    disks: Iterable[Disk], *, host: str = ""
) -> tuple[Finding, ...]:
    """
    Tell which file systems hinder a job.

    Args:
        disks: All that the job writes to.

        host: The node.

    Returns:
        What was found.
    """
    judged = ((disk, _judge(disk)) for disk in disks)
    return tuple(
        as_finding(verdict, host=host, evidence=_evidence(disk))
        for disk, verdict in judged
        if verdict is not None
    )


def _judge(disk: Disk) -> Judged | None:
    what = f"the file system of {clean(disk.path)}"
    if not disk.answers:
        return Judged(
            Cause.IO_WAIT,
            "likely",
            f"{what} does not answer",
            "see that its server and the way to it work; whoever uses it "
            "waits in the kernel",
        )
    if disk.is_read_only:
        return Judged(
            Cause.NODE_MISCONFIGURED,
            "likely",
            f"{what} is mounted read-only",
            "write elsewhere; if it became so by itself, look at the kernel "
            "log for errors of the disk",
        )
    if space := _space(disk):
        return Judged(
            Cause.DISK_FULL,
            space[0],
            f"{what} {space[1]}",
            "delete what nobody needs, or let the job write elsewhere",
        )
    if disk.name == "shm" and 0 < (disk.total or 0) < _SMALL_SHM:
        return Judged(
            Cause.NODE_MISCONFIGURED,
            "possible",
            f"shared memory ({clean(disk.path)}) has only "
            f"{size_text(disk.total or 0)}",
            "give the container more (--shm-size, --ipc=host, or an emptyDir "
            "of medium Memory): DataLoader workers and NCCL need it",
        )
    return None


def _space(disk: Disk) -> tuple[Confidence, str] | None:
    if not disk.total or disk.free is None:
        return None

    left = f"{size_text(disk.free)} of {size_text(disk.total)} left"
    if disk.free < min(_FULL, disk.total // 20):
        return "certain", f"is full: {left}"
    if disk.files and disk.free_files == 0:
        return "certain", "is full: it can hold no more files"
    if disk.free < min(_NEARLY_FULL, disk.total // 50):
        return "possible", f"is nearly full: {left}"
    more = disk.free_files
    if disk.files and more is not None and more < _FEW_FILES:
        return "possible", f"can hold only {more} more files"
    return None


def _evidence(disk: Disk) -> Evidence:
    is_known = disk.total is not None
    return Evidence(
        kind="disk",
        source=clean(disk.path),
        quote=f"{disk.free} of {disk.total} bytes free" if is_known else "",
    )
