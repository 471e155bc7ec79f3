"""
Which parts does the page have, in which order?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...findings import Diagnosis
from ..format import Section
from .findings import files_section, findings_section, missing_section
from .graph import graph_section
from .logs import logs_section
from .matrix import matrix_section
from .nodes import nodes_section
from .progress import phase_section, progress_section
from .stacks import stacks_section


__all__ = ["SECTIONS"]

# Each looks at a diagnosis, and tells what it has to show, if anything.
SECTIONS: Sequence[Callable[[Diagnosis], Section | None]] = (
    graph_section,
    findings_section,
    progress_section,
    matrix_section,
    stacks_section,
    phase_section,
    logs_section,
    nodes_section,
    missing_section,
    files_section,
)
