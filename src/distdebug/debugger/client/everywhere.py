"""
What do the ranks on all nodes of a job answer?

Sockets cannot be reached from other nodes, and no port is opened.  So one command
is run on each node, by whatever brings commands there, and the answers are
joined.  Nothing stays on the nodes.
"""

from __future__ import annotations

import functools

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import DebuggerError
from ...nodes.model import Engine, NodeResult
from ...nodes.run import run_on_nodes
from .commands import parse_command
from .connecting import connect
from .model import Answers, Listing, Output, Process, Session
from .obeying import obey


__all__ = ["ask_everywhere"]


def ask_everywhere(
    text: str,
    *,
    engine: Engine,
    folder: str | None = None,
    wait_s: float = 5.0,
    timeout_s: float = 60.0,
) -> Answers | Listing:
    """
    Obey one command on every node of a job.

    Args:
        text: The command, one that concerns
            ranks, and not ``attach``.

        engine: What brings it to the nodes.

        folder: The folder of the sockets on each node; by default that of the
            only job of this user that listens there.

        wait_s: How long to wait for ranks that run, in seconds.

        timeout_s: How long a node may take, in seconds.

    Returns:
        What all ranks answered.  A node that did not is named in the notes of
        answers.

    Raises:
        DebuggerError: No node could obey.

        NodesError: The nodes are not known.
    """
    # Or every node would complain.
    if parse_command(text).word in {"attach", "detach", "help", "quit"}:
        msg = f"this concerns one rank, or none: {text!r:.200}"
        raise DebuggerError(msg, remedy="cast ranks(3) COMMAND")

    work = functools.partial(_ask_here, text, folder, wait_s)
    results = list(
        run_on_nodes(work, engine=engine, timeout_s=timeout_s + wait_s)
    )
    found = [r.value for r in results if _is_answer(r.value)]
    notes = tuple(_notes(results))
    if not found:
        msg = "; ".join(dict.fromkeys(notes)) or "there is no node"
        raise DebuggerError(msg, remedy="see: dbg -c list")

    if "processes" in found[0]:
        return _joined_listing(found)
    return _joined_answers(found, notes)


def _ask_here(text: str, folder: str | None, wait_s: float) -> dict[str, Any]:
    """
    Runs on a node.
    """
    try:
        with connect(folder) as client:
            answers = obey(client, parse_command(text), wait_s=wait_s)
    except (DebuggerError, OSError) as exc:
        return {"problem": str(exc)}

    if isinstance(answers, Listing):
        return {
            "processes": answers.to_records(),
            "silent": list(answers.silent),
        }
    return answers.to_dict()


def _is_answer(value: object) -> bool:
    return isinstance(value, dict) and "problem" not in value


def _notes(results: Iterable[NodeResult]) -> Iterable[str]:
    for result in results:
        problem = (
            result.value.get("problem")
            if isinstance(result.value, dict)
            else result.reason or "it gave no answer"
        )
        if problem:
            yield f"{result.host}: {problem}"


def _joined_listing(found: Iterable[Mapping[str, Any]]) -> Listing:
    processes = [_process(p) for one in found for p in one["processes"]]
    processes.sort(key=lambda p: (p.group, p.rank, p.host, p.pid))
    return Listing(
        processes=tuple(processes),
        silent=tuple(pid for one in found for pid in one["silent"]),
    )


def _joined_answers(
    found: Iterable[Mapping[str, Any]], notes: Iterable[str]
) -> Answers:
    outputs = [Output(**o) for one in found for o in one["outputs"]]
    outputs.sort(key=lambda o: (o.group, o.rank))
    return Answers(
        outputs=tuple(outputs),
        not_stopped=tuple(
            _process(p) for one in found for p in one["not_stopped"]
        ),
        silent=tuple(pid for one in found for pid in one["silent"]),
        notes=(*(n for one in found for n in one["notes"]), *notes),
    )


def _process(data: Mapping[str, Any]) -> Process:
    sessions = tuple(Session(**session) for session in data["sessions"])
    return Process(**{**data, "sessions": sessions})
