"""
Which variables has each process of the job?
"""

from __future__ import annotations

import ipaddress
import re
import socket

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import attrs

from .._text import clean
from ..findings import Missing
from ..identity import identify
from ..processes import Worker, read_environ, read_link


# Whatever else is in an environment is nobody's business.
_PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "UCX_", "FI_"),
    *("TP_SOCKET_IFNAME", "TORCHSPEC_LOG_LEVEL", "CUDA_", "HIP_", "ROCR_"),
    *("PYTORCH_", "OMP_", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"),
    *("RAY_", "VLLM_", "SGLANG_", "MEGATRON_", "HF_HOME", "HF_HUB_"),
    *("HF_DATASETS_", "HF_XET_", "MASTER_ADDR", "MASTER_PORT"),
)
_NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "NODE_RANK"),
        *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        *("SLURM_NODEID", "SLURM_NNODES", "OMPI_COMM_WORLD_RANK"),
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("PMI_RANK", "PMI_SIZE", "PMIX_RANK"),
    }
)
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE|BEARER",
    re.IGNORECASE,
)
# A few names hold such a word, and no secret.
_NO_SECRET = frozenset(
    {"RAY_AUTH_MODE", "TOKENIZERS_PARALLELISM", "VLLM_TOKENIZER_MODE"}
)
_ACCOUNT = re.compile(r"://[^/\s]{0,500}@")
# Some are recognized by themselves: of Hugging Face, OpenAI, GitHub, AWS, and
# web tokens.
_SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{20}|\bsk-[A-Za-z0-9_-]{16}|\bgh[pousr]_[A-Za-z0-9]{20}"
    r"|\bAKIA[A-Z0-9]{12}|\beyJ[A-Za-z0-9_-]{16}|-----BEGIN"
    r"|(?:token|secret|passw(?:or)?d|api[-_]?key)[\"']?\s{0,3}[=:]",
    re.IGNORECASE,
)
_LONGEST = 500


def public_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Which variables of a worker may be kept?

    Args:
        environ: All of them.

    Returns:
        Those of the network, of torch, and of the frameworks by name, without
        any that may be a secret, by its name or by its value.
    """
    return {
        clean(name): clean(value, limit=_LONGEST)
        for name, value in sorted(environ.items())
        if _is_public(name, value)
    }


def _is_public(name: str, value: str) -> bool:
    if name not in _NAMES and not name.startswith(_PREFIXES):
        return False
    if name not in _NO_SECRET and _SECRET.search(name):
        return False

    return not (_ACCOUNT.search(value) or _SECRET_VALUE.search(value))


_PLACE = (
    *("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"),
)


@attrs.frozen(kw_only=True)
class Settings:
    """
    The variables of one process, without any that may be a secret.

    Attributes:
        host: Its node.

        variables: Those that may be kept.

        pid: Its number, if known.

        rank: Its rank, if known.

        world_size: How many ranks its job has, if known.

        local_rank: Its rank on its node, if known.

        job: What tells its job from others on the node, or ``""``.

        sees_node: Whether it has the same network as whoever looks at it.
    """

    host: str
    variables: Mapping[str, str]
    pid: int | None = None
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    job: str = ""
    sees_node: bool = True

    @property
    def name(self) -> str:
        """
        What to call it in a sentence.
        """
        if self.rank is not None:
            return f"rank {self.rank}"
        return "a process" if self.pid is None else f"process {self.pid}"


def read_settings(
    processes: Iterable[Worker | int]
    | Mapping[str, Iterable[Mapping[str, str]]],
) -> tuple[tuple[Settings, ...], tuple[Missing, ...]]:
    """
    Learn the variables of processes.

    Args:
        processes: Workers or numbers of processes of this node; or
            environments that somebody learned before, by host.

    Returns:
        What is known; and whose variables could not be read.
    """
    if isinstance(processes, Mapping):
        return tuple(_given(processes)), ()

    found, missing = [], []
    for process in processes:
        settings = _read(process)
        if settings is None:
            pid = process.pid if isinstance(process, Worker) else process
            reason = f"the environment of process {pid} may not be read"
            missing.append(Missing(what="environment", reason=reason))
        elif settings.rank is not None or not _is_helper(process):
            found.append(settings)
    return tuple(found), tuple(missing)


def those_of_ranks(settings: Iterable[Settings]) -> tuple[Settings, ...]:
    """
    Leave out launchers, drivers, and children, if ranks can be told.

    Args:
        settings: The variables of all processes.

    Returns:
        One for each rank; all, if none of them names a rank.
    """
    every = tuple(settings)
    # A launcher under Slurm has the number of its task, and starts ranks that
    # have numbers of their own.
    launched = {x.host for x in every if "RANK" in x.variables}
    ranks: dict[tuple[object, ...], Settings] = {}
    for x in every:
        is_own = "RANK" in x.variables or x.host not in launched
        if x.rank is not None and (is_own or x.pid is not None):
            # Children inherit everything, and so look the same.
            place = tuple(x.variables.get(name) for name in _PLACE)
            ranks.setdefault((x.host, x.job, x.rank, *place), x)
    return tuple(ranks.values()) or every


def by_job(
    settings: Iterable[Settings],
) -> tuple[tuple[Settings, ...], ...]:
    """
    Put those of each job together.

    Args:
        settings: The variables of all processes.

    Returns:
        Those of each job; those whose job nobody tells are one.
    """
    jobs: dict[str, list[Settings]] = {}
    for x in settings:
        jobs.setdefault(x.job, []).append(x)
    return tuple(map(tuple, jobs.values()))


def _given(
    environs: Mapping[str, Iterable[Mapping[str, str]]],
) -> Iterator[Settings]:
    for host, several in environs.items():
        for environ in several:
            yield _settings(clean(host), environ)


def _is_helper(process: Worker | int) -> bool:
    # They inherit the variables of a rank, and take no part.
    return isinstance(process, Worker) and process.role != "rank"


def _read(process: Worker | int) -> Settings | None:
    pid = process.pid if isinstance(process, Worker) else process
    environ, source = read_environ(pid)
    if not source:
        return None

    settings = _settings(socket.gethostname(), environ, pid=pid)
    space = f"/proc/{pid}/ns/net"
    ours = read_link("/proc/self/ns/net")
    sees = read_link(space) in {"", ours}
    known: dict[str, Any] = {"sees_node": sees}
    if isinstance(process, Worker):
        is_rank = process.role == "rank"
        known["rank"] = process.rank if is_rank else None
        known["job"] = process.job
        if process.world_size is not None:
            known["world_size"] = process.world_size
    return attrs.evolve(settings, **known)


def _settings(
    host: str, environ: Mapping[str, str], *, pid: int | None = None
) -> Settings:
    who = identify(environ)
    return Settings(
        host=host,
        pid=pid,
        variables=public_variables(environ),
        rank=who.rank,
        world_size=who.world_size,
        local_rank=who.local_rank,
        job=who.job,
    )


#: The variables that tell where.
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"


class Team(NamedTuple):
    """
    Those who meet at one place.

    Attributes:
        size: How many they are.

        address: Where they meet.

        port: The port there.

        run: Which run it is, as torchrun or Slurm tells.

        host: Their host, if the address means another one on each.
    """

    size: int | None
    address: str
    port: str
    run: str
    host: str


def teams(settings: Iterable[Settings]) -> dict[Team, list[Settings]]:
    """
    Put those together who are ranks of one job.

    Args:
        settings: All processes.

    Returns:
        Those of each job; and together, those that name no place.
    """
    found: dict[Team, list[Settings]] = defaultdict(list)
    for x in settings:
        found[_team(x)].append(x)
    return dict(found)


def _team(x: Settings) -> Team:
    address = x.variables.get(ADDRESS, "")
    return Team(
        size=x.world_size,
        address=address,
        port=x.variables.get(PORT, ""),
        run=x.variables.get("TORCHELASTIC_RUN_ID", "")
        or x.variables.get("SLURM_JOB_ID", ""),
        # Each host has a loopback of its own.
        host=x.host if _is_loopback(address) or not address else "",
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
