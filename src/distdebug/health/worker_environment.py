"""
Read and filter the environment variables of worker processes.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import attrs

from .._rules import read_toml
from .._secrets import redact
from .._text import clean
from ..findings import Evidence, Missing
from ..identity import (
    LAUNCHER_RULES,
    PLACE_VARIABLES,
    TORCH_VARIABLES,
    identify,
)
from ..processes import Worker, read_environ, read_link


_PLACE_NAMES = PLACE_VARIABLES | {rule.size for rule in LAUNCHER_RULES}
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE|BEARER",
    re.IGNORECASE,
)
_MAX_VALUE = 500


@cache
def read_variables() -> dict[str, Any]:
    """
    Return the tables of ``variables.toml``.
    """
    return read_toml(Path(__file__).with_name("variables.toml"))


def public_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables of a worker that may be stored.

    Only variables of the network, torch, launchers, and frameworks are kept,
    and none whose name or value may hold a secret.  Names and values are
    cleaned, and values are cut to 500 characters.
    """
    return {
        clean(name): clean(value, limit=_MAX_VALUE)
        for name, value in sorted(environ.items())
        if _is_public(name, value)
    }


def _is_public(name: str, value: str) -> bool:
    public = read_variables()["public"]
    is_known = (
        name in _PLACE_NAMES
        or name in public["names"]
        or name.startswith(tuple(public["prefixes"]))
    )
    if not is_known:
        return False
    if name not in public["no_secrets"] and _SECRET_NAME.search(name):
        return False

    return redact(value) == value


# Child processes have the same values as the rank that started them.
_INHERITED = (
    *(name for name in TORCH_VARIABLES if name != "RANK"),
    *("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"),
)


@attrs.frozen(kw_only=True)
class Settings:
    """
    The public variables of one process.

    Attributes:
        host: The node.

        variables: Its variables, without possible secrets.

        pid: The process ID, if known.

        rank: The rank, if known.

        world_size: The world size, if known.

        job: An identifier that separates jobs on one node, or ``""``.

        shares_network: Whether the process is in the network namespace of
            this process.
    """

    host: str
    variables: Mapping[str, str]
    pid: int | None = None
    rank: int | None = None
    world_size: int | None = None
    job: str = ""
    shares_network: bool = True

    @property
    def name(self) -> str:
        """
        Return ``"rank 3"``, ``"process 4711"``, or ``"a process"``.
        """
        if self.rank is not None:
            return f"rank {self.rank}"
        return "a process" if self.pid is None else f"process {self.pid}"

    def evidence(self, quote: str) -> Evidence:
        """
        Return evidence from the environment of this process.
        """
        return Evidence(
            kind="environment",
            source=self.host,
            location=self.name,
            quote=quote,
        )


def read_settings(
    processes: Iterable[Worker | int]
    | Mapping[str, Iterable[Mapping[str, str]]],
) -> tuple[tuple[Settings, ...], tuple[Missing, ...]]:
    """
    Read the variables of processes.

    Helper processes without a rank are left out: they inherit the variables
    of a rank.

    Args:
        processes: Workers or process IDs of this node; or environments that
            were collected before, by host.

    Returns:
        The variables, and the processes whose environment is unreadable.
    """
    if isinstance(processes, Mapping):
        return tuple(_settings_of_environs(processes)), ()

    settings, missing = [], []
    for process in processes:
        entry = _read_process(process)
        if entry is None:
            pid = process.pid if isinstance(process, Worker) else process
            reason = f"the environment of process {pid} may not be read"
            missing.append(Missing(what="environment", reason=reason))
        elif not isinstance(process, Worker) or process.role == "rank":
            settings.append(entry)
    return tuple(settings), tuple(missing)


def select_ranks(settings: Iterable[Settings]) -> tuple[Settings, ...]:
    """
    Drop launchers, drivers, and child processes.

    Returns:
        One entry per rank; all entries if no process has a rank.
    """
    entries = tuple(settings)
    # Under Slurm, a launcher has the rank of its task; the ranks that it
    # starts set RANK themselves.
    hosts_with_rank = {x.host for x in entries if "RANK" in x.variables}
    ranks: dict[tuple[object, ...], Settings] = {}
    for x in entries:
        is_own = "RANK" in x.variables or x.host not in hosts_with_rank
        if x.rank is not None and (is_own or x.pid is not None):
            values = map(x.variables.get, _INHERITED)
            ranks.setdefault((x.host, x.job, x.rank, *values), x)
    return tuple(ranks.values()) or entries


def group_by_job(
    settings: Iterable[Settings],
) -> tuple[tuple[Settings, ...], ...]:
    """
    Group processes by their job; those without a job are one group.
    """
    return tuple(map(tuple, grouped((x.job, x) for x in settings).values()))


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """
    Collect the second parts of pairs by the first.
    """
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def _settings_of_environs(
    environs: Mapping[str, Iterable[Mapping[str, str]]],
) -> Iterator[Settings]:
    for host, host_environs in environs.items():
        for environ in host_environs:
            yield _make_settings(clean(host), environ)


def _read_process(process: Worker | int) -> Settings | None:
    pid = process.pid if isinstance(process, Worker) else process
    environ, source = read_environ(pid)
    if not source:
        return None

    settings = _make_settings(socket.gethostname(), environ, pid=pid)
    namespace = f"/proc/{pid}/ns/net"
    own_namespace = read_link("/proc/self/ns/net")
    shares_network = read_link(namespace) in {"", own_namespace}
    changes: dict[str, Any] = {"shares_network": shares_network}
    if isinstance(process, Worker):
        changes |= {"rank": process.rank, "job": process.job}
        if process.world_size is not None:
            changes["world_size"] = process.world_size
    return attrs.evolve(settings, **changes)


def _make_settings(
    host: str, environ: Mapping[str, str], *, pid: int | None = None
) -> Settings:
    identity = identify(environ)
    return Settings(
        host=host,
        pid=pid,
        variables=public_variables(environ),
        rank=identity.rank,
        world_size=identity.world_size,
        job=identity.job,
    )


class Rendezvous(NamedTuple):
    """
    The address at which the ranks of one job meet.

    Attributes:
        size: The world size.

        address: ``MASTER_ADDR``.

        port: ``MASTER_PORT``.

        run: The run ID of torchrun, or the job ID of Slurm.

        host: The host, if the address means another machine on each host
            (loopback, or no address).
    """

    size: int | None
    address: str
    port: str
    run: str
    host: str


def group_by_rendezvous(
    settings: Iterable[Settings],
) -> dict[Rendezvous, list[Settings]]:
    """
    Group processes by their rendezvous.

    Processes without an address are grouped by host.
    """
    return grouped((_rendezvous(x), x) for x in settings)


def _rendezvous(x: Settings) -> Rendezvous:
    address = x.variables.get("MASTER_ADDR", "")
    return Rendezvous(
        size=x.world_size,
        address=address,
        port=x.variables.get("MASTER_PORT", ""),
        run=x.variables.get("TORCHELASTIC_RUN_ID", "")
        or x.variables.get("SLURM_JOB_ID", ""),
        # A loopback address means another machine on each host.
        host=x.host if _is_loopback(address) or not address else "",
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
