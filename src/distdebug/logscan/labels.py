"""
Which task printed this line, as a label before each line tells?

``srun --label`` writes ``3: text``, Open MPI ``[1,3]<stdout>:text``, and MPICH
``[3] text``.  Other lines begin with numbers too, so the short labels are
believed only where most lines of a file have one, and few different ones.
"""

from __future__ import annotations

import re

from functools import lru_cache

import attrs

from .._lines import LogLine, Origin, parse_line


__all__ = ["find_label", "parse_labelled"]

_RANK = r"(?P<rank>\d{1,7})"
_TAGGED = re.compile(rf"\[\d{{1,9}},{_RANK}\]<std(?:out|err|diag)>: ?")
_SHORT = (re.compile(rf" {{0,6}}{_RANK}: "), re.compile(rf"\[{_RANK}\] "))
_SAMPLE = 1 << 16
_LEAST_TAGGED, _LEAST_SHORT = 3, 8
_SHARE = 0.5
# So often each label occurs, on average.
_OFTEN = 2
# They tell what happens to the job, not to the task they run for.
_LAUNCHERS = ("slurmstepd: ", "srun: ", "mpirun", "mpiexec")


def find_label(data: bytes | memoryview) -> re.Pattern[str] | None:
    """
    What stands before the lines of a file, if most have a label?

    Args:
        data: Some of the file; its middle is looked at.

    Returns:
        A pattern for the label whose group ``rank`` is the number of the
        task, which is the global rank; or ``None``.
    """
    begin = max((len(data) - _SAMPLE) // 2, 0)
    text = str(data[begin : begin + _SAMPLE], "utf-8", "replace")
    lines = [line for line in text.split("\n") if line.strip()]
    if len(_numbers(_TAGGED, lines)) >= _LEAST_TAGGED:
        return _TAGGED

    least = max(_LEAST_SHORT, _SHARE * len(lines))
    for pattern in _SHORT:
        numbers = _numbers(pattern, lines)
        is_few = _OFTEN * len(set(numbers)) <= len(numbers)
        if len(numbers) >= least and is_few:
            return pattern
    return None


def parse_labelled(raw: str, label: re.Pattern[str] | None) -> LogLine:
    """
    Take a line apart that may have a label.

    Args:
        raw: The line.

        label: What the label looks like, if there are any.

    Returns:
        The line without it; the rank is told by its origin.
    """
    found = label.match(raw) if label else None
    if found is None:
        return parse_line(raw)

    line = parse_line(raw[found.end() :])
    is_own = line.text.startswith(_LAUNCHERS)
    if is_own or (line.origin and line.origin.rank is not None):
        return line
    return line._replace(origin=_ranked(line.origin, int(found["rank"])))


def _numbers(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    found = map(pattern.match, lines)
    return [label["rank"] for label in found if label]


@lru_cache(maxsize=4096)
def _ranked(origin: Origin | None, rank: int) -> Origin:
    return attrs.evolve(origin or Origin(), rank=rank)
