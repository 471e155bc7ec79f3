"""
How is what was read shown as text, and where is a rank?
"""

from __future__ import annotations

import attrs

from ..._text import text_table
from .logs import CollectiveLogs


__all__ = ["RankOrigin", "logs_text", "rank_origins"]


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


def logs_text(logs: CollectiveLogs) -> str:
    """
    What was read, as a table.

    Args:
        logs: What was read.
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
    if not rows:
        return "no line about a collective"
    table = text_table(("what", "rank", "group", "where", "line"), rows[:200])
    more = f"\n… and {len(rows) - 200} more" if len(rows) > 200 else ""
    return table + more
