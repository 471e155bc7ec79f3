"""
Identify rank, job, and host from variables of launchers, names, and log lines.

Every launcher sets other variables.  This module lists them, and their order
of precedence.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import re
import sys

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
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


class LauncherRule(NamedTuple):
    """
    The variables that a launcher sets for each process.

    Attributes:
        launcher: The name, which is the ``source`` of an :class:`Identity`.

        rank: The variable of the global rank.

        size: That of the world size.

        local_ranks: Those of the local rank; the first that is set is used.

        example: An environment that the rule reads as rank 3.

        reference: Where the launcher documents its variables.

        node: If given, the variable of the node's number, which must be 0:
            the launcher only sets the rank on the node.
    """

    launcher: str
    rank: str
    size: str
    local_ranks: tuple[str, ...]
    example: str
    reference: str
    node: str = ""

    def read_rank(self, environ: Mapping[str, str]) -> int | None:
        """
        Return the global rank by this rule; ``None`` if it does not apply.
        """
        if self.node and _parse_number(environ.get(self.node)) != 0:
            return None
        return _parse_number(environ.get(self.rank))


# The first launcher with a rank is used.  The one closest to torch comes
# first: with one torchrun per node under Slurm, Slurm's number is that of the
# node.  Launchers that also set the variables of PMI or of Open MPI come
# before these.
LAUNCHER_RULES = (
    LauncherRule(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        ("LOCAL_RANK",),
        "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1",
        "docs.pytorch.org/docs/stable/elastic/run.html; Accelerate, DeepSpeed,"
        " Ray Train, and the PyTorchJob of Kubeflow set the same",
    ),
    # Its processes may all run within one task of Slurm.
    LauncherRule(
        "Lightning",
        "LOCAL_RANK",
        "WORLD_SIZE",
        ("LOCAL_RANK",),
        "NODE_RANK=0 LOCAL_RANK=3 WORLD_SIZE=8",
        "the subprocess launcher of Lightning",
        node="NODE_RANK",
    ),
    LauncherRule(
        "Flux",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        ("FLUX_TASK_LOCAL_ID",),
        "FLUX_TASK_RANK=3 FLUX_JOB_SIZE=8 FLUX_TASK_LOCAL_ID=1 PMI_RANK=3",
        "flux-environment(7) of flux-core",
    ),
    LauncherRule(
        "JSM",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        ("JSM_NAMESPACE_LOCAL_RANK",),
        "JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=8 JSM_NAMESPACE_LOCAL_RANK=1",
        "the LSFEnvironment of Lightning",
    ),
    LauncherRule(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 "
        "OMPI_COMM_WORLD_LOCAL_RANK=1",
        "docs.open-mpi.org, environment variables set for MPI applications",
    ),
    LauncherRule(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        "MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=8 "
        "MV2_COMM_WORLD_LOCAL_RANK=1",
        "the user guide of MVAPICH2",
    ),
    LauncherRule(
        "PALS",
        "PALS_RANKID",
        "PMI_SIZE",
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PMI_RANK=3 PMI_SIZE=8",
        "mpiexec(1) of HPE PALS",
    ),
    LauncherRule(
        "PMI",
        "PMI_RANK",
        "PMI_SIZE",
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        "PMI_RANK=3 PMI_SIZE=8 MPI_LOCALRANKID=1",
        "Hydra of MPICH and Intel MPI; Cray MPICH",
    ),
    LauncherRule(
        "PMIx",
        "PMIX_RANK",
        "PMIX_SIZE",
        ("PMIX_LOCAL_RANK",),
        "PMIX_RANK=3",
        "the PMIx standard",
    ),
    LauncherRule(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        ("SLURM_LOCALID",),
        "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1",
        "srun(1)",
    ),
)
# The job and its step, by batch system; the first that is set is used.
_JOB_VARIABLES = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("FLUX_JOB_ID", ""),
    ("LSB_JOBID", ""),
    ("PBS_JOBID", ""),
)
#: Variables that differ between the processes or nodes of a job on purpose.
PLACE_VARIABLES = frozenset(
    {
        *("GROUP_RANK", "ROLE_RANK", "NODE_RANK", "SLURM_NODEID"),
        *(rule.rank for rule in LAUNCHER_RULES),
        *(name for rule in LAUNCHER_RULES for name in rule.local_ranks),
    }
)
#: Variables that make a process a rank; a child that is none must not have them.
RANK_VARIABLES = frozenset(
    {
        "LOCAL_WORLD_SIZE",
        *PLACE_VARIABLES,
        *(rule.size for rule in LAUNCHER_RULES),
    }
)

#: What torch reads to join a job.
TORCH_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
)
# More ranks than any machine will have; anything above is not a rank.
_MAX_RANK = 2**31
_MOST_DIGITS = 40


def identify(environ: Mapping[str, str]) -> Identity:
    """
    Return the rank and job that an environment describes.

    The first of :data:`LAUNCHER_RULES` that applies is used.  ``WORLD_SIZE``
    also overrides the size that the launcher sets.

    Returns:
        The known fields.  Numbers that cannot be parsed count as unknown.
    """
    found = ((rule, rule.read_rank(environ)) for rule in LAUNCHER_RULES)
    rule, rank = next(
        (x for x in found if x[1] is not None), (LAUNCHER_RULES[0], None)
    )
    return Identity(
        rank=rank,
        world_size=_first_number(environ, "WORLD_SIZE", rule.size),
        local_rank=_first_number(environ, *rule.local_ranks),
        job=_job_id(environ),
        source="" if rank is None else rule.launcher,
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


class NamedRank(NamedTuple):
    """
    A number behind "rank" in a name or in a line.

    Attributes:
        number: The rank.

        is_global: False for ranks of other kinds, such as ``local_rank_3``.

        start: Where "rank" begins.

        stop: Where the number ends.
    """

    number: int
    is_global: bool
    start: int
    stop: int


# rank3, rank_3, rank=3, Rank-3, and the word before, as in local_rank_3.
# Jobs load this module and read no texts, so that patterns are compiled when
# they are first used.
_compiled = cache(re.compile)
_RANK = r"(?i)rank[ ._:=-]{0,2}0{0,9}(?P<number>\d{1,7})(?!\d)"
# In text, "rank3" without brackets may be any word: rank 3, rank=3, [rank3].
_RANK_IN_TEXT = (
    r"(?i)(?<=\[)(?:global[ _])?rank[ =:_]{0,3}(?P<tag>\d{1,7})(?=\])"
    r"|(?<![A-Za-z_])(?:global[ _])?rank"
    r"(?:[ =:]{1,3}|(?=\d{1,7} ?(?:/|of) ?\d))(?P<number>\d{1,7})\b"
    r"|\[PG [^\]]{0,100}Rank (?P<member>\d{1,7})\]"
    # The prefix of SGLang: [2025-04-23 21:20:16 TP2]
    r"|(?<=\d\d:\d\d:\d\d )TP(?P<worker>\d{1,4})(?=\])"
)
# vLLM's processes, such as Worker_TP5 and Worker_TP5_EP5.
_ENGINE_WORKER = r"Worker_TP(\d{1,4})(?:_EP\d{1,4})?"
_BEFORE_RANK = r"(?i)(?P<word>[a-z]{1,20})(?P<gap>[ ._-]?)\Z"
# Numbers of a node, of a place in a mesh, or within a group: torchrun's
# LOCAL_RANK, GROUP_RANK, ROLE_RANK, and the names of Megatron and DeepSpeed.
_OTHER_RANKS = frozenset(
    [
        "local",
        "node",
        "group",
        "machine",
        "host",
        "role",
        "relative",
        "intra",
        "inter",
        "shard",
        "stage",
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "sp",
        "mp",
        "vp",
        "etp",
        "edp",
        "tensor",
        "pipeline",
        "data",
        "model",
        "context",
        "expert",
        "sequence",
        "parallel",
        "replica",
        "engine",
        # Sizes, and ranks of matrices.
        "max",
        "num",
        "low",
        "lora",
        "adapter",
        "matrix",
    ]
)

#: Patterns for what stands before a line: Ray's name and number of a process,
#: ``mpirun --tag-output``, ``srun --label``, and ``kubectl logs --prefix``.
#: The __repr__ of an actor, such as NamedRepr(rank=0), may hold brackets.
RAY_PREFIX = (
    r"\((?P<name>[^\n]{0,200}?) ?\bpid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]{1,60}))?\) ?"
)
MPI_TAG = r"\[\d{1,9},(?P<rank>\d{1,7})\]<std(?:out|err|diag)>: ?"
TASK_LABEL = r" {0,6}(?P<rank>\d{1,7}): "
POD_TAG = r"\[(?P<pod>pod/[^\]\s]{1,300})\] ?"
#: Patterns for the tag before a line, such as ``[rank3]``; for the rank in a
#: heading, such as ``global rank 3 of 8``; and for other ranks there.
RANK_TAG = r"\[[Rr]ank[ :]?(?P<rank>\d{1,7})\]"
RANK_IN_HEADING = (
    r"(?:global[ _-])?rank[ _:=#-]{0,3}(?P<rank>\d{1,7})\b"
    r"(?:\s?(?:of|/)\s?(?P<size>\d{1,7}))?"
)
OTHER_RANK_IN_HEADING = (
    rf"(?:{'|'.join(sorted(_OTHER_RANKS))})[ _-]rank[ :=]{{0,3}}\d{{1,7}}\b"
)


def ranks_in_name(name: str) -> Iterator[NamedRank]:
    """
    Find the numbers behind "rank" in the name of a file, folder, or actor.

    ``worker_rank3``, ``global-rank=3``, and ``Actor(rank=3)`` name the global
    rank 3; ``local_rank_3``, ``node_rank3``, and ``dp_rank_3`` do not.

    Args:
        name: Without folders; what is beyond 1,000 characters is not read.
    """
    for found in _compiled(_RANK).finditer(name[:1000]):
        word, gap = _word_before(name, found.start())
        yield NamedRank(
            number=int(found["number"]),
            is_global=word in {"", "global", "world"}
            or (gap != "" and word not in _OTHER_RANKS),
            start=found.start(),
            stop=found.end(),
        )


def ranks_in_text(text: str) -> Iterator[NamedRank]:
    """
    Find the numbers behind "rank" in a line of a log, or in several.

    ``rank 3``, ``global rank: 3``, and ``[rank3]`` name the global rank 3;
    ``local rank 3`` and ``tp rank 3`` do not.  What is written together, such
    as ``my_rank=3``, is the name of a variable.  What follows the prefix that
    torch gives to messages of a group, ``[PG … Rank 1]``, is not read: it
    names ranks within the group.
    """
    for found in _compiled(_RANK_IN_TEXT).finditer(text):
        word, _ = _word_before(text, found.start())
        yield NamedRank(
            number=int(next(filter(None, found.groups()))),
            is_global=not found["member"] and word not in _OTHER_RANKS,
            start=found.start(),
            stop=found.end(),
        )
        if found["member"]:
            return


def _word_before(text: str, start: int) -> tuple[str, str]:
    """
    Return the word before *start* in small letters, and what is between.
    """
    found = _compiled(_BEFORE_RANK).search(text, max(0, start - 24), start)
    return (found["word"].lower(), found["gap"]) if found else ("", "")


def rank_in_name(name: str) -> int | None:
    """
    Return the global rank in the name of a file, folder, or actor.

    An inference engine without pipeline and replicas numbers its workers by
    their place in the tensor-parallel group.

    Returns:
        ``None`` if there is none, or several that differ.
    """
    ranks = {x.number for x in ranks_in_name(name) if x.is_global}
    if worker := _compiled(_ENGINE_WORKER).fullmatch(name):
        ranks.add(int(worker[1]))
    return ranks.pop() if len(ranks) == 1 else None


def rank_in_names(names: Iterable[str | None]) -> int | None:
    """
    Return the global rank in the first name that holds one.
    """
    ranks = map(rank_in_name, filter(None, names))
    return next((x for x in ranks if x is not None), None)


# torch's prefix, and variables that scripts print.
_OWN_RANK = (
    r"(?m)(?:^\[rank|(?<![A-Za-z_])(?:RANK|global_rank)[=:] ?)(\d{1,6})"
)


def own_rank_in_text(text: str) -> int | None:
    """
    Return the global rank that the lines of one process print as its own.

    Unlike :func:`ranks_in_text` it reads no words: these may be of others.

    Returns:
        ``None`` if there is none, or several that differ.
    """
    if not any(x in text for x in ("[rank", "RANK", "global_rank")):
        return None  # the pattern takes long
    ranks = {int(x) for x in _compiled(_OWN_RANK).findall(text)}
    return ranks.pop() if len(ranks) == 1 else None


def same_host(a: str, b: str) -> bool:
    """
    Return whether two host names are of one host.

    One may be the full domain name of the other.  An address is only the same
    as itself: its name needs a table.
    """
    short, long = sorted((a.lower(), b.lower()), key=len)
    if short == long:
        return bool(short)
    is_name = not short.replace(".", "").isdigit() and ":" not in short
    return is_name and bool(short) and long.startswith(f"{short}.")


#: Dimensions of meshes as SGLang, vLLM, and Megatron name them.
MESH_DIMENSIONS = (
    *("TP", "PP", "DP", "EP", "CP", "SP", "CFG", "DCP", "PCP", "ETP", "EDP"),
    *("MOE_EP", "MOE_DP", "ATTN_TP", "ATTN_DP", "ATTN_CP"),
)
# scheduler_PP2_TP1, scheduler_TP0_PP0_DP0_EP0, Worker_TP3, EngineCore_DP1:
# in any order, without dimensions of size 1.
_MESH_COORDINATE = (
    rf"(?<![A-Za-z])({'|'.join(MESH_DIMENSIONS)})_?(\d{{1,6}})(?![A-Za-z0-9])"
)
# A title may hold anything.
_MAX_TITLE_CHARS = 4096


def coordinates_in_title(title: str) -> tuple[tuple[str, int], ...]:
    """
    Return the mesh coordinates in the title of a process.

    Returns:
        Names of dimensions in lower case, each with an index, in the order of
        the title; the first if a dimension occurs twice.
    """
    coordinates: dict[str, int] = {}
    for name, number in _compiled(_MESH_COORDINATE).findall(
        title[:_MAX_TITLE_CHARS]
    ):
        coordinates.setdefault(name.lower(), int(number))
    return tuple(coordinates.items())


def _first_number(environ: Mapping[str, str], *names: str) -> int | None:
    numbers = (_parse_number(environ.get(name)) for name in names)
    return next((x for x in numbers if x is not None), None)


def _parse_number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None

    number = int(text) if len(text) <= _MOST_DIGITS else _MAX_RANK
    return number if number < _MAX_RANK else None


def _job_id(environ: Mapping[str, str]) -> str:
    parts = []
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        parts.append(run)
    else:
        ids = ((environ.get(x), environ.get(y)) for x, y in _JOB_VARIABLES)
        job = next((x for x in ids if x[0]), ())
        parts += [".".join(filter(None, job))] if job else []

    restart = _parse_number(environ.get("TORCHELASTIC_RESTART_COUNT"))
    if restart:
        parts.append(f"restart{restart}")

    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        parts.append(f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")
    return " ".join(parts)
