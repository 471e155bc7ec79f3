"""
What does a Ray cluster answer, within a time that is bound?
"""

from __future__ import annotations

import json
import os
import sys

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ..._text import clean
from ...errors import MissingDependencyError, NodesError
from ...nodes.process import run_process
from ...nodes.results import Bound


__all__ = ["ask_tables", "ask_workers", "plain_text", "rows_of"]

_MODULE = f"{__package__}.child"
# So long may Ray end by itself what it began.
_GRACE_S = 3.0
# The rest of the time is for the way there and back.
_SHARE = 0.8


def ask_tables(address: str | None, *, timeout_s: float) -> dict[str, Any]:
    """
    What does the head of the cluster know?

    Args:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        timeout_s: How long it may take, in seconds.

    Returns:
        See `read_tables`.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    answer = _ask(address, None, timeout_s)
    if not isinstance(answer, dict):
        raise _misunderstood(answer)
    return answer


def ask_workers(
    address: str | None,
    errands: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
) -> list[Mapping[str, Any]]:
    """
    What do workers of the cluster answer?

    Args:
        address: As for `ask_tables`.

        errands: What to ask of whom; see `errands.ask_workers`.

        timeout_s: How long all may take, in seconds.

    Returns:
        One answer for each, in the same order; ``reason`` tells why there is
        none.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    if not errands:
        return []
    answer = _ask(address, errands, timeout_s)
    if not isinstance(answer, list) or len(answer) != len(errands):
        raise _misunderstood(answer)
    return [_read(row) for row in rows_of(answer, keep_others=True)]


def rows_of(
    value: object, *, keep_others: bool = False
) -> list[Mapping[str, Any]]:
    """
    Which rows has a table from elsewhere?

    Args:
        value: The table.

        keep_others: Whether to keep the place of what is no row.
    """
    rows: Iterable[object] = value if isinstance(value, list) else ()
    return [
        row if isinstance(row, dict) else {}
        for row in rows
        if keep_others or isinstance(row, dict)
    ]


def plain_text(value: object, *, limit: int = 500) -> str:
    """
    What does a value from elsewhere say, if it is a text?
    """
    return clean(value, limit=limit) if isinstance(value, str) else ""


def _ask(
    address: str | None,
    errands: Sequence[Mapping[str, Any]] | None,
    timeout_s: float,
) -> Any:
    where = _where(address)
    if find_spec("ray") is None:
        msg = "Ray is not installed here"
        raise MissingDependencyError(
            msg, remedy="install the version of the cluster: ray==..."
        )
    question = {
        "address": where,
        "errands": errands,
        "timeout_s": timeout_s * _SHARE,
    }
    ended = run_process(
        [sys.executable, "-P", "-m", _MODULE],
        # What *we* were started by is no matter of the workers.
        environment={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        bound=Bound(timeout_s=timeout_s, grace_s=_GRACE_S),
        data=json.dumps(question).encode() + b"\n",
    )
    if ended.status is None:
        msg = f"no Ray cluster answers at {where} within {timeout_s:g} s"
        raise NodesError(msg, remedy=_REMEDY)
    said = _loads(ended.output)
    if "answer" in said:
        return said["answer"]
    complaint = clean(ended.complaint.decode("utf-8", "replace")[-300:])
    reason = plain_text(said.get("reason")) or complaint or "no answer"
    msg = f"there is no way to a Ray cluster at {where}: {reason}"
    raise NodesError(msg, remedy=_REMEDY)


_REMEDY = (
    "run it on a node of the cluster, where `ray status` answers, with the "
    "Ray and the Python of the cluster; with RAY_AUTH_MODE=token if it wants one"
)


def _where(address: str | None) -> str:
    if address in {"", "local"} or "://" in (address or ""):
        msg = f"{address!r} is no address of a running Ray cluster"
        raise NodesError(msg, remedy="say 'auto' or 'HOST:6379'")
    ray = sys.modules.get("ray")
    if address in {None, "auto"} and ray and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return address or "auto"


def _read(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(row.get("answer"), str):
        return {"reason": plain_text(row.get("reason")) or "no answer"}
    told = _loads(row["answer"])
    return told or {"reason": "a worker answered what nobody understands"}


def _loads(data: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _misunderstood(answer: object) -> NodesError:
    msg = f"the Ray cluster answered what nobody understands: {answer!r:.80}"
    return NodesError(msg, remedy="use the Ray of the cluster here")
