"""
Will nsys be able to profile workers on this node?
"""

from __future__ import annotations

import os
import tempfile

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from .._files import is_file, matching, resolved
from .._showing import Block, Shown
from .._text import clean
from ..capture.permission.check import Check, check_blocks
from ..findings import Cause, Evidence, Finding, Missing
from ..findings.text import finding_entries
from .installed import find_nsys, nsys_version
from .orphans import find_orphans
from .patch.change import ray_nsight_status
from .raylet_log import raylet_findings


__all__ = ["NsysHealth", "check_nsys"]

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_IMPORTER = "QdstrmImporter"
# Where Debian puts it, which is not where nsys looks.
_DEBIAN = Path("/usr/lib/nsight-systems")
_MIB = 1 << 20


@attrs.frozen(kw_only=True)
class NsysHealth(Shown):
    """
    What was checked.

    Attributes:
        checks: Every check, with what to do where something is not as it
            should be.

        findings: What is wrong, most important first.
    """

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def is_ready(self) -> bool:
        """
        Whether nothing is in the way.
        """
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "ready": self.is_ready,
            "checks": self.to_records(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def _blocks_(self) -> Iterable[Block]:
        # What is a problem is told as a finding, with its remedy.
        yield from check_blocks(
            [
                attrs.evolve(c, remedy="") if c.ok is False else c
                for c in self.checks
            ]
        )
        yield finding_entries(self.findings, len(self.findings))


def check_nsys(
    *,
    nsys: str = "nsys",
    ray: str | os.PathLike[str] | None = None,
    raylet_logs: Iterable[str | os.PathLike[str]] = (),
) -> NsysHealth:
    """
    Can workers on this node be profiled, and does anything waste space?

    Args:
        nsys: The name of nsys, or its path.

        ray: Where Ray is; see `ray_nsight_status`.

        raylet_logs: Sessions of Ray, or other folders with the logs of
            raylets, in which to look for workers that did not start.

    Returns:
        Every check, and what is wrong; a log that cannot be read is a check
        that could not be made.
    """
    path = find_nsys(nsys)
    found, unread = raylet_findings(*raylet_logs)
    checks = (
        _check_nsys(path),
        *([_check_importer(path)] if path else []),
        _check_sampling(),
        _check_twins(),
        _check_orphans(),
        _check_plugin(ray),
        *map(_unread, unread),
    )
    wrong = (_finding(check) for check in checks if check.ok is False)
    return NsysHealth(checks=checks, findings=(*found, *wrong))


def _unread(log: Missing) -> Check:
    return Check(
        f"logs in {clean(log.source or '', limit=200)}",
        ok=None,
        detail=f"cannot be read: {log.reason}",
        remedy="read them as their owner, or copy them",
    )


def _finding(check: Check) -> Finding:
    return Finding(
        cause=Cause.NODE_MISCONFIGURED,
        ranks=(),
        summary=f"nsys cannot profile workers well on this node: {check.name} "
        f"{check.detail}",
        confidence="certain",
        remedy=check.remedy or None,
        evidence=(
            Evidence(kind="node", source=check.name, quote=check.detail),
        ),
    )


def _check_nsys(path: str | None) -> Check:
    if path is None:
        remedy = "install Nsight Systems, and put it on the PATH of the raylet"
        return Check("nsys", ok=False, detail="is not on PATH", remedy=remedy)

    version = nsys_version(path)
    detail = f"{version or 'does not tell its version'}, {path}"
    return Check("nsys", ok=True if version else None, detail=detail)


def _check_importer(path: str) -> Check:
    target = resolved(Path(path)).parent
    host = target.with_name(target.name.replace("target", "host"))
    if is_file(host / _IMPORTER) or is_file(target / _IMPORTER):
        return Check("importer", ok=True, detail=str(host / _IMPORTER))

    debian = _DEBIAN / host.name
    remedy = "install the package of Nsight Systems for hosts as well"
    if is_file(debian / _IMPORTER):
        remedy = f"ln -s {debian} {host}"
    detail = f"is not at {host}: reports stay raw (.qdstrm)"
    return Check("importer", ok=False, detail=detail, remedy=remedy)


def _check_sampling() -> Check:
    try:
        level = int(_PARANOID.read_text("ascii"))
    except (OSError, ValueError):
        detail = "the kernel does not tell"
        return Check("CPU sampling", ok=None, detail=detail)

    if level <= 2:
        detail = f"allowed (perf_event_paranoid is {level})"
        return Check("CPU sampling", ok=True, detail=detail)
    return Check(
        "CPU sampling",
        ok=None,
        detail=f"not allowed (perf_event_paranoid is {level})",
        remedy="keep sample=none, as is the default here; nsys may hang "
        "otherwise",
    )


def _check_twins() -> Check:
    count = size = 0
    folder = Path(tempfile.gettempdir())
    for pattern in ("nsys-report-*.nsys-rep", "nsys-report-*.qdstrm"):
        for file in matching(folder, pattern):
            with suppress(OSError):
                size += file.lstat().st_size
                count += 1
    if not count:
        return Check("temporary files", ok=True, detail=f"none in {folder}")

    return Check(
        "temporary files",
        ok=None,
        detail=f"{count} of {size / _MIB:.1f} MiB in {folder}",
        remedy=f"once no profile is running: rm {folder}/nsys-report-*",
    )


def _check_orphans() -> Check:
    pids = find_orphans()
    if not pids:
        return Check("orphaned agents", ok=True, detail="none")

    numbers = " ".join(map(str, pids))
    return Check(
        "orphaned agents",
        ok=False,
        detail=f"of nsys run without what they served: {numbers}",
        remedy=f"kill {numbers}",
    )


def _check_plugin(ray: str | os.PathLike[str] | None) -> Check:
    status = ray_nsight_status(ray)
    detail = str(status).splitlines()[0].partition("plugin ")[2]
    needs_nothing = status.is_fine or status.state == "absent"
    return Check(
        "Ray's nsight plugin",
        # One can do without it, by the other way of starting workers.
        ok=True if needs_nothing else None,
        detail=f"{detail} ({status.path})" if status.path else detail,
        remedy="" if needs_nothing else status.remedy or "",
    )
