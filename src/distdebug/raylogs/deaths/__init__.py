"""
Which worker of a Ray cluster died first, how, and which only follow?
"""

from __future__ import annotations

from .find import find_deaths
from .model import Death, DeathKind, Deaths, death_of
from .report import death_findings


__all__ = [
    "Death",
    "DeathKind",
    "Deaths",
    "death_findings",
    "death_of",
    "find_deaths",
]
