"""
Which steps are to be profiled?
"""

from __future__ import annotations

import re

from collections.abc import Mapping

import attrs

from ...errors import NsightError
from .variables import variable


__all__ = ["StepRange", "parse_step_range", "step_range_of_environment"]

_RANGE = re.compile(r"([0-9]{1,12}) {0,9}: {0,9}([0-9]{1,12})")


@attrs.frozen(kw_only=True)
class StepRange:
    """
    Some steps in a row, counted from 1.

    Attributes:
        start: The first one that is profiled.

        stop: The first one that no longer is.
    """

    start: int = attrs.field()
    stop: int = attrs.field()

    @start.validator
    def _from_one(self, _: object, start: int) -> None:
        if start < 1:
            msg = f"step range {self}: steps are counted from 1"
            raise NsightError(msg, remedy="write 1:4 for the first three")

    @stop.validator
    def _not_empty(self, _: object, stop: int) -> None:
        if stop <= self.start:
            msg = f"step range {self} holds no step: its end is left out"
            remedy = f"write {self.start}:{self.start + 1} for one step"
            raise NsightError(msg, remedy=remedy)

    @property
    def in_file_name(self) -> str:
        """
        The range as it stands in names of files, which have no colon.
        """
        return f"{self.start}-{self.stop}"

    def __contains__(self, step: int) -> bool:
        return self.start <= step < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


def parse_step_range(text: str) -> StepRange:
    """
    Which steps are meant?

    Args:
        text: ``"a:b"``: the steps from *a*, counted from 1, up to *b*, which
            is left out.

    Returns:
        The steps.

    Raises:
        NsightError: It is no such range, or holds no step.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        msg = f"{text!r:.60} is no range of steps"
        remedy = "write a:b, such as 3:6 for the steps 3, 4, and 5"
        raise NsightError(msg, remedy=remedy)

    return StepRange(start=int(match[1]), stop=int(match[2]))


def step_range_of_environment(
    environ: Mapping[str, str] | None = None,
) -> StepRange | None:
    """
    Which steps does the environment name?

    Args:
        environ: The environment; by default that of this process.

    Returns:
        What ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE`` says, or else
        ``NRL_NSYS_PROFILE_STEP_RANGE``; ``None`` if neither is set.

    Raises:
        NsightError: It is no range of steps.
    """
    name, text = variable("PROFILE_STEP_RANGE", environ)
    if not name:
        return None

    try:
        return parse_step_range(text)
    except NsightError as exc:
        msg = f"{name}: {exc}"
        raise NsightError(msg, remedy=exc.remedy) from None
