"""
What does a process show by itself of what it is?
"""

from __future__ import annotations

from .evidence import Evidence, has_rank_threads
from .frameworks import (
    COMPILE_WORKER,
    DATA_WORKER,
    FALLBACKS,
    LAUNCHER_NAME,
    LAUNCHERS,
    MEGATRON,
    PYTHON_TOOLS,
    TITLES,
)
from .programs import option_number, program_of
from .scan import Process
from .scene import Claim, Scene, is_inherited, takes_part


__all__ = ["by_environment", "by_evidence", "by_looks"]


def by_looks(
    process: Process, elder: Process | None, above: Claim | None
) -> Claim | None:
    """
    What do its title and its command line say?
    """
    if COMPILE_WORKER.search(process.text) or (
        above is not None and above.role == "compile"
    ):
        return Claim(above.framework, "compile") if above else None
    if process.name == DATA_WORKER:
        return Claim(above.framework, "dataloader") if above else None

    # A forked child keeps the title of its parent.
    if elder is None or elder.text != process.text:
        claim = _by_tables(process)
        if claim is not None:
            return claim
    if above is not None and above.role == "launcher":
        return Claim(above.framework, "rank")
    return None


def _by_tables(process: Process) -> Claim | None:
    program = program_of(process.arguments)
    for table, text in ((TITLES, process.text), (LAUNCHERS, program)):
        for look in table:
            if look.pattern.search(text):
                return Claim(look.framework, look.role)
    is_launcher = process.name == LAUNCHER_NAME
    return Claim("torchrun", "launcher") if is_launcher else None


def by_environment(
    scene: Scene, process: Process, elder: Process | None
) -> Claim | None:
    """
    Does it have a rank of its own in its environment?
    """
    shown = scene.shown_by(process)
    identity = shown.identity
    if identity.rank is None or is_inherited(scene, process, elder):
        return None

    program = program_of(process.arguments)
    # Slurm names a rank in every process that it starts.
    least = 0 if identity.source == "torchrun" else 1
    has_peers = identity.world_size is not None and identity.world_size > least
    if PYTHON_TOOLS.search(program) or not (has_peers or shown.has_torch):
        return None
    if MEGATRON.search(program):
        return Claim("megatron", "rank")
    if elder is not None and scene.family.is_copy(process, elder):
        return Claim("multiprocessing", "rank")
    return Claim(_launcher_of(shown), "rank")


def _launcher_of(shown: Evidence) -> str:
    if "TORCHELASTIC_RUN_ID" in shown.environ:
        return "torchrun"
    # Many scripts give torch's names to what Slurm says.
    if shown.environ.get("SLURM_PROCID") == str(shown.identity.rank):
        return "slurm"
    return "torch" if shown.identity.source == "torchrun" else "mpi"


def by_evidence(
    scene: Scene, process: Process, elder: Process | None
) -> Claim | None:
    """
    Does it take part in collectives, although nobody says so?
    """
    if PYTHON_TOOLS.search(program_of(process.arguments)):
        return None
    if elder is not None and scene.family.is_copy(process, elder):
        has_peers = takes_part(scene, process, elder)
        return Claim("multiprocessing", "rank") if has_peers else None
    for look in FALLBACKS:
        if look.pattern.search(process.text):
            return Claim(look.framework, look.role)

    named = option_number(process.arguments, "rank", "local-rank")
    has_peers = scene.shown_by(process).has_torch and (
        named is not None or has_rank_threads(process.pid, scene.root)
    )
    return Claim("torch", "rank") if has_peers else None
