"""
Group log events by rule and traceback, attribute ranks, make findings.

Events of all files are counted per rule, attributed to ranks by file name,
launcher prefix, or text, checked for whether the job recovered, and turned
into findings, the most severe and earliest first.
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from .._text import clean
from ..findings import Cause, Evidence, Finding, Location
from ..ranks import ranks_text
from .file_search import Event, is_packed
from .lines import Origin, open_log
from .model import Hit, LogGroup, TraceGroup
from .rules import EXCEPTION, LEAST_PRIORITY, LogRule
from .tracebacks import PyError


_RANK_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:global[._-]?)?rank[._=-]{0,2}(?P<rank>\d{1,7})(?!\d)",
    re.IGNORECASE,
)
# torchrun --log-dir: <run>_<random>/attempt_0/3/stderr.log
_TORCHRUN_PATH = re.compile(
    r"(?:^|/)attempt_\d{1,4}/(?P<local_rank>\d{1,5})/(?:std(?:out|err)\.log|error\.json)"
)
_RANK_IN_TEXT = re.compile(
    r"\[PG [^\]]{0,100}Rank \d{1,7}\]"  # the rank within a process group
    r"|\[(?:global[ _])?rank[ =:_]{0,2}(?P<rank>\d{1,7})\]"
    r"|(?<![A-Za-z_])(?<!local )(?:global[ _])?rank[ =:]{1,2}(?P<text>\d{1,7})\b",
    re.IGNORECASE,
)
_RANK_WITHIN = 200
# The task number of a Slurm step is the global rank.
_SRUN_TASKS = re.compile(
    r"\bsrun: error: [\w.-]{1,200}: tasks? (?P<tasks>[\d,-]{1,200}): "
)
_MOST_TASKS = 20_000


def rank_from_path(path: str) -> Mapping[str, int]:
    """
    Return the rank that a file name or torchrun's ``--log-dir`` layout shows.

    Returns:
        ``{"rank": N}``, ``{"local_rank": N}``, or an empty mapping.
    """
    found = _TORCHRUN_PATH.search(path)
    if found:
        return {"local_rank": int(found["local_rank"])}

    name = path.rpartition("/")
    for part in (name[2], name[0].rpartition("/")[2]):
        ranks = {int(x["rank"]) for x in _RANK_IN_NAME.finditer(part)}
        if len(ranks) == 1:
            return {"rank": ranks.pop()}
    return {}


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

        path_rank: The result of :func:`rank_from_path` for the file.

    Returns:
        ``{"rank": N}``, ``{"local_rank": N}``, or an empty mapping.
    """
    for name in ("rank", "local_rank"):
        if name in groups:
            return {name: int(groups[name])}
    if origin is not None:
        for name in ("rank", "local_rank"):
            number = getattr(origin, name)
            if number is not None:
                return {name: number}
        path_rank = _rank_from_match(_RANK_IN_TEXT.search(origin.name))
        if path_rank:
            return path_rank

    if "rank" in path_rank:  # the text may name another rank
        return path_rank
    return (
        _rank_from_match(_RANK_IN_TEXT.search(text[:_RANK_WITHIN]))
        or path_rank
    )


def slurm_tasks(text: str) -> str:
    """
    Return the task numbers that a line of ``srun`` names.

    Args:
        text: The line, such as ``srun: error: gpu-17: tasks 0-3,6: Killed``.

    Returns:
        The numbers as written, such as ``"0-3,6"``, or ``""``.
    """
    found = _SRUN_TASKS.search(text)
    return found["tasks"] if found else ""


def parse_task_numbers(text: str) -> tuple[int, ...]:
    """
    Parse task numbers of Slurm, such as ``"0-3,6"``.

    Returns:
        Each number, ascending, at most 20,000: they are global ranks.
    """
    ranks: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            low, high = int(first), int(last or first)
            most = low + _MOST_TASKS - len(ranks)
            ranks.update(range(low, min(high + 1, most)))
    return tuple(sorted(ranks))


def _rank_from_match(found: re.Match[str] | None) -> Mapping[str, int]:
    number = found and (found["rank"] or found["text"])
    return {"rank": int(number)} if number else {}


_MOST_ORIGINS = 100
_MOST_GROUPS = 2_000
# Only the first groups list the tasks that Slurm names; they may be many.
_MOST_GROUPS_WITH_TASKS = 200
_LONGEST_TEXT = 500
# Causes that all ranks report, each with another traceback.
_CAUSES_OF_ALL_RANKS = frozenset(
    {Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE}
)
_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
_QUOTED = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")

GroupKey = tuple[str, str]


@attrs.define(kw_only=True)
class EventGroup:
    """
    Events of one kind, while they are counted.

    Attributes:
        key: The group ``key`` of the rule's pattern, or ``""``.

        shape: The shape of the traceback (:func:`traceback_shape`), or ``""``.

        errors: The exceptions of the first traceback.

        count: The number of lines that match.

        is_more: Whether there are more lines than were counted.

        files: The files, each with the byte offset of its last event.

        ranks: Global ranks.

        local_ranks: Pairs of a node, as the path shows it, and a local rank.

        origins: The processes that printed them, as prefixes show.
    """

    rule: LogRule
    key: str
    shape: str
    first: Hit
    last: Hit
    errors: tuple[PyError, ...] = ()
    count: int = 0
    is_more: bool = False
    files: dict[str, int] = attrs.field(factory=dict)
    ranks: set[int] = attrs.field(factory=set)
    local_ranks: set[tuple[str, int]] = attrs.field(factory=set)
    origins: dict[Origin, None] = attrs.field(factory=dict)


def group_events(
    events: Iterable[Event], path: str
) -> dict[GroupKey, EventGroup]:
    """
    Group and count the events of one part of a file.
    """
    event_groups: dict[GroupKey, EventGroup] = {}
    path_rank = rank_from_path(path)
    node = (
        path.partition("/attempt_")[0] if "local_rank" in path_rank else path
    )
    for event in events:
        shape = traceback_shape(event.trace.errors) if event.trace else ""
        key_text = clean(event.groups.get("key", ""), limit=100)
        hit = _make_hit(event, path, path_rank)
        tasks = slurm_tasks(event.line.text)
        # Tasks that failed first are kept apart from those that ended later.
        is_shared = event.rule.cause in _CAUSES_OF_ALL_RANKS
        key = event.rule.name, key_text or (not is_shared and shape) or tasks
        event_group = event_groups.get(key)
        if event_group is None:
            if len(event_groups) >= _MOST_GROUPS:
                continue
            event_group = event_groups[key] = EventGroup(
                rule=event.rule, key=key_text, shape=shape, first=hit, last=hit
            )
            event_group.errors = event.trace.errors if event.trace else ()
            if len(event_groups) <= _MOST_GROUPS_WITH_TASKS:
                event_group.ranks.update(parse_task_numbers(tasks))
        event_group.last = hit
        event_group.files[path] = hit.offset
        event_group.count += event.line.count
        event_group.is_more |= event.is_last
        if hit.rank is not None:
            event_group.ranks.add(hit.rank)
        elif hit.local_rank is not None:
            event_group.local_ranks.add((node, hit.local_rank))
        if hit.origin and len(event_group.origins) < _MOST_ORIGINS:
            event_group.origins[hit.origin] = None
    return event_groups


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


def merge_event_groups(
    parts: Iterable[tuple[int | None, Mapping[GroupKey, EventGroup]]],
) -> dict[GroupKey, EventGroup]:
    """
    Merge the event groups of all parts of files.

    Args:
        parts: The groups of each part, in the order of the files, each with
            the number of lines of its file before the part; ``None`` if
            unknown.
    """
    joined: dict[GroupKey, EventGroup] = {}
    for lines, event_groups in parts:
        for key, event_group in event_groups.items():
            event_group.first = _shift_line(event_group.first, lines)
            event_group.last = _shift_line(event_group.last, lines)
            known = joined.setdefault(key, event_group)
            if known is not event_group:
                _merge_into(known, event_group)
    return joined


def count_harmless(
    event_groups: Mapping[GroupKey, EventGroup],
) -> dict[str, int]:
    """
    Count the lines that only look bad, by the name of the rule.
    """
    counts: Counter[str] = Counter()
    for event_group in event_groups.values():
        if event_group.rule.is_harmless:
            counts[event_group.rule.name] += event_group.count
    return dict(counts)


def _make_hit(event: Event, path: str, path_rank: Mapping[str, int]) -> Hit:
    line, text = event.line, event.line.text
    if event.trace and event.trace.root:
        text = str(event.trace.root)
    attribution = rank_from_line(text, line.origin, event.groups, path_rank)
    if event.trace and not attribution:
        attribution = rank_from_line(line.text, None, {}, {})
    if not attribution and event.trace and event.trace.rank is not None:
        attribution = {"rank": event.trace.rank}
    return Hit(
        text=clean(text, limit=_LONGEST_TEXT),
        source=path,
        line=event.number,
        offset=event.offset,
        time=event.time,
        origin=line.origin,
        rank=attribution.get("rank"),
        local_rank=attribution.get("local_rank"),
    )


def _shift_line(hit: Hit, lines: int | None) -> Hit:
    return attrs.evolve(hit, line=0 if lines is None else hit.line + lines)


def _merge_into(known: EventGroup, new: EventGroup) -> None:
    if _is_before(new.first, known.first):
        known.first, known.errors = new.first, new.errors
    if not _is_before(new.last, known.last):
        known.last = new.last
    known.count += new.count
    known.is_more |= new.is_more
    known.files |= new.files
    known.ranks |= new.ranks
    known.local_ranks |= new.local_ranks
    known.origins |= new.origins


def _is_before(one: Hit, other: Hit) -> bool:
    if one.time is None or other.time is None:
        return False
    return one.time < other.time


# Rules of launchers, which report who ended first, not why.
_LAUNCHER_RULES = frozenset(
    {
        "MPI reports a failed process",
        "killed",
        "task ended by Slurm",
        "torchrun reports a failed worker",
    }
)
_PROCESS_DEATHS = frozenset(
    {
        Cause.DISK_FULL,
        Cause.GPU_FAULT,
        Cause.GPU_OUT_OF_MEMORY,
        Cause.HOST_OUT_OF_MEMORY,
        Cause.IO_WAIT,
        Cause.KILLED,
        Cause.NATIVE_CRASH,
        Cause.NODE_MISCONFIGURED,
        Cause.RANK_CRASHED,
    }
)
_NOT_SEVERE = 3


def propagate_ranks(event_groups: Sequence[EventGroup]) -> dict[int, set[int]]:
    """
    Propagate ranks to event groups that show none.

    An assertion of a GPU kernel stands before the traceback of its rank; and
    where a single process failed, the launcher names its rank.

    Args:
        event_groups: The groups, the most severe first.

    Returns:
        Global ranks, by the ``id`` of the event group.
    """
    propagated: dict[int, set[int]] = {}
    for event_group in event_groups:
        if event_group.shape or _has_ranks(event_group):
            continue
        for other in event_groups:
            is_same = other.rule is event_group.rule
            if is_same and other.ranks and _share_file(event_group, other):
                propagated[id(event_group)] = set(other.ranks)
                break
    first = _blamed_by_launcher(event_groups)
    if first is not None and id(event_groups[0]) not in propagated:
        propagated[id(event_groups[0])] = set(first.ranks)
    return propagated


def _blamed_by_launcher(
    event_groups: Sequence[EventGroup],
) -> EventGroup | None:
    """
    Return the launcher's event if it names the only rank that can have failed.
    """
    if not event_groups:
        return None

    top = event_groups[0]
    other_severe = [
        t for t in event_groups[1:] if t.rule.priority < _NOT_SEVERE
    ]
    is_only_suspect = top.count == 1 and not any(
        map(_has_ranks, (top, *other_severe))
    )
    if not is_only_suspect or top.rule.cause not in _PROCESS_DEATHS:
        return None

    launchers = [
        t
        for t in event_groups
        if t.rule.name in _LAUNCHER_RULES and t.ranks and _share_file(t, top)
    ]
    first = min(launchers, key=lambda t: t.first.offset, default=None)
    return first if first is not None and len(first.ranks) == 1 else None


def _has_ranks(event_group: EventGroup) -> bool:
    return bool(event_group.ranks or event_group.local_ranks)


def _share_file(one: EventGroup, other: EventGroup) -> bool:
    return not one.files.keys().isdisjoint(other.files)


_PIECE_BYTES = 1 << 16
_MOST_FILES = 20
# This many different step numbers show that a job goes on.
_MANY_STEPS, _SOME_STEPS = 20, 3
# Buffered output of a process may follow its fatal error.
_STDOUT_BUFFER = 1 << 13

_FATAL = frozenset(
    {
        Cause.ACTOR_DIED,
        Cause.COLLECTIVE_TIMEOUT,
        Cause.GPU_OUT_OF_MEMORY,
        Cause.HOST_OUT_OF_MEMORY,
        Cause.KILLED,
        Cause.NATIVE_CRASH,
        Cause.NETWORK_FAILURE,
        Cause.NODE_MISCONFIGURED,
        Cause.RANK_CRASHED,
        Cause.RAY_WORKER_START_TIMEOUT,
        Cause.RENDEZVOUS_TIMEOUT,
        Cause.START_UP_STALLED,
    }
)
# The text is in small letters, which is faster than to ignore case.
_STEP_NUMBER = re.compile(
    rb"(?:step|iteration|iter|epoch|batch)[\"']?[ :=\[(]{1,12}"
    rb"(\d{1,9}(?:\.\d{1,6})?)|\b(\d{1,9})/\d{1,9} \[\d"
)
_COMPLETED = re.compile(
    rb"(?:training|fine-?tuning)(?: run| job)? (?:is |has |was )?"
    rb"(?:successfully )?(?:completed?|finished|done|succeeded)\b"
    rb"(?![^\n]{0,60}(?:fail|error))|saved final"
)
_SURELY_COMPLETED = re.compile(
    rb"'train_runtime': \d|`trainer\.fit` stopped: `max_"
    rb"|\n=+ \d{1,6} passed\b(?![^\n]{0,60}failed)"
)
_RESTARTED = (
    b"will restart worker group",
    b"requeue",
    b"restart count",
    b"restarting from",
    b"resume from",
    b"resumed from",
    b"resuming from",
    b"resuming training from",
    b"restored from",
    b"restoring from",
    b"restoring states from",
    b"loading checkpoint from",
    b"loaded checkpoint from",
)


@attrs.frozen(kw_only=True)
class Recovery:
    """
    Whether a job recovered from an error, as the log shows.

    Attributes:
        is_certain: Whether the job was started again, or completed.

        is_progressing: Whether the job made steps, which other ranks may do
            for a while after one has died.
    """

    is_certain: bool = False
    is_progressing: bool = False


def is_fatal(cause: Cause) -> bool:
    """
    Return whether *cause* ends a job, so that later steps show recovery.

    A loss that is not finite stays so, whatever the job does afterwards.
    """
    return cause in _FATAL


def read_recoveries(places: Sequence[Mapping[str, int]]) -> list[Recovery]:
    """
    Check what logs show after the last occurrence of each error.

    Args:
        places: For each error, the byte offset of its last line by file.

    Returns:
        For each error, what holds for all of its files.
    """
    file_ends: dict[str, _FileEnd] = {}
    return [_recovery_in_files(files, file_ends) for files in places]


@attrs.frozen(kw_only=True)
class _FileEnd:
    """
    The end of a file in small letters, with the offsets of what it shows.
    """

    start: int = 0
    size: int = 0
    steps: tuple[tuple[int, bytes], ...] = ()
    completed: int = -1
    surely_completed: int = -1


def _recovery_in_files(
    files: Mapping[str, int], file_ends: dict[str, _FileEnd]
) -> Recovery:
    if not files or len(files) > _MOST_FILES or any(map(is_packed, files)):
        return Recovery()

    recoveries = []
    for path, offset in files.items():
        try:
            if path not in file_ends:
                file_ends[path] = _read_file_end(path)
            recoveries.append(_recovery_after(path, offset, file_ends[path]))
        except (OSError, ValueError):  # rotated away meanwhile
            return Recovery()
    return Recovery(
        is_certain=all(x.is_certain for x in recoveries),
        is_progressing=all(x.is_progressing for x in recoveries),
    )


def _read_file_end(path: str) -> _FileEnd:
    with open_log(path) as file:
        size = file.seek(0, 2)
        start = max(size - _PIECE_BYTES, 0)
        file.seek(start)
        text = file.read(_PIECE_BYTES).lower()
    return _FileEnd(
        start=start,
        size=size,
        steps=tuple(
            (start + x.start(), x[1] or x[2])
            for x in _STEP_NUMBER.finditer(text)
        ),
        completed=max(
            (start + x.start() for x in _COMPLETED.finditer(text)), default=-1
        ),
        surely_completed=max(
            (start + x.start() for x in _SURELY_COMPLETED.finditer(text)),
            default=-1,
        ),
    )


def _recovery_after(path: str, offset: int, end: _FileEnd) -> Recovery:
    steps = {step for at, step in end.steps if at > offset}
    # A script may print that it completed after a failure, too.
    is_done = end.completed > offset and len(steps) >= _SOME_STEPS
    if is_done or end.surely_completed > offset:
        return Recovery(is_certain=True, is_progressing=True)
    if len(steps) < _MANY_STEPS:
        return Recovery()

    with open_log(path) as file:
        file.seek(offset)
        text = file.read(_PIECE_BYTES).lower()
    return Recovery(
        is_certain=any(words in text for words in _RESTARTED),
        is_progressing=end.size - offset > _STDOUT_BUFFER,
    )


_MOST_LISTED = 100
_HANDLED_BY_PROGRAM = re.compile(
    # Except the messages of a watchdog, a crash, or a data loader worker.
    r"\b(?:(?<!watchdog )caught(?! signal| .{1,80} in \w)|skipp(?:ed|ing)"
    r"|ignor(?:ed|ing)|recovered|retry(?:ing)?|fall(?:ing)? ?back)\b",
    re.IGNORECASE,
)
# At most this many groups are checked for recovery.
_MOST_RECOVERIES = 50


def build_groups(
    event_groups: Mapping[GroupKey, EventGroup],
) -> list[tuple[LogRule, LogGroup | TraceGroup]]:
    """
    Build the groups to report, the most severe and earliest first.
    """
    harmful = [t for t in event_groups.values() if not t.rule.is_harmless]
    times = _begin_times(harmful)
    files = {
        path: n
        for n, path in enumerate(
            dict.fromkeys(path for t in harmful for path in t.files)
        )
    }

    def order(event_group: EventGroup) -> tuple[int, bool, float, int, int]:
        hit, time = event_group.first, times[id(event_group)]
        place = files[hit.source], hit.offset
        return event_group.rule.priority, time is None, time or 0.0, *place

    harmful.sort(key=order)
    survived = _find_survived(harmful)
    harmful.sort(key=lambda event_group: id(event_group) in survived)
    propagated = propagate_ranks([t for t in harmful if id(t) not in survived])
    nodes = {
        node for event_group in harmful for node, _ in event_group.local_ranks
    }
    groups = []
    for event_group in harmful:
        ranks = event_group.ranks | propagated.get(id(event_group), set())
        if len(nodes) == 1:
            ranks |= {rank for _, rank in event_group.local_ranks}
        is_survived = id(event_group) in survived
        groups.append(
            (
                event_group.rule,
                _make_group(event_group, ranks, is_survived=is_survived),
            )
        )
    return groups


def _begin_times(
    event_groups: Iterable[EventGroup],
) -> dict[int, float | None]:
    """
    Return when each group began, by ``id``; without a time, the next one's.
    """
    by_file: dict[str, list[EventGroup]] = {}
    for event_group in event_groups:
        by_file.setdefault(event_group.first.source, []).append(event_group)
    times: dict[int, float | None] = {}
    for in_file in by_file.values():
        in_file.sort(key=lambda event_group: event_group.first.offset)
        time = max(
            (t.first.time for t in in_file if t.first.time), default=None
        )
        for event_group in reversed(in_file):
            time = event_group.first.time or time
            times[id(event_group)] = time
    return times


def _find_survived(harmful: list[EventGroup]) -> set[int]:
    """
    Return the ids of the groups that the job survived.
    """
    fatal = [
        event_group
        for event_group in harmful
        if is_fatal(event_group.rule.cause)
    ]
    checked = fatal[:_MOST_RECOVERIES]
    recoveries = read_recoveries(
        [event_group.files for event_group in checked]
    )
    by_id = {id(t): x for t, x in zip(checked, recoveries, strict=True)}
    unknown = Recovery()
    after = [by_id.get(id(event_group), unknown) for event_group in harmful]
    # Other ranks may go on for a while after one has died.
    all_recover = all(x.is_certain or x.is_progressing for x in after)
    return {
        id(event_group)
        for event_group, x in zip(harmful, after, strict=True)
        if x.is_certain
        or (all_recover and x.is_progressing)
        or _is_handled(event_group)
    }


def _is_handled(event_group: EventGroup) -> bool:
    """
    Return whether the program itself logs that it handled the error.
    """
    lines = (event_group.first.text, event_group.last.text)
    return not event_group.shape and all(
        map(_HANDLED_BY_PROGRAM.search, lines)
    )


def _make_group(
    event_group: EventGroup, ranks: set[int], *, is_survived: bool
) -> LogGroup | TraceGroup:
    rule = event_group.rule
    group = LogGroup(
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
    if not event_group.shape:
        return group
    return TraceGroup(errors=event_group.errors, group=group)


_LONGEST_SUMMARY = 160


def make_finding(rule: LogRule, found: LogGroup | TraceGroup) -> Finding:
    """
    Convert a group of log lines or tracebacks to a finding.
    """
    group = found.group if isinstance(found, TraceGroup) else found
    hits = [group.first]
    if group.last != group.first:
        hits.append(group.last)
    return Finding(
        cause=rule.cause,
        ranks=group.ranks,
        summary=_summary(rule, found, group),
        confidence="possible" if group.is_survived else rule.confidence,
        remedy=rule.remedy or None,
        location=_location(found),
        evidence=tuple(map(_evidence, hits)),
    )


def _summary(
    rule: LogRule, found: LogGroup | TraceGroup, group: LogGroup
) -> str:
    says = rule.says
    if isinstance(found, TraceGroup) and found.root:
        exception = clean(str(found.root), limit=_LONGEST_SUMMARY)
        says = (
            f"raised {exception}"
            if rule.name == EXCEPTION.name
            else f"{says}: {exception}"
        )
    elif group.key:
        says = f"{says} ({group.key})"
    subject = _ranks_or_origin(group)
    if rule.name == EXCEPTION.name and isinstance(found, TraceGroup):
        says = f"{subject or 'a process'} {says}"
    elif subject:
        says = f"{subject}: {says}"
    more = "at least " if group.is_more else ""
    unit = "times" if isinstance(found, TraceGroup) else "lines"
    times = f" ({more}{group.count:,} {unit})" if group.count > 1 else ""
    recovery_text = "; the job went on afterwards" if group.is_survived else ""
    return says[:1].upper() + says[1:] + times + recovery_text


def _ranks_or_origin(group: LogGroup) -> str:
    if group.ranks:
        return ranks_text(group.ranks)

    names = dict.fromkeys(
        f"{clean(x.name, limit=60)}{f' (pid {x.pid})' if x.pid else ''}"
        for x in group.origins
        if x.name
    )
    return next(iter(names)) if len(names) == 1 else ""


def _location(found: LogGroup | TraceGroup) -> Location | None:
    root = found.root if isinstance(found, TraceGroup) else None
    place = root.place if root else None
    if place is None:
        return None

    return Location(function=place.function, file=place.file, line=place.line)


def _evidence(hit: Hit) -> Evidence:
    return Evidence(
        kind="log",
        source=hit.source,
        location=hit.location,
        quote=clean(hit.text, limit=2 * _LONGEST_SUMMARY),
    )
