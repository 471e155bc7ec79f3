"""
Answer with text and data of bounded size, the sentence of the verdict first.
"""

from __future__ import annotations

import json

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict

from .._text import clean
from ..findings import Finding


# Of the text, and of the data; both are a few thousand tokens.
_MOST_CHARS = 16_000
_NARROW = "ask for fewer files, ranks, or rows to see what was cut"


class Answer(TypedDict):
    """
    What each tool returns.

    Attributes:
        verdict: One sentence.

        is_fine: Whether nothing is wrong; ``None`` if that was not asked.

        report: Text to read, the verdict first.

        data: The same as data, in the layout of the command line's ``--json``;
            what is empty is left out.

        cut: What was left out because it is too large, and how to see it.
    """

    verdict: str
    is_fine: bool | None
    report: str
    data: dict[str, Any]
    cut: list[str]


def judged(
    findings: Sequence[Finding], report: object, data: Mapping[str, Any]
) -> Answer:
    """
    Return an answer whose verdict is the first finding that is not fine.
    """
    wrong = [x for x in findings if not x.cause.is_fine]
    first = next(iter(wrong or findings), None)
    fine = "nothing wrong was found, as far as can be seen"
    verdict = first.summary if first else fine
    return answer(verdict, str(report), data, is_fine=not wrong)


def answer(
    verdict: str,
    report: str,
    data: Mapping[str, Any],
    *,
    is_fine: bool | None = None,
) -> Answer:
    """
    Return an answer of bounded size that says what was cut.
    """
    small, cut = _fit(data)
    verdict = clean(verdict, limit=2000)
    # Results begin with their verdict, which may be wrapped.
    if not " ".join(report[:2000].split()).startswith(verdict[:40]):
        report = f"{verdict}\n\n{report}"
    if len(report) > _MOST_CHARS:
        cut.append(f"report: {_MOST_CHARS:,} of {len(report):,} characters")
        report = report[:_MOST_CHARS]
    if cut:
        cut.append(_NARROW)
    return Answer(
        verdict=verdict, is_fine=is_fine, report=report, data=small, cut=cut
    )


def _fit(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """
    Return as much of some data as fits, and what was cut.
    """
    for most in (1000, 300, 100, 30, 10, 3, 1):
        cut: dict[str, str] = {}
        text = json.dumps(_shorten(data, most, "", cut), default=str)
        if len(text) <= _MOST_CHARS:
            return json.loads(text), [*islice(cut.values(), 20)]
    return {}, ["data: too large"]


def _shorten(value: Any, most: int, name: str, cut: dict[str, str]) -> Any:
    """
    Cut lists and texts, leave out what is empty, and note what was cut.
    """
    if isinstance(value, Mapping):
        items = islice(value.items(), 20 + most)
        parts = {
            str(k): _shorten(x, most, f"{name}.{k}".lstrip("."), cut)
            for k, x in items
        }
        return {k: x for k, x in parts.items() if x not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        if len(value) > most:
            cut.setdefault(name, f"{name}: {most:,} of {len(value):,}")
        return [_shorten(x, most, name, cut) for x in value[:most]]
    return clean(value, limit=200 + most) if isinstance(value, str) else value
