"""
What is known of a Ray session on one node, and of the logs of its workers?
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from .._showing import Block, Shown
from .._text import clean
from ..findings import Missing, as_plain


__all__ = ["LogPart", "RaySession", "WorkerLog"]


@attrs.frozen(kw_only=True)
class RaySession(Shown):
    """
    The folder that Ray keeps on one node for one life of a cluster.

    All nodes of a cluster call it by the same name, so several folders of
    that name are several nodes.

    Attributes:
        root: The folder of the session.

        logs: Where its logs are; *root* itself if only they were copied.

        name: Such as ``"session_2026-02-20_02-03-57_123456_4711"``.

        host: How to call the node: its name if the way to the folder tells,
            or else its address or the beginning of its id; ``""`` if nothing
            does.

        ip: The address of the node.

        node_id: What Ray calls the node, 56 hexadecimal digits.

        ray_version: Such as ``"2.40.0"``; older versions do not tell.

        is_head: Whether the node was the head of the cluster.
    """

    root: Path
    logs: Path
    name: str
    host: str = ""
    ip: str | None = None
    node_id: str | None = None
    ray_version: str | None = None
    is_head: bool = False

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:
        where = f" of {self.host}" if self.host else ""
        yield clean(f"{self.name}{where}: {self.logs}", limit=4096)


@attrs.frozen(kw_only=True)
class LogPart:
    """
    One file of a log, which may be in several since it was rotated.

    Attributes:
        path: The file.

        index: 0 for the newest part, and greater the older a part is.

        size: How many bytes it had when it was looked at.

        mtime: When something was last written to it, in seconds since the
            epoch.
    """

    path: Path
    index: int = 0
    size: int = 0
    mtime: float = 0.0


@attrs.frozen(kw_only=True)
class WorkerLog(Shown):
    """
    All that one worker process printed, and whose it is.

    Attributes:
        session: The session, and with it the node.

        worker_id: What Ray calls the process, 56 hexadecimal digits.

        pid: Its number on its node.

        name_job_id: The job in the names of the files, which Ray gets wrong
            for processes that it had started ahead of their job.

        job_id: The job that the process itself wrote down.

        actor_id: Which actor it was, 32 hexadecimal digits; ``None`` if it
            only ran tasks, or nothing tells.

        actor_class: The class of the actor.

        actor_repr: What the ``__repr__`` of the actor returned, if it has
            its own.

        actor_name: The name the actor was given by ``.options(name=…)``.

        task_names: The functions that it ran as tasks, as far as was read.

        kind: ``"worker"``, or ``"io_worker"`` for those that spill objects.

        out: The parts of what it printed, oldest first.

        err: The parts of what it printed to its standard error, where
            ``logging`` goes, oldest first.

        missing: What could not be read, and why.
    """

    session: RaySession
    worker_id: str
    pid: int
    name_job_id: str | None = None
    job_id: str | None = None
    actor_id: str | None = None
    actor_class: str | None = None
    actor_repr: str | None = None
    actor_name: str | None = None
    task_names: tuple[str, ...] = ()
    kind: str = "worker"
    out: tuple[LogPart, ...] = ()
    err: tuple[LogPart, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def mtime(self) -> float:
        """
        When it last printed anything, in seconds since the epoch.
        """
        return max((x.mtime for x in (*self.out, *self.err)), default=0.0)

    @property
    def label(self) -> str:
        """
        What a person calls it, such as ``"SglEngine"`` or ``"worker"``.
        """
        known = self.actor_repr or self.actor_class or self.actor_name
        return known or (self.task_names[-1] if self.task_names else self.kind)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:
        where = f" on {self.session.host}" if self.session.host else ""
        yield clean(f"{self.label} (pid={self.pid}{where})", limit=1000)
