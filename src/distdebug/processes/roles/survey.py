"""
What is every process of a node to a job?
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..._text import clean
from ..model import Role, Worker
from ..proc.patience import ask_each
from ..proc.procfs import parse_stat, parse_status, read_proc, whole_number
from .claims import claim_workers
from .corrections import correct_claims
from .evidence import read_evidence
from .family import Family
from .places import place_of
from .scan import Process
from .scene import Claim, Scene


__all__ = ["describe_workers", "survey"]

_LONGEST_TITLE = 4096
_ORDER: tuple[Role, ...] = (
    "rank",
    "launcher",
    "server",
    "dataloader",
    "compile",
    "child",
)


def survey(
    family: Family, is_wanted: Callable[[Process], bool], root: str
) -> tuple[Scene, dict[int, Claim]]:
    """
    What is every process of a node to a job?

    Args:
        family: The processes.

        is_wanted: Whether the user's own patterns know a process.

        root: Where the kernel's files are.

    Returns:
        What was looked at, and what each process is, by number.
    """
    interpreters = [
        process.pid
        for process in family.processes.values()
        if process.is_python
        and process.arguments
        and not family.is_servant(process)
    ]
    evidence = ask_each(interpreters, lambda pid: read_evidence(pid, root))
    scene = Scene(family, evidence, is_wanted, root)
    claims = claim_workers(scene)
    correct_claims(scene, claims)
    return scene, claims


def describe_workers(
    scene: Scene, claims: Mapping[int, Claim], pids: Collection[int]
) -> tuple[Worker, ...]:
    """
    Who are these workers?

    Args:
        scene: What was looked at.

        claims: What each process is.

        pids: Which of them to describe.

    Returns:
        Ranks first, by rank and place, and then the others; without those
        that ended meanwhile.
    """
    found = (
        _describe(scene, scene.family.processes[p], claims[p]) for p in pids
    )
    return tuple(sorted(filter(None, found), key=_order))


def _describe(scene: Scene, process: Process, claim: Claim) -> Worker | None:
    folder = f"{scene.root}/{process.pid}"
    stat = parse_stat(read_proc(f"{folder}/stat"))
    if stat is None or stat.start_ticks != process.start_ticks:
        return None

    uids = parse_status(read_proc(f"{folder}/status")).get("Uid", "").split()
    return Worker(
        pid=process.pid,
        start_ticks=process.start_ticks,
        parent_pid=stat.parent_pid,
        uid=whole_number("".join(uids[1:2])) or 0,
        title=clean(process.text[: 4 * _LONGEST_TITLE], limit=_LONGEST_TITLE),
        framework=claim.framework,
        role=claim.role,
        **place_of(scene, process, claim),
    )


def _order(worker: Worker) -> tuple[object, ...]:
    rank = worker.rank
    return (
        _ORDER.index(worker.role),
        rank is None,
        rank or 0,
        worker.coordinates,
        worker.pid,
    )
