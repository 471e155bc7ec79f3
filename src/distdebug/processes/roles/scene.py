"""
What is known of the processes of a node, and what is made of it?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import attrs

from ..model import Role
from .evidence import Evidence, has_connection, has_rank_threads
from .family import Family
from .frameworks import MULTIPROCESSING
from .scan import Process


__all__ = ["Claim", "Scene", "is_inherited", "takes_part"]

_NOTHING = Evidence()


class Claim(NamedTuple):
    """
    What a process is: who started it, and its role.
    """

    framework: str
    role: Role


@attrs.frozen
class Scene:
    """
    What is known of the processes of a node.

    Attributes:
        family: Who descends from whom.

        evidence: What the memory of each process in Python shows.

        is_wanted: Whether the user's own patterns know a process.

        root: Where the kernel's files are.
    """

    family: Family
    evidence: Mapping[int, Evidence]
    is_wanted: Callable[[Process], bool]
    root: str = "/proc"

    def shown_by(self, process: Process) -> Evidence:
        """
        What the memory of a process shows.
        """
        return self.evidence.get(process.pid, _NOTHING)


def is_inherited(
    scene: Scene, process: Process, elder: Process | None
) -> bool:
    """
    Whether a process has its rank only because its parent has it.
    """
    if elder is None:
        return False
    mine = scene.shown_by(process).identity
    return scene.shown_by(elder).identity[:2] == mine[:2]


def takes_part(scene: Scene, process: Process, elder: Process) -> bool:
    """
    Whether a process that *multiprocessing* started has peers.

    Args:
        scene: What is known.

        process: The process.

        elder: Who started it.
    """
    if not scene.shown_by(process).has_torch:
        return False
    if has_rank_threads(process.pid, scene.root):
        return True
    # What is forked inherits the sockets of its parent.
    is_new = MULTIPROCESSING.search(process.text) is not None
    return has_connection(process.pid, scene.root) and (
        is_new or not has_connection(elder.pid, scene.root)
    )
