"""
How is what was read shown as text, and where is a rank?
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ..._showing import Block, Table
from .logs import CollectiveLogs


__all__ = ["RankOrigin", "logs_blocks", "rank_origins"]

_MOST_ROWS = 200


@attrs.frozen(kw_only=True)
class RankOrigin:
    """
    Where does a rank run?

    Attributes:
        rank: Global rank.

        pid: Its process, if a line tells.

        ip: Address of its node, if a line tells.

        host: Name of its node, if NCCL tells.

        source: The file that it writes to.
    """

    rank: int
    pid: int | None = None
    ip: str | None = None
    host: str | None = None
    source: str = ""


def rank_origins(logs: CollectiveLogs) -> dict[int, RankOrigin]:
    """
    Where do the ranks run that wrote something?

    Args:
        logs: What was read.

    Returns:
        By global rank, as much as prefixes of Ray and lines of NCCL tell.
    """
    found: dict[int, RankOrigin] = {}
    for record in logs.records:
        rank = record.rank
        if rank is None:
            continue
        known = found.get(rank, RankOrigin(rank=rank, source=record.source))
        origin = record.origin
        if origin is not None:
            known = attrs.evolve(
                known,
                pid=origin.pid if known.pid is None else known.pid,
                ip=known.ip or origin.ip,
            )
        found[rank] = known
    for init in logs.inits:
        if init.size == logs.world_size:
            known = found.get(
                init.member,
                RankOrigin(rank=init.member, source=init.source),
            )
            found[init.member] = attrs.evolve(
                known,
                host=init.host,
                pid=init.pid if known.pid is None else known.pid,
            )
    return dict(sorted(found.items()))


def logs_blocks(logs: CollectiveLogs) -> Iterator[Block]:
    """
    What is there to show of what was read?

    Args:
        logs: What was read.

    Returns:
        A table.
    """
    rows = [
        (
            type(record).__name__,
            "?" if record.rank is None else record.rank,
            record.group or "",
            f"{record.source}:{record.line}".lstrip(":"),
            record.quote,
        )
        for record in logs.records
    ]
    if rows:
        headers = ("what", "rank", "group", "where", "line")
        yield Table(headers, rows, _MOST_ROWS, more="")
    else:
        yield "no line about a collective"
