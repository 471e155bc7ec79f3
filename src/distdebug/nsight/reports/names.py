"""
What does the name of a report tell?
"""

from __future__ import annotations

import re

from typing import NamedTuple

from ...errors import NsightError
from ..options.steps import StepRange, parse_step_range


__all__ = ["SUFFIXES", "ReportName", "parse_report_name"]

# The second is what nsys leaves where it finds no importer.
SUFFIXES = (".nsys-rep", ".qdstrm")

# "dtensor_policy_worker_3-6_4711.2": NeMo RL writes 3:6, and nsys numbers
# the captures of one process.
_NAME = re.compile(
    r"(?P<worker>.{1,200}?)"
    r"(?:_(?P<start>[0-9]{1,12})[:-](?P<stop>[0-9]{1,12}))?"
    r"_(?P<pid>[0-9]{1,7})"
    r"(?:\.(?P<part>[0-9]{1,9}))?",
    re.DOTALL,
)


class ReportName(NamedTuple):
    """
    What a name tells.

    Attributes:
        worker: The worker, or ``""`` if the name has another form.

        pid: The number of its process, on its node.

        step_range: The steps that were captured.

        part: Which capture of the process it is, if there are several.
    """

    worker: str
    pid: int | None = None
    step_range: StepRange | None = None
    part: int | None = None


def parse_report_name(name: str) -> ReportName | None:
    """
    What does the name of a report tell?

    Args:
        name: The name of a file, such as
            ``"dtensor_policy_worker_3-6_4711.nsys-rep"``.

    Returns:
        What it tells; ``None`` if it is not the name of a report, or that of
        one that Ray makes to try options out.
    """
    stem = next((name[: -len(x)] for x in SUFFIXES if name.endswith(x)), "")
    if stem in {"", "empty"} or stem.startswith("."):
        return None

    match = _NAME.fullmatch(stem)
    if match is None:
        return ReportName("")

    worker, steps = match["worker"], None
    if match["start"]:
        try:
            steps = parse_step_range(f"{match['start']}:{match['stop']}")
        except NsightError:  # it is part of the name
            worker = stem[: match.start("pid") - 1]
    part = int(match["part"]) if match["part"] else None
    return ReportName(worker, int(match["pid"]), steps, part)
