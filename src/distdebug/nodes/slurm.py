"""
Run commands and streams on the nodes of a Slurm job, with ``srun``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from .._proc import run_child
from .._text import clean
from ..errors import NodesError
from .process import CommandEngine
from .results import (
    CompletedCommand,
    NodeFailure,
    NodeStatus,
)


# A busy controller answers slowly.
_QUERY_S = 30.0
_MAX_ERROR_TEXT = 2000
_JOB = re.compile(r"\d+(?:[_+]\d+)?")
# Inside a job, these variables would set the geometry of the step.
_STEP_VARIABLES = re.compile(
    r"(?:SLURM|SRUN|SQUEUE|SCONTROL)_(?!CONF$|CLUSTERS$|JWT$)"
)

_GONE_REMEDY = (
    "take the job's end from its logs; the other nodes' results are whole"
)
# By the text of Slurm: what it means, and what to do about it.
_FAILURES = {
    r"[Ii]nvalid job id|already completed|Expired or invalid job": NodeFailure(
        NodeStatus.FAILED,
        "the job is not running any more",
        _GONE_REMEDY,
    ),
    r"connection failure|Node failure|Required node not available": NodeFailure(
        NodeStatus.DEAD,
        "Slurm does not reach the node",
        f"`scontrol show node` shows its state and the reason; {_GONE_REMEDY}",
    ),
    r"Requested node configuration is not available": NodeFailure(
        NodeStatus.FAILED,
        "the node does not belong to the job any more",
        _GONE_REMEDY,
    ),
    r"unrecognized option .*container": NodeFailure(
        NodeStatus.FAILED,
        "this Slurm does not know --container-name",
        "leave container_name away, or ask for the pyxis plugin",
    ),
    r"pyxis: .*": NodeFailure(
        NodeStatus.FAILED,
        "the container cannot be entered",
        "name one that runs, as it was named by srun --container-name",
    ),
    r"Access/permission denied|Invalid user|Invalid account": NodeFailure(
        NodeStatus.FAILED,
        "Slurm does not let this user into the job",
        "run it as the user whose job it is",
    ),
}


class _Allocation(NamedTuple):
    job: str
    state: str
    nodes: str


@attrs.frozen(kw_only=True)
class Slurm(CommandEngine):
    """
    The nodes of a running Slurm job.

    Each node gets its own step that overlaps with those of the job, so that it
    does not wait for resources.

    Attributes:
        job: The job ID, such as ``"1234"``; ``"1234_5"`` for a task of an
            array.

        container_name: The pyxis container to enter on each node.

        python: The Python that runs functions; by default this one, and
            ``python3`` in a container.

        at_once: How many nodes run the command at the same time.

        grace_s: How long ``srun`` may take to end the command on a node, in
            seconds.
    """

    job: str = attrs.field(converter=str)
    container_name: str | None = None
    python: str = attrs.field()
    at_once: int = 32
    grace_s: float = 3.0

    @python.default
    def _default_python(self) -> str:
        return "python3" if self.container_name else sys.executable

    def commands(self, argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """
        Return the ``srun`` command for each node.

        Raises:
            NodesError: There is no Slurm, no such job, or it does not run.
        """
        prefixes = self.srun_prefixes()
        return {host: (*prefix, *argv) for host, prefix in prefixes.items()}

    def environment(self) -> dict[str, str]:
        """
        Return the environment without what would set the step's geometry.
        """
        return {
            k: v for k, v in os.environ.items() if not _STEP_VARIABLES.match(k)
        }

    def explain(self, completed: CompletedCommand) -> NodeFailure | None:
        """
        Return the failure that Slurm reports, if it does.
        """
        stderr = completed.stderr.decode("utf-8", "replace")
        error_text = [
            line
            for line in map(clean, stderr.splitlines())
            if re.match(r"srun: |slurmstepd: |pyxis: ", line)
        ]
        for pattern, failure in _FAILURES.items():
            for line in error_text:
                if re.search(pattern, line):
                    reason = f"{failure.reason} ({line})"
                    return failure._replace(reason=reason)
        return None

    def srun_prefixes(self) -> dict[str, tuple[str, ...]]:
        """
        Return the ``srun`` command line for each node, without the command.

        The nodes are in the order of Slurm.

        Raises:
            NodesError: There is no Slurm, no such job, or it does not run.
        """
        if not _JOB.fullmatch(self.job):
            msg = f"{clean(self.job)!r} is not a number of a Slurm job"
            raise NodesError(msg, remedy="`squeue --me` lists your jobs")

        srun_prefixes: dict[str, tuple[str, ...]] = {}
        for allocation in self._allocations():
            for host in self._hosts(allocation.nodes):
                srun_prefixes.setdefault(
                    host, self._srun_prefix(allocation.job, host)
                )
        return srun_prefixes

    def _allocations(self) -> list[_Allocation]:
        output = self._query("squeue", "-h", "-j", self.job, "-o", "%A|%T|%N")
        fields = (line.split("|", 2) for line in output.splitlines())
        rows = [_Allocation(*x) for x in fields if len(x) == 3]
        running = [row for row in rows if row.nodes]
        if not running:
            state = rows[0].state.lower() if rows else "over"
            msg = f"Slurm job {self.job} has no nodes: it is {clean(state)}"
            raise NodesError(msg, remedy="name a job that runs: `squeue --me`")
        return running

    def _hosts(self, nodes: str) -> list[str]:
        # scontrol knows all forms of host lists, such as a[1-3,5],b7.
        output = self._query("scontrol", "show", "hostnames", nodes)
        return [line for line in output.split() if not line.startswith("-")]

    def _srun_prefix(self, job: str, host: str) -> tuple[str, ...]:
        container = self.container_name
        return (
            *(_tool("srun"), "--overlap", f"--jobid={job}", "--nodes=1"),
            *("--ntasks=1", "-w", host, "--gres=none", "--mpi=none"),
            *([f"--container-name={container}"] if container else ()),
        )

    def _query(self, *argv: str) -> str:
        command = " ".join(argv)
        completed = run_child(
            [_tool(argv[0]), *argv[1:]],
            environment=self.environment(),
            timeout_s=_QUERY_S,
        )
        # The end of a long error output is enough.
        error_text = clean(
            completed.stderr[-_MAX_ERROR_TEXT:].decode("utf-8", "replace")
        )
        if completed.status == 0:
            output = completed.output.decode("utf-8", "replace")
            if all(line.isprintable() for line in output.splitlines()):
                return output
            msg = f"`{clean(command)}` printed what is not text"
            raise NodesError(msg, remedy=f"see what `which {argv[0]}` prints")
        if "Invalid job id" in error_text:
            msg = f"Slurm knows no job {self.job}"
            raise NodesError(msg, remedy="`squeue --me` lists your jobs")
        if completed.status is None:
            error_text = f"no answer after {_QUERY_S:g} s"
        msg = f"`{command}` failed: {error_text}"
        raise NodesError(msg, remedy="see whether `sinfo` answers here")


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        msg = f"there is no {name} on PATH"
        remedy = "run it where Slurm's commands are, such as a login node"
        raise NodesError(msg, remedy=remedy)
    return path
