"""
Group log events by rule and traceback, and make findings of them.

Events of all files are counted per rule, attributed to ranks by file name,
launcher prefix, or text, and turned into findings, the most severe and earliest
first; those that the job survived come last.
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Mapping

from .._text import clean
from ..findings import Evidence, Finding
from ..identity import ranks_in_text
from ..ranks import ranks_text
from .events import Event, EventGroup, GroupKey
from .lines import Origin, rank_from_path
from .model import Hit, LogGroup
from .process_ranks import NO_PROCESSES, ProcessRanks
from .rank_attribution import are_of_one_node, propagate_ranks
from .recovery import find_survived
from .rules import EXCEPTION, LEAST_PRIORITY, LogRule
from .tracebacks import PyError, find_root_error


_RANK_WITHIN = 200
# The task number of a Slurm step is the global rank, or that of a node.
_SRUN_TASKS = re.compile(
    r"\bsrun: error: [\w.-]{1,200}: tasks? (?P<tasks>[\d,-]{1,200}): "
)
_TASK_RANGE = re.compile(r"(\d{1,20})(?:-(\d{1,20})?)?")
_MOST_TASKS = 20_000


def rank_from_line(
    text: str,
    origin: Origin | None,
    groups: Mapping[str, str],
    path_rank: Mapping[str, int],
) -> Mapping[str, int]:
    """
    Return the rank that a log line is about.

    Args:
        text: The line, without prefixes of launchers.

        groups: The named groups that the pattern of a rule matched.

        path_rank: The rank of the whole file, as ``{"rank": N}``.

    Returns:
        ``{"rank": N}``, ``{"local_rank": N}``, or an empty mapping.
    """
    for name in ("rank", "local_rank"):
        number = groups.get(name, getattr(origin, name, None))
        if number is not None:
            return {name: int(number)}

    if "rank" in path_rank:  # the text may name another rank
        return path_rank
    named = ranks_in_text(text[:_RANK_WITHIN])
    number = next((x.number for x in named if x.is_global), None)
    return path_rank if number is None else {"rank": number}


def parse_task_numbers(text: str) -> set[int]:
    """
    Parse task numbers of Slurm, such as ``"0-3,6"``.

    Returns:
        The numbers, at most 20,000: those of ranks, or of nodes.
    """
    ranks: set[int] = set()
    for found in filter(None, map(_TASK_RANGE.fullmatch, text.split(","))):
        low, high = int(found[1]), int(found[2] or found[1])
        most = low + _MOST_TASKS - len(ranks)
        ranks.update(range(low, min(high + 1, most)))
    return ranks


# Of one file.
_MOST_GROUPS = 2_000
# Only the first groups list the tasks that Slurm names; they may be many.
_MOST_GROUPS_WITH_TASKS = 200
_LONGEST_TEXT = 500
_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
_QUOTED = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")


class EventGroups:
    """
    The events of all files, grouped and counted.
    """

    def __init__(self) -> None:
        self._groups: dict[GroupKey, EventGroup] = {}

    def begin(self, path: str, file_rank: int | None = None) -> None:
        """
        Begin with the events of a file.

        Args:
            file_rank: The rank of the file, where its path does not show it.
        """
        place = rank_from_path(path)
        self._path, self._node, self._in_file = path, path, 0
        self._path_rank: dict[str, int] = {}
        if place is not None:
            self._path_rank = {place.kind: place.number}
            if place.kind == "local_rank":
                self._node = place.launch
        elif file_rank is not None:
            self._path_rank = {"rank": file_rank}

    def add(self, event: Event) -> None:
        """
        Count an event.
        """
        key_text = clean(event.groups.get("key", ""), limit=100)
        shape = traceback_shape(event.errors)
        srun = _SRUN_TASKS.search(event.line.text)
        tasks = srun["tasks"] if srun else ""
        # Tasks that failed first are kept apart from those that ended later.
        # All ranks report a consequence, each with another traceback.
        is_shared = event.rule.cause.is_consequence
        key = event.rule.name, key_text or (not is_shared and shape) or tasks
        group = self._groups.get(key)
        is_new_in_file = group is None or self._path not in group.files
        self._in_file += is_new_in_file
        if is_new_in_file and self._in_file > _MOST_GROUPS:
            return
        hit = _make_hit(event, self._path, self._path_rank)
        if group is None:
            group = self._groups[key] = EventGroup(
                rule=event.rule,
                key=key_text,
                shape=shape,
                first=hit,
                last=hit,
                errors=event.errors,
            )
        if is_new_in_file and self._in_file <= _MOST_GROUPS_WITH_TASKS:
            numbers = parse_task_numbers(tasks)
            group.tasks.setdefault(self._path, set()).update(numbers)
        group.add(event, hit, self._node)

    def count_harmless(self) -> dict[str, int]:
        """
        Count the lines that only look bad, by the name of the rule.
        """
        counts: Counter[str] = Counter()
        for group in self._groups.values():
            if group.rule.is_harmless:
                counts[group.rule.name] += group.count
        return dict(counts)

    def build(
        self, processes: ProcessRanks = NO_PROCESSES
    ) -> list[tuple[EventGroup, LogGroup]]:
        """
        Build the groups to report, the most severe and earliest first.

        Args:
            processes: The known ranks of processes, nodes, and GPUs.
        """
        harmful = [t for t in self._groups.values() if not t.rule.is_harmless]
        for event_group in harmful:
            for path, tasks in event_group.tasks.items():
                if not processes.is_of_launchers(path):
                    event_group.ranks_in.setdefault(path, set()).update(tasks)
        times = _begin_times(harmful)
        paths = dict.fromkeys(path for t in harmful for path in t.files)
        files = {path: n for n, path in enumerate(paths)}

        def order(
            event_group: EventGroup,
        ) -> tuple[int, bool, float, int, int]:
            hit, time = event_group.first, times[event_group]
            place = files[hit.source], hit.offset
            return event_group.rule.priority, time is None, time or 0.0, *place

        harmful.sort(key=order)
        survived = find_survived(harmful)
        harmful.sort(key=survived.__contains__)
        propagated = propagate_ranks(
            [t for t in harmful if t not in survived], processes
        )
        is_one_node = are_of_one_node(harmful)
        groups = []
        for event_group in harmful:
            ranks = event_group.ranks | propagated.get(event_group, set())
            if is_one_node and not ranks:
                ranks |= {rank for _, rank in event_group.local_ranks}
            group = _make_group(
                event_group, ranks, is_survived=event_group in survived
            )
            groups.append((event_group, group))
        return groups


def traceback_shape(errors: Iterable[PyError]) -> str:
    """
    Return what tracebacks of the same failure have in common.

    Args:
        errors: The exceptions of one traceback.

    Returns:
        Types, functions, and messages, without numbers and quoted text.
    """
    return "\n".join(
        "|".join(
            [
                error.type,
                _NUMBERS.sub("#", _QUOTED.sub("''", error.message))[
                    :_LONGEST_TEXT
                ],
                *(
                    f"{x.file.rpartition('/')[2]}:{x.function}"
                    for x in error.frames
                ),
            ]
        )
        for error in errors
    )


def _make_hit(event: Event, path: str, path_rank: Mapping[str, int]) -> Hit:
    line, trace = event.line, event.trace
    root = find_root_error(event.errors)
    text = str(root) if root else line.text
    attribution = rank_from_line(text, line.origin, event.groups, path_rank)
    if trace and not attribution:
        attribution = rank_from_line(line.text, None, {}, {})
    if trace and trace.rank is not None and not attribution:
        attribution = {"rank": trace.rank}
    return Hit(
        text=clean(text, limit=_LONGEST_TEXT),
        source=path,
        line=event.number,
        offset=event.offset,
        time=event.time,
        origin=line.origin,
        **attribution,
    )


_MOST_LISTED = 100


def _begin_times(
    event_groups: Iterable[EventGroup],
) -> dict[EventGroup, float | None]:
    """
    Return when each group began; without a time, when the next one did.
    """
    by_file: dict[str, list[EventGroup]] = {}
    for event_group in event_groups:
        by_file.setdefault(event_group.first.source, []).append(event_group)
    times: dict[EventGroup, float | None] = {}
    for in_file in by_file.values():
        in_file.sort(key=lambda event_group: event_group.first.offset)
        known = [t.first.time for t in in_file if t.first.time]
        time = max(known, default=None)
        for event_group in reversed(in_file):
            time = event_group.first.time or time
            times[event_group] = time
    return times


def _make_group(
    event_group: EventGroup, ranks: set[int], *, is_survived: bool
) -> LogGroup:
    rule = event_group.rule
    return LogGroup(
        rule=rule.name,
        key=event_group.key,
        cause=rule.cause,
        priority=LEAST_PRIORITY if is_survived else rule.priority,
        count=event_group.count,
        is_more=event_group.is_more,
        first=event_group.first,
        last=event_group.last,
        files=tuple(event_group.files)[:_MOST_LISTED],
        ranks=tuple(sorted(ranks)),
        origins=tuple(event_group.origins)[:_MOST_LISTED],
        is_survived=is_survived,
    )


_LONGEST_SUMMARY = 160


def make_finding(event_group: EventGroup, group: LogGroup) -> Finding:
    """
    Convert a group of log lines or tracebacks to a finding.
    """
    rule = event_group.rule
    root = find_root_error(event_group.errors)
    return Finding(
        cause=rule.cause,
        ranks=group.ranks,
        summary=_summary(rule, root, group),
        confidence="possible" if group.is_survived else rule.confidence,
        remedy=rule.remedy or None,
        location=root.place if root else None,
        # Both are the same if there is one line.
        evidence=tuple(
            map(_evidence, dict.fromkeys((group.first, group.last)))
        ),
    )


def _summary(rule: LogRule, root: PyError | None, group: LogGroup) -> str:
    says = rule.says
    subject = _ranks_or_origin(group)
    is_exception = rule.name == EXCEPTION.name
    if root:
        exception = clean(str(root), limit=_LONGEST_SUMMARY)
        says = (
            f"raised {exception}" if is_exception else f"{says}: {exception}"
        )
        if place := root.place:
            says += f" at {clean(place.brief)}"
    elif group.key:
        says = f"{says} ({group.key})"
    if is_exception and root:
        says = f"{subject or 'a process'} {says}"
    elif subject:
        says = f"{subject}: {says}"
    more = "at least " if group.is_more else ""
    unit = "times" if root else "lines"
    times = f" ({more}{group.count:,} {unit})" if group.count > 1 else ""
    recovery_text = "; the job went on afterwards" if group.is_survived else ""
    return says + times + recovery_text


def _ranks_or_origin(group: LogGroup) -> str:
    if group.ranks:
        return ranks_text(group.ranks)

    names = {
        f"{clean(x.name, limit=60)}{f' (pid {x.pid})' if x.pid else ''}"
        for x in group.origins
        if x.name
    }
    return names.pop() if len(names) == 1 else ""


def _evidence(hit: Hit) -> Evidence:
    return Evidence(
        kind="log",
        source=hit.source,
        location=hit.location,
        quote=clean(hit.text, limit=2 * _LONGEST_SUMMARY),
    )
