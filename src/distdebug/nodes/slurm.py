"""
How does a command run on every node of a Slurm job?
"""

from __future__ import annotations

import os
import re
import shutil
import sys

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import attrs

from .._text import clean
from ..errors import NodesError
from .process import Door, open_channel, run_errand, run_process
from .results import Arrival, Bound, Ended, NodeStatus, Trouble
from .run import side_by_side


# A busy controller may take its time.
_QUERY_S = 30.0
_MOST_SAID = 2000
_JOB = re.compile(r"\d+(?:[_+]\d+)?")
# The environment of a job names the geometry of its own steps, which is none
# of ours.
_OURS = re.compile(r"(?:SLURM|SRUN|SQUEUE|SCONTROL)_(?!CONF$|CLUSTERS$|JWT$)")

_GONE = "take the job's end from its logs; the other nodes' results are whole"
_TROUBLES = tuple(
    (re.compile(pattern), Trouble(status, reason, remedy))
    for pattern, status, reason, remedy in (
        (
            r"[Ii]nvalid job id|already completed|Expired or invalid job",
            NodeStatus.FAILED,
            "the job is not running any more",
            _GONE,
        ),
        (
            r"connection failure|Node failure|Required node not available",
            NodeStatus.DEAD,
            "Slurm does not reach the node",
            "`scontrol show node` tells its state and why; " + _GONE,
        ),
        (
            r"Requested node configuration is not available",
            NodeStatus.FAILED,
            "the node does not belong to the job any more",
            _GONE,
        ),
        (
            r"unrecognized option .*container",
            NodeStatus.FAILED,
            "this Slurm does not know --container-name",
            "leave container_name away, or ask for the pyxis plugin",
        ),
        (
            r"pyxis: .*",
            NodeStatus.FAILED,
            "the container cannot be entered",
            "name one that runs, as it was named by srun --container-name",
        ),
        (
            r"Access/permission denied|Invalid user|Invalid account",
            NodeStatus.FAILED,
            "Slurm does not let this user into the job",
            "run it as the user whose job it is",
        ),
    )
)


class _Allocation(NamedTuple):
    job: str
    state: str
    nodes: str


@attrs.frozen(kw_only=True)
class Slurm:
    """
    The nodes of a running Slurm job.

    Each node gets a step of its own that shares what the job has, so that
    nobody waits for what is in use.

    Attributes:
        job: Its number, such as ``"1234"``; ``"1234_5"`` for a task of an
            array.

        container_name: The pyxis container to enter on each node.

        python: The Python that runs functions; by default this one, and
            ``python3`` in a container.

        at_once: How many nodes are asked at the same time.

        grace_s: How long ``srun`` may take to end what runs on a node, in
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

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[Arrival]:
        """
        What does a command leave on each node of the job, as they come?

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take on each node, in seconds.

        Yields:
            One answer per node.

        Raises:
            NodesError: There is no Slurm, no such job, or it does not run.
        """
        bound = Bound(timeout_s=timeout_s, grace_s=self.grace_s)

        def ask(prefix: Sequence[str]) -> Ended:
            ended = run_errand(
                [*prefix, *argv],
                environment=_environment(),
                bound=bound,
                data=data,
            )
            return ended._replace(trouble=ended.trouble or _trouble(ended))

        yield from side_by_side(
            ask, self.places(), at_once=self.at_once, stop=bound.stop
        )

    @contextmanager
    def doors(self, argv: Sequence[str]) -> Iterator[Mapping[str, Door]]:
        """
        On which nodes of the job can a program be started?

        Args:
            argv: The command.

        Yields:
            What starts it, by node.

        Raises:
            NodesError: There is no Slurm, no such job, or it does not run.
        """
        yield {
            host: partial(
                open_channel,
                [*prefix, *argv],
                environment=_environment(),
                explain=_trouble,
            )
            for host, prefix in self.places().items()
        }

    def places(self) -> dict[str, tuple[str, ...]]:
        """
        Which nodes has the job?

        Returns:
            What stands before a command, so that it runs there, by node; in
            the order of Slurm.

        Raises:
            NodesError: There is no Slurm, no such job, or it does not run.
        """
        if not _JOB.fullmatch(self.job):
            msg = f"{clean(self.job)!r} is no number of a Slurm job"
            raise NodesError(msg, remedy="`squeue --me` lists your jobs")

        places: dict[str, tuple[str, ...]] = {}
        for allocation in self._allocations():
            for host in self._hosts(allocation.nodes):
                places.setdefault(host, self._srun(allocation.job, host))
        return places

    def _allocations(self) -> list[_Allocation]:
        output = self._ask("squeue", "-h", "-j", self.job, "-o", "%A|%T|%N")
        rows = [_Allocation(*x.split("|", 2)) for x in _lines(output, "|", 2)]
        running = [row for row in rows if row.nodes]
        if not running:
            state = rows[0].state.lower() if rows else "over"
            msg = f"Slurm job {self.job} has no nodes: it is {clean(state)}"
            raise NodesError(msg, remedy="name a job that runs: `squeue --me`")
        return running

    def _hosts(self, nodes: str) -> list[str]:
        # Names such as a[1-3,5],b7 have more forms than one could guess.
        output = self._ask("scontrol", "show", "hostnames", nodes)
        return [line for line in output.split() if not line.startswith("-")]

    def _srun(self, job: str, host: str) -> tuple[str, ...]:
        inside = (
            (f"--container-name={self.container_name}",)
            if self.container_name
            else ()
        )
        return (
            _tool("srun"),
            "--overlap",
            f"--jobid={job}",
            "--nodes=1",
            "--ntasks=1",
            "-w",
            host,
            "--gres=none",
            "--mpi=none",
            *inside,
        )

    def _ask(self, *argv: str) -> str:
        asked = " ".join(argv)
        ended = run_process(
            [_tool(argv[0]), *argv[1:]],
            environment=_environment(),
            bound=Bound(timeout_s=_QUERY_S),
        )
        # Whatever complains without end says the same at its end.
        said = clean(ended.complaint[-_MOST_SAID:].decode("utf-8", "replace"))
        if ended.status == 0:
            output = ended.output.decode("utf-8", "replace")
            if all(line.isprintable() for line in output.splitlines()):
                return output
            msg = f"`{clean(asked)}` printed what is no text"
            raise NodesError(msg, remedy=f"see what `which {argv[0]}` tells")
        if "Invalid job id" in said:
            msg = f"Slurm knows no job {self.job}"
            raise NodesError(msg, remedy="`squeue --me` lists your jobs")
        if ended.status is None:
            said = f"no answer after {_QUERY_S:g} s"
        msg = f"`{asked}` failed: {said}"
        raise NodesError(msg, remedy="see whether `sinfo` answers here")


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not _OURS.match(k)}


def _trouble(ended: Ended) -> Trouble | None:
    complaint = ended.complaint.decode("utf-8", "replace")
    said = [
        line
        for line in map(clean, complaint.splitlines())
        if re.match(r"srun: |slurmstepd: |pyxis: ", line)
    ]
    for pattern, trouble in _TROUBLES:
        for line in said:
            if pattern.search(line):
                return trouble._replace(reason=f"{trouble.reason} ({line})")
    return None


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        msg = f"there is no {name} on PATH"
        raise NodesError(
            msg,
            remedy="run it where Slurm's commands are, such as a login node",
        )
    return path


def _lines(text: str, mark: str, count: int) -> list[str]:
    return [x for x in text.splitlines() if x.count(mark) >= count]
