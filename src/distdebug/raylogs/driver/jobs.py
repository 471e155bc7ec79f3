"""
Where is the output of a driver that was submitted to a cluster?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable
from pathlib import Path

from ..model import RaySession


__all__ = ["find_driver_logs"]

_NAME = re.compile(r"job-driver-[\w.+-]{1,200}\.log", re.ASCII)


def find_driver_logs(
    sessions: RaySession | Iterable[RaySession],
) -> tuple[Path, ...]:
    """
    Find the output of drivers that Ray itself kept.

    It keeps that of jobs that were handed in by ``ray job submit``, on the
    node where the driver ran; all others print to wherever they were started.

    Args:
        sessions: The session folders of the nodes.

    Returns:
        The files, by node and name.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    found: list[Path] = []
    for session in sessions:
        try:
            with os.scandir(session.logs) as listed:
                names = [
                    entry.name
                    for entry in listed
                    if _NAME.fullmatch(entry.name)
                    and entry.is_file(follow_symlinks=False)
                ]
        except OSError:
            continue
        found += [session.logs / name for name in sorted(names)]
    return tuple(found)
