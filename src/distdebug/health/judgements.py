"""
Make findings of the judgements in ``judgements.toml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from .._rules import read_toml
from ..causes import Cause
from ..findings import Confidence, Evidence, Finding


@attrs.frozen(kw_only=True)
class Judgement:
    """
    An entry of ``judgements.toml``: what a check can find.

    Attributes:
        cause: The cause.

        confidence: The confidence, unless the check is surer.

        says: One clause about it, with values in braces.

        remedy: What to do about it, with values in braces.

        variable: The variable that is judged by its value alone, or ``""``.

        values: These values of *variable*, in lower case; any if empty.
    """

    cause: Cause = attrs.field(converter=Cause, default=Cause.HEALTHY)
    confidence: Confidence = "possible"
    says: str
    remedy: str
    variable: str = ""
    values: tuple[str, ...] = attrs.field(converter=tuple, default=())


@cache
def load_judgements() -> dict[str, Judgement]:
    """
    Return the entries of ``judgements.toml`` by name.
    """
    entries = read_toml(Path(__file__).with_name("judgements.toml"))
    return {name: Judgement(**entry) for name, entry in entries.items()}


def judge(
    name: str,
    /,
    *evidence: Evidence,
    ranks: Iterable[int | None] = (),
    confidence: Confidence | None = None,
    **values: Any,
) -> Finding:
    """
    Return a finding of an entry of ``judgements.toml``.

    Args:
        name: The entry.

        evidence: What the finding is based on.

        ranks: The ranks concerned; ``None`` and repeated ones are left out.

        confidence: The confidence, if it is not that of the entry.

        values: What the braces of the text stand for.
    """
    judgement = load_judgements()[name]
    return Finding(
        cause=judgement.cause,
        ranks=tuple(sorted({rank for rank in ranks if rank is not None})),
        summary=judgement.says.format(**values),
        confidence=confidence or judgement.confidence,
        remedy=judgement.remedy.format(**values),
        evidence=evidence,
    )


def ranks_of(pids: Iterable[int], ranks: Mapping[int, int]) -> set[int]:
    """
    Return the ranks of some processes; others are left out.
    """
    return {ranks[pid] for pid in pids if pid in ranks}
