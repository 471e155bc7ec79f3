"""
Never run: type checkers check that users see the types that we promise.
"""

from __future__ import annotations

from pathlib import Path

import distdebug


selection: distdebug.RankSelection = distdebug.parse_ranks("ranks(dp=1)")
ranks: tuple[int, ...] = selection.resolve({"dp": 2}, world_size=2)
also: tuple[int, ...] = selection.resolve(distdebug.Mesh({"dp": 2}), 2)
folded: str = distdebug.fold_ranks(ranks)
mesh = distdebug.Mesh([("dp", 2), ("tp", 4)])
size: int = mesh["tp"] * mesh.world_size
where: dict[str, int] = mesh.coordinates(3)

settings: distdebug.flight_recorder.RecorderSettings = (
    distdebug.enable_flight_recorder()
)

report: distdebug.flight_recorder.FlightReport = distdebug.analyze_dumps(
    distdebug.read_dumps(Path("dumps"))
)
findings: tuple[distdebug.Finding, ...] = report.findings

diagnosis: distdebug.Diagnosis = distdebug.diagnose("dumps", Path("more"))
cause: distdebug.Cause = diagnosis.verdict.cause
evidence: tuple[distdebug.Evidence, ...] = diagnosis.verdict.evidence

try:
    distdebug.parse_ranks("ranks(")
except distdebug.errors.RankSyntaxError as error:
    position: int = error.position
    remedy: str | None = error.remedy
