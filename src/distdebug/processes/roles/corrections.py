"""
What is each process to a job, seen from below?

Whoever started ranks, and is none, is their launcher, whatever its own
environment says.
"""

from __future__ import annotations

from collections import defaultdict

from .evidence import has_rank_threads
from .frameworks import DATA_WORKER, ENGINE, TITLES
from .scan import Process
from .scene import Claim, Scene, is_inherited


__all__ = ["correct_claims"]


def correct_claims(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    Correct what each process is by what its children are.

    Args:
        scene: What is known.

        claims: What each process is; changed in place.
    """
    for pid, claim in list(claims.items()):
        process = scene.family.processes[pid]
        elder = scene.family.elder(process)
        if elder is not None and (
            claim.role == "launcher"
            or (claim.role == "rank" and _is_launched(scene, process, elder))
        ):
            _make_launcher(scene, claims, elder, claim)

    _unclaim_starters(scene, claims)
    _claim_brothers(scene, claims)
    _claim_engines(scene, claims)
    _drop_doubles(scene, claims)


def _is_launched(scene: Scene, process: Process, elder: Process) -> bool:
    # Programs with another name may call torch's launcher.
    is_torchrun = "TORCHELASTIC_RUN_ID" in scene.shown_by(process).environ
    is_own = is_torchrun and not is_inherited(scene, process, elder)
    return is_own or scene.family.is_copy(process, elder)


def _make_launcher(
    scene: Scene, claims: dict[int, Claim], elder: Process, child: Claim
) -> None:
    claim = claims.get(elder.pid)
    has_title = any(look.pattern.match(elder.text) for look in TITLES)
    if claim is None and child.role == "launcher":
        return  # a script that calls a launcher has no part in the job
    if claim is not None and (claim.role != "rank" or has_title):
        return
    if not has_rank_threads(elder.pid, scene.root):
        known = claim if claim and claim.framework != "pattern" else child
        claims[elder.pid] = Claim(known.framework, "launcher")


def _unclaim_starters(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    A pattern of the user may also match the program that starts the ranks.
    """
    for pid, claim in list(claims.items()):
        if claim == ("pattern", "rank") and any(
            claims[child.pid].role == "rank"
            for child in scene.family.below(pid)
            if child.pid in claims
        ):
            claims[pid] = Claim("pattern", "launcher")


def _claim_brothers(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    Of ranks that were started alike, some may not have met the others yet.
    """
    for pid, claim in list(claims.items()):
        if claim.role == "launcher":
            _claim_children(scene, claims, pid)


def _claim_children(scene: Scene, claims: dict[int, Claim], pid: int) -> None:
    launcher = scene.family.processes[pid]
    for child in scene.family.below(pid):
        elder = scene.family.elder(child)
        claim = claims.get(child.pid)
        if (
            elder is launcher
            and scene.family.is_copy(child, launcher)
            and child.name != DATA_WORKER
            and (claim is None or claim.role == "dataloader")
            and scene.shown_by(child).has_torch
        ):
            claims[child.pid] = Claim(claims[pid].framework, "rank")


def _claim_engines(scene: Scene, claims: dict[int, Claim]) -> None:
    for pid, claim in list(claims.items()):
        if claim.role == "server" and ENGINE.search(
            scene.family.processes[pid].text
        ):
            roles = {
                claims[child.pid].role
                for child in scene.family.below(pid)
                if child.pid in claims
            }
            if "rank" not in roles:
                claims[pid] = claim._replace(role="rank")


def _drop_doubles(scene: Scene, claims: dict[int, Claim]) -> None:
    """
    All processes of a container may have inherited the rank of one.
    """
    twins: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for pid, claim in claims.items():
        identity = (
            scene.evidence[pid].identity if pid in scene.evidence else None
        )
        if claim.role == "rank" and identity and claim.framework in _LOOSE:
            twins[identity.rank, identity.job].append(pid)

    for pids in twins.values():
        with_torch = [p for p in pids if scene.evidence[p].has_torch]
        if with_torch:
            for pid in set(pids) - set(with_torch):
                del claims[pid]


# Those who are ranks by nothing but their environment.
_LOOSE = frozenset({"mpi", "slurm", "torch"})
