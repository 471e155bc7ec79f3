"""
What Slurm, children on other nodes, and Ray's tables answer.
"""

from __future__ import annotations

import json

from collections.abc import Callable
from unittest.mock import patch

from distdebug.errors import NodesError
from distdebug.nodes import CompletedCommand, shared_env, slurm, unpack_answer
from distdebug.nodes.results import (
    NodeFailure,
    NodeStatus,
    completed_from_line,
    completed_to_line,
)
from distdebug.ray import debugger_checks
from distdebug.ray.cluster_child import loads_object

from ..target import target


def _slurm(answer: Callable[[list[str]], CompletedCommand]) -> object:
    with (
        patch.object(slurm, "run_child", lambda argv, **_: answer(argv)),
        patch.object(slurm, "_tool", lambda name: name),
    ):
        return slurm.Slurm(job="7").srun_prefixes()


@target(NodesError)
def squeue(data: bytes) -> object:
    """
    What ``squeue`` prints, and ``scontrol`` after it.
    """
    first, _, second = data.partition(b"\n@@@\n")

    def answer(argv: list[str]) -> CompletedCommand:
        return CompletedCommand(0, first if argv[0] == "squeue" else second)

    return _slurm(answer)


@target(NodesError)
def slurm_complaint(data: bytes) -> object:
    """
    What Slurm's tools complain of.
    """
    failure = slurm.Slurm(job="7").explain(CompletedCommand(1, b"", data))
    shown = failure.reason if failure else ""
    try:
        return shown, _slurm(lambda _: CompletedCommand(1, b"", data))
    except NodesError as exc:
        return shown, str(exc)


def _lines() -> list[bytes]:
    failure = NodeFailure(NodeStatus.DEAD, "gone", "wait")
    found = (
        CompletedCommand(0, b"out", b"err"),
        CompletedCommand(None, failure=failure),
    )
    return [completed_to_line(x).encode() for x in found]


@target(seeds=_lines)
def node_wire(data: bytes) -> object:
    """
    What a command left, as a line of text; and the answer of a child.
    """
    text = data.decode("utf-8", "replace")
    unpack_answer("mark", text)
    completed = completed_from_line(text)
    completed_to_line(completed)
    return completed.status


def _seeds() -> list[bytes]:
    return [json.dumps({"env_vars": {"A": "b"}, "pip": ["x"]}).encode()]


@target(seeds=_seeds)
def ray_tables(data: bytes) -> object:
    """
    JSON in Ray's own store, and the answer of its dashboard.
    """
    text = data.decode("utf-8", "replace")
    debugger_checks.split_address(text[:200])
    shared_env(loads_object(text))
    return debugger_checks.judge_dashboard("host:1", 200, data, "2.50.1")
