"""
What do logs tell?
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...findings import Finding, Missing
from ...health.node import NodeFacts
from ...logscan.collectives import CollectiveLogs
from ...logscan.model import LogGroup, ScanReport
from ...raylogs.deaths.model import Deaths
from ...raylogs.driver.model import DriverLog
from ...startup.model import PhaseReport


__all__ = ["LogEvidence"]


@attrs.frozen(kw_only=True)
class LogEvidence:
    """
    What logs and the facts of nodes tell.

    Attributes:
        is_any: Whether there was anything to read.

        deaths: Who died in a Ray cluster.

        raylets: Whether nsys started the wrong Python.

        drivers: Outputs of Ray's drivers in which something failed.

        scan: What went wrong, line by line.

        collectives: What watchdogs and NCCL said.

        phase: How far the start-up came.

        nodes: What is wrong with nodes.

        groups: What the scan found, by file and place of the first line.

        missing: What could not be read, and why.

        files: The files that were read, but for those of Ray itself.

        facts: What was seen on each node.

        environs: The variables of the workers of each node.
    """

    is_any: bool = False
    deaths: Deaths = attrs.field(factory=Deaths)
    raylets: tuple[Finding, ...] = ()
    drivers: tuple[DriverLog, ...] = ()
    scan: ScanReport = attrs.field(factory=ScanReport)
    collectives: CollectiveLogs = attrs.field(factory=CollectiveLogs)
    phase: PhaseReport | None = None
    nodes: tuple[Finding, ...] = ()
    groups: Mapping[tuple[str, str], LogGroup] = attrs.field(factory=dict)
    missing: tuple[Missing, ...] = ()
    files: tuple[str, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    environs: Mapping[str, tuple[dict[str, str], ...]] = attrs.field(
        factory=dict
    )
