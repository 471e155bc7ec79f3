"""
Who waits in Ray's debugger, and what is in the way of using it?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from ..._showing import Block, Shown
from ..._text import clean
from ...capture.blockers import Check, check_blocks
from ...findings import Cause, Evidence, Finding, Location


__all__ = ["EXTENSION", "RayDebugSession", "RayDebuggerCheck"]

# As in the marketplaces of VS Code and Cursor.
EXTENSION = "anyscalecompute.ray-distributed-debugger"


@attrs.frozen(kw_only=True)
class RayDebugSession(Shown):
    """
    One process of a Ray cluster that waits for a debugger.

    Attributes:
        kind: ``"debugpy"`` for what VS Code attaches to; ``"legacy"`` for
            what ``ray debug`` does.

        host: The address where it listens.

        port: The port where it listens.

        node: The name of its node, or ``""``.

        node_id: What Ray calls the node.

        pid: Its number there; 0 if that is not known.

        worker_id: What Ray calls the process.

        job_id: The job, or ``""``.

        actor_id: The actor, or ``""``.

        actor: The name of the actor, or ``""``.

        task: What it runs, such as ``"Trainer.step"``, or ``""``.

        is_driver: Whether it is the program itself, not a worker of it.

        paused: How many of its threads wait.

        locations: Where they wait, as far as that can be known.

        cwd: The folder where it works, or ``""``.

        note: Why it is not known where they wait, or ``""``.
    """

    kind: Literal["debugpy", "legacy"]
    host: str
    port: int
    node: str = ""
    node_id: str = ""
    pid: int = 0
    worker_id: str = ""
    job_id: str = ""
    actor_id: str = ""
    actor: str = ""
    task: str = ""
    is_driver: bool = False
    paused: int = 1
    locations: tuple[Location, ...] = ()
    cwd: str = ""
    note: str = ""

    @property
    def location(self) -> Location | None:
        """
        Where the first of its threads waits.
        """
        return self.locations[0] if self.locations else None

    @property
    def title(self) -> str:
        """
        What it runs, and as which actor, in the words of the job.
        """
        task = self.task or ("driver" if self.is_driver else "worker")
        return clean(f"{task} ({self.actor})" if self.actor else task)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        data = attrs.asdict(self)
        return {**data, "locations": list(data["locations"])}

    def _blocks_(self) -> Iterable[Block]:
        where = self.location.brief if self.location else self.note
        yield (
            f"{self.title}, pid {self.pid} on {clean(self.node)}, "
            f"{clean(self.host)}:{self.port}: {clean(where or 'unknown')}"
        )


@attrs.frozen(kw_only=True)
class RayDebuggerCheck(Shown):
    """
    What was checked before Ray's debugger is used.

    Attributes:
        checks: Each prerequisite, and what to do where it is not met.

        sessions: Who waits in the debugger now, without where; see
            `ray_debug_sessions`.

        address: Where the cluster is, or ``""``.

        dashboard: Where its dashboard is, or ``""``.

        head_node: The name of its head node, or ``""``.

        local_port: A port that is free here, for the tunnel.

        tunnel: The command that makes the dashboard reachable at that port
            of the machine where VS Code runs, or ``""``.

        extension: What the extension of VS Code is called.
    """

    checks: tuple[Check, ...]
    sessions: tuple[RayDebugSession, ...] = ()
    address: str = ""
    dashboard: str = ""
    head_node: str = ""
    local_port: int = 0
    tunnel: str = ""
    extension: str = EXTENSION

    @property
    def is_ready(self) -> bool:
        """
        Whether no prerequisite is known to be missing.
        """
        return all(check.ok is not False for check in self.checks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """
        What has to be mended, one conclusion for each.
        """
        return tuple(
            Finding(
                cause=Cause.NODE_MISCONFIGURED,
                ranks=(),
                summary=f"Ray's debugger will not work: {check.detail}",
                confidence="certain",
                remedy=check.remedy or None,
                evidence=(
                    Evidence(
                        kind="check",
                        source="check_ray_debugger",
                        location=check.name,
                        quote=check.detail,
                    ),
                ),
            )
            for check in self.checks
            if check.ok is False
        )

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        rest = attrs.asdict(
            self,
            filter=lambda field, _: field.name not in {"checks", "sessions"},
        )
        return {
            "ready": self.is_ready,
            "checks": self.to_records(),
            "sessions": [session.to_dict() for session in self.sessions],
            "findings": [finding.to_dict() for finding in self.findings],
            **rest,
        }

    def _blocks_(self) -> Iterable[Block]:
        return check_blocks(self.checks)
