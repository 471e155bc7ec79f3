"""
Identify the rank and job of this process from torch or launcher variables.

Every launcher sets other variables.  This module lists them, and their order
of precedence.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import sys

from collections.abc import Mapping
from typing import Any, NamedTuple


class Identity(NamedTuple):
    """
    Rank and job of a process.

    Attributes:
        rank: Global rank, or ``None`` if unknown.

        world_size: Number of ranks of the job, or ``None``.

        local_rank: Rank on this node, or ``None``.

        job: Identifies the run: the launcher's run id, the number of the
            restart, and the address of rank 0, as far as they are known;
            ``""`` if none is.

        source: Where the rank comes from: ``"torch"``, a launcher, or ``""``.
    """

    rank: int | None
    world_size: int | None
    local_rank: int | None
    job: str
    source: str


# The first launcher with a rank is used.  The one closest to torch comes
# first: with one torchrun per node under Slurm, Slurm's number is that of the
# node.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    ("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIx", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)

# More ranks than any machine will have; anything above is not a rank.
_MAX_RANK = 2**31


def identify(environ: Mapping[str, str]) -> Identity:
    """
    Return the rank and job that an environment describes.

    ``RANK`` (torchrun and launchers that follow its convention) comes before
    Open MPI, PMI, PMIx, and Slurm.  ``WORLD_SIZE`` also overrides the size
    that the launcher sets.

    Returns:
        The known fields.  Numbers that cannot be parsed count as unknown.
    """
    source, rank_name, size_name, local_name = next(
        (
            x
            for x in _LAUNCHERS
            if _parse_number(environ.get(x[1])) is not None
        ),
        ("", *_LAUNCHERS[0][1:]),
    )
    size = _parse_number(environ.get("WORLD_SIZE"))
    if size is None:
        size = _parse_number(environ.get(size_name))
    return Identity(
        rank=_parse_number(environ.get(rank_name)),
        world_size=size,
        local_rank=_parse_number(environ.get(local_name)),
        job=_job_id(environ),
        source=source,
    )


def current_identity() -> Identity:
    """
    Return the rank and job of this process.

    Once a process group exists, torch's own numbers override the environment.
    torch is never imported.
    """
    identity = identify(os.environ)
    try:
        dist: Any = sys.modules["torch.distributed"]
        if not dist.is_initialized():
            return identity
        return identity._replace(
            rank=int(dist.get_rank()),
            world_size=int(dist.get_world_size()),
            source="torch",
        )
    except Exception:  # noqa: BLE001 a half-imported or foreign torch
        return identity


def _parse_number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None

    number = int(text[:11])
    return number if number < _MAX_RANK else None


def _job_id(environ: Mapping[str, str]) -> str:
    parts = []
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        parts.append(run)
    elif environ.get("SLURM_JOB_ID"):
        step = environ.get("SLURM_STEP_ID")
        job = environ["SLURM_JOB_ID"]
        parts.append(f"{job}.{step}" if step else job)

    restart = _parse_number(environ.get("TORCHELASTIC_RESTART_COUNT"))
    if restart:
        parts.append(f"restart{restart}")

    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        parts.append(f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")
    return " ".join(parts)
