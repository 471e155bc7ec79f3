"""
What is each process to a job, seen from above?

What a process is depends on what started it: the same Python is a rank under a
launcher, and a reader of data under a rank.  So parents are judged before
their children, and what only the children can tell is corrected afterwards.
"""

from __future__ import annotations

from .evidence import has_rank_threads
from .scan import Process
from .scene import Claim, Scene, takes_part
from .signs import by_environment, by_evidence, by_looks


__all__ = ["claim_workers"]


def claim_workers(scene: Scene) -> dict[int, Claim]:
    """
    What is each process to a job, as far as those above it tell?

    Args:
        scene: What is known.

    Returns:
        What each process is, by number, parents first; nothing for those that
        belong to no job.
    """
    claims: dict[int, Claim] = {}
    for process in scene.family.walk():
        elder = scene.family.elder(process)
        above = claims.get(elder.pid) if elder else None
        claim = _claim(scene, process, elder, above)
        if claim is not None:
            claims[process.pid] = claim
    return claims


def _claim(
    scene: Scene, process: Process, elder: Process | None, above: Claim | None
) -> Claim | None:
    if scene.family.is_servant(process):
        return None

    claim = None
    if process.is_python:
        claim = by_looks(process, elder, above) or by_environment(
            scene, process, elder
        )
        if claim is None and above is not None and elder is not None:
            claim = _by_parent(scene, process, elder, above)
        elif claim is None:
            claim = by_evidence(scene, process, elder)
    elif above is not None and above.role == "rank":
        claim = Claim(above.framework, "child")
    if claim is None and scene.is_wanted(process):
        claim = Claim("pattern", "rank")
    return claim


def _by_parent(
    scene: Scene, process: Process, elder: Process, above: Claim
) -> Claim:
    """
    What is it to the worker that it comes from?
    """
    framework = above.framework
    is_copy = scene.family.is_copy(process, elder)
    if is_copy and above.role == "server":
        has_torch = scene.shown_by(process).has_torch
        return Claim(framework, "rank" if has_torch else "child")
    if not is_copy or above.role != "rank":
        return Claim(framework, "child")
    if has_rank_threads(elder.pid, scene.root):
        # It may have peers of its own, as what saves checkpoints has.
        has_peers = has_rank_threads(process.pid, scene.root)
        return Claim(framework, "child" if has_peers else "dataloader")
    if not takes_part(scene, process, elder):
        return Claim(framework, "dataloader")
    known = framework != "pattern"
    return Claim(framework if known else "multiprocessing", "rank")
