"""
What do the logs say went wrong?
"""

from __future__ import annotations

from typing import Any

from ...._text import size_text
from ....diagnosis.log_evidence import LogEvidence
from ....diagnosis.seen import seen_by
from ....findings import Diagnosis
from ...section import Section
from .deaths import deaths_of, failures_of
from .excerpts import excerpts_of
from .watchdogs import statements_of


__all__ = ["logs_section"]


def logs_section(diagnosis: Diagnosis) -> Section | None:
    """
    What do the logs say went wrong?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        Errors, words of watchdogs, and deaths, each with its place.
    """
    seen = seen_by(diagnosis)
    logs, given = seen.logs, seen.paths
    values: dict[str, Any] = {}
    for name, (shown, more) in {
        "deaths": deaths_of(logs.deaths, given),
        "failures": failures_of(logs.drivers, given),
        "excerpts": excerpts_of(logs.scan, given),
        "statements": statements_of(logs.collectives, given),
    }.items():
        values |= {name: shown, f"more_{name}": more}
    if not any(values.values()):
        return None

    values["read"] = _read(logs)
    values["harmless"] = sum(logs.scan.harmless.values())
    return Section(
        name="logs", title="Logs", summary=_summary(values), values=values
    )


def _read(logs: LogEvidence) -> str:
    files = logs.scan.files
    if not files:
        return ""

    noun = "file" if files == 1 else "files"
    return f"{files:,} {noun}, {size_text(logs.scan.bytes_read)}"


def _summary(values: dict[str, Any]) -> str:
    counts = {
        "death": len(values["deaths"]) + values["more_deaths"],
        "failed call": len(values["failures"]) + values["more_failures"],
        "kind of error": len(values["excerpts"]) + values["more_excerpts"],
        "statement of watchdogs": len(values["statements"])
        + values["more_statements"],
    }
    told = [
        f"{n:,} {noun if n == 1 else _plural(noun)}"
        for noun, n in counts.items()
        if n
    ]
    return ", ".join(told)


def _plural(noun: str) -> str:
    first, of, rest = noun.partition(" of ")
    return f"{first}s{of}{rest}"
