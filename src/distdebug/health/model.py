"""
What is known of a node, and what is wrong with it?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from .._showing import Block, Lines, Shown
from .._text import size_text
from ..findings import Finding, Missing
from .blocked import Blocked
from .disks import Disk
from .gpu.model import Gpu
from .kernel.events import KernelEvent
from .limits import Limits
from .memory.read import Memory
from .network.infiniband import IbPort
from .network.interfaces import Interface
from .pressure import Pressure
from .ray_node.read import RayNode


__all__ = ["EnvironmentHealth", "NodeFacts", "NodeHealth"]

_MOST_LINES = 200


@attrs.frozen(kw_only=True)
class NodeFacts:
    """
    What was seen on a node.  ``None`` where it could not be looked at.

    Attributes:
        host: The node.

        taken: When, in seconds since the epoch.

        booted: When it was started.

        gpus: Its GPUs; empty if there is no way to ask for any.

        gpu_problem: Why its GPUs could not be asked, if they could not.

        gpu_wait_s: How long an answer of their driver was waited for in vain,
            in seconds; 0 if it answered, be it with an error.

        memory: Its memory, and that of the control groups of the job.

        kernel: What the kernel told of, and what is not over.

        log_begins: How far back the kernel's log goes.

        disks: The file systems that the job writes to.

        pressure: What processes wait for.

        blocked: Processes that are stuck in the kernel.

        limits: What the processes of the job may use.

        interfaces: Its network interfaces.

        ib_ports: The ports of its adapters for RDMA.

        ray: What shows of Ray, for each session that was asked for.

        name_address: The address that the name of the node stands for here.
    """

    host: str
    taken: float
    booted: float | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpu_problem: str = ""
    gpu_wait_s: float = 0.0
    memory: Memory | None = None
    kernel: tuple[KernelEvent, ...] | None = None
    log_begins: float | None = None
    disks: tuple[Disk, ...] | None = None
    pressure: Pressure | None = None
    blocked: tuple[Blocked, ...] | None = None
    limits: tuple[Limits, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    ib_ports: tuple[IbPort, ...] | None = None
    ray: tuple[RayNode, ...] | None = None
    name_address: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, fit for JSON.
        """
        told: dict[str, Any] = _plain(self)
        return told


@attrs.frozen(kw_only=True)
class NodeHealth(Shown):
    """
    Is a node able to work?

    Attributes:
        facts: What was seen.

        findings: What is wrong, the surest first; those that are only
            ``"possible"`` need not have to do with the job.

        missing: What could not be looked at, and why.
    """

    facts: NodeFacts
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing was found that is more than possible.
        """
        return _is_healthy(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, fit for JSON.
        """
        return {"facts": self.facts.to_dict()} | _told(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _blocks_(self) -> Iterable[Block]:
        lines = [f"{self.facts.host}: {_seen(self.facts)}"]
        yield Lines(
            [*lines, *_lines(self.findings, self.missing)], _MOST_LINES
        )


@attrs.frozen(kw_only=True)
class EnvironmentHealth(Shown):
    """
    Do the variables of the workers fit their nodes, and each other?

    Attributes:
        hosts: The nodes.

        processes: How many environments were compared.

        findings: What is wrong, the surest first, and notes about what is
            slow; notes are fine, and say so by their cause.

        missing: What could not be looked at, and why.
    """

    hosts: tuple[str, ...] = ()
    processes: int = 0
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing was found that is more than possible.
        """
        return _is_healthy(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, fit for JSON.
        """
        counts = {"hosts": list(self.hosts), "processes": self.processes}
        return counts | _told(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _blocks_(self) -> Iterable[Block]:
        if not (self.processes or self.findings or self.missing):
            line = "no environments were compared: there is no worker of a job"
            yield Lines([line], _MOST_LINES)
            return

        line = (
            f"{_counted(self.processes, 'environment')} of "
            f"{_counted(len(self.hosts), 'node')}"
        )
        yield Lines([line, *_lines(self.findings, self.missing)], _MOST_LINES)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _is_healthy(findings: tuple[Finding, ...]) -> bool:
    return all(f.cause.is_fine or f.confidence == "possible" for f in findings)


def _told(health: NodeHealth | EnvironmentHealth) -> dict[str, Any]:
    return {
        "healthy": health.is_healthy,
        "findings": [f.to_dict() for f in health.findings],
        "missing": [attrs.asdict(m) for m in health.missing],
    }


def _lines(
    findings: tuple[Finding, ...], missing: tuple[Missing, ...]
) -> list[str]:
    lines = []
    for finding in findings:
        sure = "note" if finding.cause.is_fine else finding.confidence
        lines.append(f"- {finding.summary.removeprefix('note: ')} ({sure})")
        if finding.remedy:
            lines.append(f"  {finding.remedy}")
    if not findings:
        lines.append("nothing is wrong, as far as can be seen")
    lines += [f"not seen: {m.what}: {m.reason}" for m in missing]
    return lines


def _seen(facts: NodeFacts) -> str:
    parts = [f"{len(facts.gpus or ())} GPUs"]
    memory = facts.memory
    if memory and memory.total and memory.available is not None:
        parts.append(
            f"{size_text(memory.available)} of {size_text(memory.total)} "
            "memory left"
        )
    up = [x.name for x in facts.interfaces or () if x.is_up and x.addresses]
    if up:
        parts.append(f"interfaces {', '.join(up[:8])}")
    return ", ".join(parts)


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        names = (a.name for a in attrs.fields(type(value)))
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, dict) else value
