"""
Which rank does a line or a file of a log belong to?
"""

from __future__ import annotations

import re

from collections.abc import Mapping

from .._lines import Origin


__all__ = ["rank_of_file", "rank_of_line", "tasks_in", "tasks_of_line"]

_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:global[._-]?)?rank[._=-]{0,2}(?P<rank>\d{1,7})(?!\d)",
    re.IGNORECASE,
)
# torchrun --log-dir: <run>_<random>/attempt_0/3/stderr.log
_TORCHRUN = re.compile(
    r"(?:^|/)attempt_\d{1,4}/(?P<local_rank>\d{1,5})/(?:std(?:out|err)\.log|error\.json)"
)
_IN_TEXT = re.compile(
    r"\[PG [^\]]{0,100}Rank \d{1,7}\]"  # within its group, which tells nothing
    r"|\[(?:global[ _])?rank[ =:_]{0,2}(?P<rank>\d{1,7})\]"
    r"|(?<![A-Za-z_])(?<!local )(?:global[ _])?rank[ =:]{1,2}(?P<text>\d{1,7})\b",
    re.IGNORECASE,
)
_WITHIN = 200
# The number of a task of a step is the global rank, for launchers of torch too.
_TASKS = re.compile(
    r"\bsrun: error: [\w.-]{1,200}: tasks? (?P<tasks>[\d,-]{1,200}): "
)
_MOST_TASKS = 20_000


def rank_of_file(path: str) -> Mapping[str, int]:
    """
    What the name of a file tells of who wrote it.

    Args:
        path: The file.

    Returns:
        ``rank`` or ``local_rank``, if one of them is told.
    """
    found = _TORCHRUN.search(path)
    if found:
        return {"local_rank": int(found["local_rank"])}

    name = path.rpartition("/")
    for part in (name[2], name[0].rpartition("/")[2]):
        told = {int(x["rank"]) for x in _IN_NAME.finditer(part)}
        if len(told) == 1:
            return {"rank": told.pop()}
    return {}


def rank_of_line(
    text: str,
    origin: Origin | None,
    groups: Mapping[str, str],
    named: Mapping[str, int],
) -> Mapping[str, int]:
    """
    What a line tells of whom it is about.

    Args:
        text: The line, without prefixes of launchers.

        origin: Who printed it.

        groups: What the pattern of a rule found.

        named: What the name of the file tells.

    Returns:
        ``rank`` or ``local_rank``, if one of them is told.
    """
    for name in ("rank", "local_rank"):
        if name in groups:
            return {name: int(groups[name])}
    if origin is not None:
        for name in ("rank", "local_rank"):
            told = getattr(origin, name)
            if told is not None:
                return {name: told}
        named = _told(_IN_TEXT.search(origin.name))
        if named:
            return named

    if "rank" in named:  # a text may speak of another one
        return named
    return _told(_IN_TEXT.search(text[:_WITHIN])) or named


def tasks_of_line(text: str) -> str:
    """
    Which tasks does Slurm speak of?

    Args:
        text: The line, such as ``srun: error: gpu-17: tasks 0-3,6: Killed``.

    Returns:
        Their numbers as they stand there, or ``""``.
    """
    found = _TASKS.search(text)
    return found["tasks"] if found else ""


def tasks_in(text: str) -> tuple[int, ...]:
    """
    What are the numbers of tasks?

    Args:
        text: Numbers and ranges, such as ``"0-3,6"``.

    Returns:
        Each number, ascending, of a range at most 20,000: they are global
        ranks.
    """
    ranks: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            low, high = int(first), int(last or first)
            most = low + _MOST_TASKS - len(ranks)
            ranks.update(range(low, min(high + 1, most)))
    return tuple(sorted(ranks))


def _told(found: re.Match[str] | None) -> Mapping[str, int]:
    told = found and (found["rank"] or found["text"])
    return {"rank": int(told)} if told else {}
