"""
Which death belongs to this process, or to this rank?
"""

from __future__ import annotations

from collections.abc import Iterable

from .model import Death, Deaths


__all__ = ["death_of"]


def death_of(
    deaths: Deaths | Iterable[Death],
    *,
    rank: int | None = None,
    pid: int | None = None,
    place: str | None = None,
    ray_id: str | None = None,
) -> Death | None:
    """
    Which death belongs to this process, or to this rank?

    Args:
        deaths: The deaths to look at.

        rank: The global rank.

        pid: The number of the process on its node.

        place: Its node: an address, a name, or Ray's id.  Without it a
            number of a process counts only if it is unique.

        ray_id: What Ray calls the process, or the actor.

    Returns:
        Of those to which everything applies that is given, one that nobody
        wanted rather than one that was intended, and the latest of them; or
        ``None``.
    """
    if rank is None and pid is None and ray_id is None:
        return None

    found = [
        death
        for death in (deaths.deaths if isinstance(deaths, Deaths) else deaths)
        if rank in {None, death.rank}
        and pid in {None, death.pid}
        and ray_id in {None, death.worker_id, death.actor_id}
        and place in {None, death.ip, death.host, death.node_id}
    ]
    is_vague = rank is None and ray_id is None and place is None
    if is_vague and len({death.node_id for death in found}) > 1:
        return None

    # An actor that was started again dies once more.
    found.sort(key=lambda x: (not x.is_intended, x.time or 0.0))
    return found[-1] if found else None
