"""
Which processes are ranks of one job, by where they meet?
"""

from __future__ import annotations

import ipaddress

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from .processes import Settings


__all__ = ["ADDRESS", "PORT", "Team", "teams"]

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
