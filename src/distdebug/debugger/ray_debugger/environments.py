"""
What do the workers of a Ray cluster say of their environments?

A job, and each actor, may have a Python and variables of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import NodesError
from .asking import ask_workers, plain_text, rows_of


__all__ = ["Told", "ask_environments"]

# Workers that are asked; a cluster is not woken up for a check.
_MOST_ERRANDS = 64


class Told(NamedTuple):
    """
    What a worker said of its environment.

    Attributes:
        who: Whose environment it is.

        node: Where it was asked.

        facts: See `tell_environment`; ``reason`` alone if there is none.
    """

    who: str
    node: str
    facts: Mapping[str, Any]


def ask_environments(
    address: str | None, tables: Mapping[str, Any], *, timeout_s: float
) -> tuple[Told, ...]:
    """
    What does a breakpoint find in every environment that is in use?

    Args:
        address: As for `ask_tables`.

        tables: See `read_tables`.

        timeout_s: How long all may take, in seconds.

    Returns:
        What each worker said that was asked.
    """
    whom = _whom(tables)
    errands = [
        {"ask": "tell_environment", "with": [], "node": node, "env": env}
        for _, node, env in whom
    ]
    try:
        answers = ask_workers(address, errands, timeout_s=timeout_s)
    except NodesError as exc:
        answers = [{"reason": str(exc)}] * len(errands)
    names = {
        row.get("id"): plain_text(row.get("name"))
        for row in rows_of(tables.get("nodes"))
    }
    return tuple(
        Told(who, names.get(node) or node, facts)
        for (who, node, _), facts in zip(whom, answers, strict=True)
    )


def _whom(
    tables: Mapping[str, Any],
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """
    Whose environment, the node where it is, and the environment.
    """
    found: list[list[tuple[str, str, Mapping[str, Any]]]] = []
    for row in rows_of(tables.get("environments")):
        env, nodes = row.get("env"), row.get("nodes")
        who = row.get("who")
        if not (isinstance(env, dict) and isinstance(nodes, list)):
            continue
        names = [plain_text(x) for x in who] if isinstance(who, list) else []
        text = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        found.append([(text, plain_text(node), env) for node in nodes])
    if not found:
        rows = rows_of(tables.get("nodes"))
        ids = [plain_text(row.get("id")) for row in rows]
        found = [[("no job", node, {}) for node in ids]]
    # Each environment before all nodes of one.
    longest = max(map(len, found))
    turns = (row[i] for i in range(longest) for row in found if i < len(row))
    return list(turns)[:_MOST_ERRANDS]
