"""
Do the ranks, their meeting place, and their GPUs fit each other?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ..._text import list_text
from ...findings import Cause, Confidence, Evidence, Finding
from .meeting import ADDRESS, PORT, Team, teams
from .processes import Settings


__all__ = ["judge_ranks"]

_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def judge_ranks(settings: Iterable[Settings]) -> tuple[Finding, ...]:
    """
    Tell which ranks do not fit the others.

    Args:
        settings: All processes.

    Returns:
        What was found.
    """
    parted = teams(x for x in settings if x.rank is not None)
    found: list[Finding] = []
    for members in parted.values():
        found += _numbers(members)
        found += _gpus(members)
    found += _sizes(parted)
    found += _places(parted)
    return tuple(found)


def _numbers(members: list[Settings]) -> Iterator[Finding]:
    size = members[0].world_size
    beyond = [x for x in members if size is not None and _rank(x) >= size]
    if beyond:
        yield _finding(
            Cause.NODE_MISCONFIGURED,
            "certain",
            beyond,
            f"{beyond[0].name} does not exist in a job of {size} ranks",
            "set RANK from 0 to WORLD_SIZE - 1",
        )
    if not members[0].variables.get(ADDRESS):
        return  # they may be of several jobs
    same: dict[int, list[Settings]] = defaultdict(list)
    for x in members:
        same[_rank(x)].append(x)
    twice = [x for x in same.values() if len(x) > 1]
    if twice:
        who = list_text(f"rank {_rank(x[0])}" for x in twice)
        yield _finding(
            Cause.NODE_MISCONFIGURED,
            "likely",
            [y for x in twice for y in x],
            f"several processes of the same job call themselves {who}, on "
            f"{list_text(sorted({y.host for x in twice for y in x}))}",
            "give every process a RANK of its own; on several nodes mostly "
            "the number of the node (--node-rank) is wrong",
        )


def _gpus(members: list[Settings]) -> Iterator[Finding]:
    same: dict[tuple[str, str], list[Settings]] = defaultdict(list)
    for x in members:
        name = next((n for n in _GPUS if n in x.variables), "")
        value = x.variables.get(name, "").strip()
        # With several, each rank chooses its own by its LOCAL_RANK.
        if value and "," not in value and value not in {"-1", "all"}:
            same[x.host, value].append(x)
    for (host, value), users in same.items():
        if len({_rank(x) for x in users}) < 2:
            continue
        who = list_text(x.name for x in users)
        yield _finding(
            Cause.NODE_MISCONFIGURED,
            "likely" if _sees_all_gpus(users) else "possible",
            users,
            f"{who} share GPU {value} of {host}",
            "give every rank a GPU of its own: NCCL refuses two ranks on one",
        )


def _sees_all_gpus(users: list[Settings]) -> bool:
    """
    Whether the number of a GPU means the same to all of them.

    It may not if they are of several jobs, and not under Slurm, which can
    give each task GPUs of its own that all begin with number 0.
    """
    first = users[0].variables
    return bool(first.get(ADDRESS)) and "SLURM_PROCID" not in first


def _sizes(parted: dict[Team, list[Settings]]) -> Iterator[Finding]:
    sizes: dict[tuple[str, str, str], dict[int, list[Settings]]] = defaultdict(
        dict
    )
    for team, members in parted.items():
        if team.address and team.port and team.size is not None:
            place = (team.address, team.port, team.host)
            sizes[place][team.size] = members
    for (address, port, _), several in sizes.items():
        if len(several) > 1:
            few = min(several.values(), key=len)
            yield _finding(
                Cause.NODE_MISCONFIGURED,
                "likely",
                few,
                f"ranks that meet at {address}:{port} do not agree on "
                f"WORLD_SIZE: {list_text(sorted(several))}",
                "start all nodes with the same number of nodes and of ranks "
                "per node",
            )


def _places(parted: dict[Team, list[Settings]]) -> Iterator[Finding]:
    """
    Parts of one job that wait for each other at different places.
    """
    by_size: dict[tuple[int, str], list[Team]] = defaultdict(list)
    for team in parted:
        if team.size is not None and team.address:
            by_size[team.size, team.run].append(team)
    for (size, _), several in by_size.items():
        members = [x for team in several for x in parted[team]]
        ranks = sorted(_rank(x) for x in members)
        is_one_job = ranks == list(range(size))
        if len(several) > 1 and is_one_job:
            where = sorted(
                {f"{t.address}:{t.port}".rstrip(":") for t in several}
            )
            has_own = any(t.host for t in several)
            yield _finding(
                Cause.NETWORK_MISCONFIGURED,
                "likely",
                members,
                f"the {size} ranks of a job wait for each other at different "
                f"places: {list_text(where)}"
                + (", each host at itself" if has_own else ""),
                "set MASTER_ADDR and MASTER_PORT to the same address of the "
                "node of rank 0 everywhere",
            )


def _rank(x: Settings) -> int:
    return -1 if x.rank is None else x.rank


def _finding(
    cause: Cause,
    confidence: Confidence,
    who: list[Settings],
    says: str,
    remedy: str,
) -> Finding:
    names = (ADDRESS, PORT, "RANK", "WORLD_SIZE", "LOCAL_RANK", *_GPUS)
    return Finding(
        cause=cause,
        ranks=tuple(sorted({_rank(x) for x in who})),
        summary=says,
        confidence=confidence,
        remedy=remedy,
        evidence=tuple(
            Evidence(
                kind="environment",
                source=x.host,
                location=x.name,
                quote=" ".join(
                    f"{n}={x.variables[n]}" for n in names if n in x.variables
                ),
            )
            for x in who[:4]
        ),
    )
