"""
Group log events by rule and traceback, attribute ranks, make findings.

Events of all files are counted per rule, attributed to ranks by file name,
launcher prefix, or text, checked for whether the job recovered, and turned
into findings, the most severe and earliest first.
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import NamedTuple

import attrs

from .._text import clean
from ..causes import Cause
from ..findings import Evidence, Finding
from ..identity import ranks_in_text
from ..ranks import ranks_text
from .engine import is_packed
from .lines import LogLine, Origin, open_log, rank_from_path
from .model import Hit, LogGroup
from .process_ranks import NO_PROCESSES, NodeKey, ProcessRanks
from .rules import EXCEPTION, LEAST_PRIORITY, NAMING_GROUPS, LogRule
from .signatures import read_signatures, text_pattern
from .tracebacks import PyError, Trace, find_root_error


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
        The numbers, at most 20,000: they are global ranks.
    """
    ranks: set[int] = set()
    for found in filter(None, map(_TASK_RANGE.fullmatch, text.split(","))):
        low, high = int(found[1]), int(found[2] or found[1])
        most = low + _MOST_TASKS - len(ranks)
        ranks.update(range(low, min(high + 1, most)))
    return ranks


# Each rank may be named in its own file.
_MOST_NAMED = 1 << 14
# Of one file.
_MOST_GROUPS = 2_000
# Only the first groups list the tasks that Slurm names; they may be many.
_MOST_GROUPS_WITH_TASKS = 200
_LONGEST_TEXT = 500
# Ranks alone, or with the nodes that they are on.
_RANK_NUMBERS = re.compile(r"(?:^|rank=|(?<=\d),\s?)(\d{1,7})")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
_QUOTED = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")

GroupKey = tuple[str, str]


@attrs.frozen(kw_only=True)
class Event:
    """
    A line or a traceback that matches a rule.

    Attributes:
        rule: The rule.

        line: The line.

        number: The line number in the part, from 1.

        offset: The byte offset of the line in the file.

        groups: The named groups that the pattern of the rule matched.

        time: The time of the line, in seconds since the epoch.

        trace: The traceback, if it is one.

        is_last: Whether no more events of this kind are reported for this
            part.
    """

    rule: LogRule
    line: LogLine
    number: int
    offset: int
    groups: Mapping[str, str]
    time: float | None
    trace: Trace | None
    is_last: bool

    @property
    def errors(self) -> tuple[PyError, ...]:
        """
        Return the exceptions of the traceback.
        """
        return self.trace.errors if self.trace else ()


@attrs.define(kw_only=True, eq=False)
class EventGroup:
    """
    Events of one kind, while they are counted.

    Attributes:
        key: The group ``key`` of the rule's pattern, or ``""``.

        shape: The shape of the traceback (:func:`traceback_shape`), or ``""``.

        errors: The exceptions of the first traceback.

        count: The number of lines that match.

        is_more: Whether there are more lines than were counted.

        before: The last event of the files before the one that is read; of two
            files, the one that ends later has the last event.

        files: The files, each with the byte offset of its last event.

        begins: The files, each with the byte offset of its first event.

        ranks: Global ranks.

        tasks: Numbers of tasks of Slurm, by file.

        local_ranks: Pairs of a node, as path and label show it, and a local
            rank.

        origins: The processes that printed them, as prefixes show.

        named: The processes, nodes, and GPUs at fault that they name, each as
            the name of the group of the pattern and what it matched.
    """

    rule: LogRule
    key: str
    shape: str
    first: Hit
    last: Hit
    before: Hit | None = None
    errors: tuple[PyError, ...] = ()
    count: int = 0
    is_more: bool = False
    files: dict[str, int] = attrs.field(factory=dict)
    begins: dict[str, int] = attrs.field(factory=dict)
    ranks: set[int] = attrs.field(factory=set)
    tasks: dict[str, set[int]] = attrs.field(factory=dict)
    local_ranks: set[tuple[NodeKey, int]] = attrs.field(factory=set)
    origins: dict[Origin, None] = attrs.field(factory=dict)
    named: dict[tuple[str, str], None] = attrs.field(factory=dict)

    @property
    def has_ranks(self) -> bool:
        """
        Return whether it shows which ranks it is about.
        """
        return bool(self.ranks or self.local_ranks)

    def add(self, event: Event, hit: Hit, node: str) -> None:
        """
        Count an event.

        Args:
            node: What the path of the file shows of the node.
        """
        if hit.source not in self.files and _is_before(hit, self.first):
            self.first, self.errors = hit, event.errors
        if hit.source not in self.files:
            self.before = self.last if self.files else None
        self.last = hit
        if self.before is not None and _is_before(hit, self.before):
            self.last = self.before
        self.files[hit.source] = hit.offset
        self.begins.setdefault(hit.source, hit.offset)
        self.count += event.line.count
        self.is_more |= event.is_last
        for name in NAMING_GROUPS & event.groups.keys():
            if len(self.named) < _MOST_NAMED:
                self.named[name, event.groups[name]] = None
        self._add_ranks(event, hit, node)
        if hit.origin and len(self.origins) < _MOST_NAMED:
            self.origins[hit.origin] = None

    def _add_ranks(self, event: Event, hit: Hit, node: str) -> None:
        if "ranks" in event.groups:
            numbers = _RANK_NUMBERS.findall(event.groups["ranks"])
            if self.rule.after:  # each report lists all ranks anew
                self.ranks.clear()
            self.ranks.update(map(int, numbers[:_MOST_TASKS]))
        elif hit.rank is not None:
            self.ranks.add(hit.rank)
        elif hit.local_rank is not None:
            label = hit.origin.node if hit.origin else ""
            self.local_ranks.add(((node, label), hit.local_rank))

    def shares_file(self, other: EventGroup) -> bool:
        """
        Return whether both are in one file.
        """
        return not self.files.keys().isdisjoint(other.files)


def _is_before(one: Hit, other: Hit) -> bool:
    if one.time is None or other.time is None:
        return False
    return one.time < other.time


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
                    event_group.ranks |= tasks
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
        survived = _find_survived(harmful)
        harmful.sort(key=survived.__contains__)
        propagated = propagate_ranks(
            [t for t in harmful if t not in survived], processes
        )
        is_one_node = _are_of_one_node(harmful)
        groups = []
        for event_group in harmful:
            ranks = event_group.ranks | propagated.get(event_group, set())
            if is_one_node:
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


# Rules of launchers, which report who ended first, not why.
_LAUNCHER_RULES = frozenset(
    {
        "MPI reports a failed process",
        "killed",
        "task ended by Slurm",
        "torchrun reports a failed worker",
    }
)
_NOT_SEVERE, _IS_CONSEQUENCE = 3, 4


def propagate_ranks(
    event_groups: Sequence[EventGroup],
    processes: ProcessRanks = NO_PROCESSES,
) -> dict[EventGroup, set[int]]:
    """
    Propagate ranks to event groups that show none.

    An assertion of a GPU kernel stands before the traceback of its rank; and
    where a single process failed, the launcher names its rank.

    Args:
        event_groups: The groups, the most severe first.

        processes: The known ranks of processes, nodes, and GPUs.

    Returns:
        Global ranks by event group.
    """
    propagated = _ranks_of_named(event_groups, processes)
    for group in event_groups:
        same = (
            x.ranks or propagated[x]
            for x in event_groups
            if x.rule is group.rule
            and (x.ranks or x in propagated)
            and (group.shares_file(x) or _is_of_kernel(group))
        )
        is_known = group.has_ranks or group in propagated
        ranks = set() if is_known else set(next(same, ()))
        # A traceback that says more than that something was raised is that of
        # the only rank that says the same.
        is_vague = group.rule.name in {EXCEPTION.name, *_LAUNCHER_RULES}
        is_alone = group.count == len(ranks) == 1 and not is_vague
        if ranks and (is_alone or not (group.shape or _is_of_kernel(group))):
            propagated[group] = ranks
    if ranks := _ranks_of_launcher(event_groups, propagated):
        propagated.setdefault(event_groups[0], ranks)
    for group in event_groups:
        if not group.has_ranks and group not in propagated:
            ranks = _ranks_of_nodes(group, event_groups, processes)
            propagated |= {group: ranks} if ranks else {}
    return propagated


def _is_of_kernel(group: EventGroup) -> bool:
    """
    Return whether it names a process by its number alone.
    """
    return any(kind == "pid" for kind, _ in group.named)


def _ranks_of_named(
    event_groups: Sequence[EventGroup], processes: ProcessRanks
) -> dict[EventGroup, set[int]]:
    """
    Return the ranks of the processes, nodes, and GPUs that groups name.

    The kernel kills a process, and its rank reports the same process.
    """
    ranks_of: dict[tuple[str, str], set[int]] = {}
    for group in event_groups:
        for name in group.named:
            ranks_of.setdefault(name, set()).update(group.ranks)
    found = {}
    for group in event_groups:
        if group.ranks:
            continue
        known = (ranks_of[name] for name in group.named)
        if group.local_ranks:
            ranks = _global_ranks(group.local_ranks, processes)
        elif group.named:
            ranks = set().union(*known) or processes.find(
                group.named, group.files
            )
        else:  # who printed it is at fault
            ranks = processes.ranks_of(group.origins)
        if ranks:
            found[group] = ranks
    return found


# As pdsh and clush write.
_HOST_LABEL = re.compile(r"([A-Za-z][\w.-]{1,80}): ")


def _global_ranks(
    local_ranks: Iterable[tuple[NodeKey, int]], processes: ProcessRanks
) -> set[int]:
    """
    Return the global ranks of local ranks, if the nodes of all are known.
    """
    pairs = [(processes.on_node(*node), n) for node, n in local_ranks]
    if not all(n < len(ranks) for ranks, n in pairs):
        return set()
    return {ranks[n] for ranks, n in pairs}


def _ranks_of_nodes(
    group: EventGroup,
    event_groups: Iterable[EventGroup],
    processes: ProcessRanks,
) -> set[int]:
    """
    Return all ranks of the nodes that print it, if it is about each of them.
    """
    labels = {x.node for x in group.origins} or {""}
    nodes = [(path, label) for path in group.files for label in labels]
    ranks = {x for node in nodes for x in processes.on_node(*node)}
    if host := _HOST_LABEL.match(group.first.text):
        ranks = ranks or processes.find([("host", host[1])])
    count = sum(
        x.count
        for x in event_groups
        if x.rule is group.rule and x.files.keys() == group.files.keys()
    )
    is_end = (
        group.rule.cause.ends_process
        or group.rule.cause is Cause.NODE_MISCONFIGURED
    )
    is_each = is_end and bool(group.shape) and count >= len(ranks)
    is_some = len(ranks) > 1 and not processes.is_all(ranks)
    return ranks if is_some and (group.rule.is_of_node or is_each) else set()


def _ranks_of_launcher(
    event_groups: Sequence[EventGroup],
    propagated: Mapping[EventGroup, set[int]],
) -> set[int]:
    """
    Return the ranks that the launcher names, if only these can have failed.
    """
    severe = [
        x
        for x in event_groups
        if x is event_groups[0] or x.rule.priority < _NOT_SEVERE
    ]
    if (
        not severe
        or not severe[0].rule.cause.ends_process
        or any(x.has_ranks for x in severe)
    ):
        return set()

    worst = severe[0]
    launchers = [
        x
        for x in event_groups
        if x.rule.name in _LAUNCHER_RULES
        and (x.ranks or x in propagated)
        # The log of the kernel is a file of its own.
        and (x.shares_file(worst) or _has_killed(worst, x))
    ]
    first = min(launchers, key=lambda x: x.first.offset, default=None)
    if first is None:
        return set()
    ranks = first.ranks or propagated[first]
    same = [x for x in event_groups if x.rule is worst.rule]
    pids = {x for group in same for x in group.named if x[0] == "pid"}
    # Each of them failed once, so that none failed in the same way elsewhere.
    return ranks if len(ranks) == (len(pids) or worst.count) else set()


def _has_killed(group: EventGroup, killed: EventGroup) -> bool:
    causes = group.rule.cause, killed.rule.cause
    return causes == (Cause.HOST_OUT_OF_MEMORY, Cause.KILLED)


_PIECE_BYTES = 1 << 16
_MOST_FILES = 20
# This many different step numbers show that a job goes on.
_MANY_STEPS, _SOME_STEPS = 20, 3
# An error that occurs so often while a job goes on does not end it.
_LEAST_USUAL = 3
# Buffered output of a process may follow its fatal error.
_STDOUT_BUFFER = 1 << 13
# The text is in small letters, which is faster than to ignore case.  A request
# that a server answered is a step, too, by the port of its client.
_STEP_NUMBER = re.compile(
    rb"(?:step|iteration|iter|epoch|batch)[\"']?[ :=\[(]{1,12}"
    rb"(\d{1,9}(?:\.\d{1,6})?)|\b(\d{1,9})/\d{1,9} \[\d"
    rb"|:(\d{1,5}) - \"post /[^\"\n]{1,200}\" 200\b"
)
_OF_NODE = re.compile(r"(?:raylet|gcs_server)[^/\\]{0,80}$")
_FINITE_LOSS = re.compile(
    rb"(?:loss|norm)[\w/]{0,40}[\"']?\s{0,3}[:=|]\s{0,3}[\"']?-?\d"
)
# So many finite values show that a loss recovered.
_MANY_FINITE = 5
_BLANK_START = re.compile(r"\.\{0,\d{1,4}\}")


@cache
def _end_texts(name: str) -> re.Pattern[bytes]:
    """
    Return a pattern for the ends of files: one of ``[text]``, or ``"sure"``.
    """
    if name != "sure":
        return re.compile(text_pattern(name).encode())
    patterns = chain.from_iterable(
        row["patterns"]
        for row in read_signatures()["ending"]
        if row.get("is_sure")
    )
    # They are searched for, and need no part that skips what stands before.
    parts = (_BLANK_START.sub("", x, count=1) for x in patterns)
    return re.compile("|".join(parts).encode(), re.IGNORECASE)


class Recovery(IntEnum):
    """
    Whether a job recovered from an error, as the log shows.
    """

    NONE = 0
    #: The job made steps, which other ranks may do for a while after one has
    #: died.
    PROGRESSING = 1
    #: The job was started again, or completed.
    CERTAIN = 2


def read_recoveries(
    event_groups: Iterable[EventGroup],
) -> dict[EventGroup, Recovery]:
    """
    Check what logs show after the last occurrence of each error.

    Returns:
        For each error in logs of the job, what holds for all of these.
    """
    read_end = cache(_read_file_end)
    recoveries = {}
    for event_group in event_groups:
        # What Ray's node logs, its driver prints, too, and goes on.
        of_job = [x for x in event_group.files if not _OF_NODE.search(x)]
        if not of_job:
            continue
        found = [Recovery.NONE]
        if len(of_job) <= _MOST_FILES and not any(map(is_packed, of_job)):
            with suppress(OSError, ValueError):  # rotated away meanwhile
                found = [
                    _recovery_after(path, event_group, read_end(path))
                    for path in of_job
                ]
        recoveries[event_group] = min(found)
    return recoveries


class _FileEnd(NamedTuple):
    """
    The offsets of what the end of a file shows; -1 for nothing.
    """

    size: int
    steps: list[tuple[int, bytes]]
    completed: int
    surely_completed: int


def _read_file_end(path: str) -> _FileEnd:
    with open_log(path) as file:
        size = file.seek(0, 2)
        start = max(size - _PIECE_BYTES, 0)
        file.seek(start)
        text = file.read(_PIECE_BYTES).lower()
    steps = [(start + at, step) for at, step in _find_steps(text)]
    completed, surely_completed = (
        max((start + x.start() for x in pattern.finditer(text)), default=-1)
        for pattern in map(_end_texts, ("says_completed", "sure"))
    )
    return _FileEnd(size, steps, completed, surely_completed)


def _recovery_after(
    path: str, event_group: EventGroup, end: _FileEnd
) -> Recovery:
    offset = event_group.files[path]
    if event_group.rule.cause is Cause.IO_WAIT and _end_texts(
        "restored"
    ).search(_read_piece(path, offset)):
        return Recovery.CERTAIN
    steps = {step for at, step in end.steps if at > offset}
    # A script may print that it completed after a failure, too.
    is_done = end.completed > offset and len(steps) >= _SOME_STEPS
    if is_done or end.surely_completed > offset:
        return Recovery.CERTAIN
    if len(steps) < _MANY_STEPS:
        is_progressing = bool(steps) and _is_usual(path, event_group)
    elif _end_texts("restarted").search(_read_piece(path, offset)):
        return Recovery.CERTAIN
    else:
        is_progressing = end.size - offset > _STDOUT_BUFFER
    return Recovery.PROGRESSING if is_progressing else Recovery.NONE


def _is_finite_again(event_group: EventGroup) -> bool:
    """
    Return whether finite values follow the last one that was not.
    """
    pieces = []
    with suppress(OSError, ValueError):
        for path, offset in event_group.files.items():
            piece = _read_piece(path, offset).partition(b"\n")[2]
            pieces.append(len(_FINITE_LOSS.findall(piece)) >= _MANY_FINITE)
    return len(pieces) == len(event_group.files) and all(pieces)


def _is_usual(path: str, event_group: EventGroup) -> bool:
    """
    Return whether a job makes steps from one occurrence to the next.

    A reward that runs programs of a model may log tracebacks all the time.
    """
    begin, end = event_group.begins[path], event_group.files[path]
    if event_group.count < _LEAST_USUAL:
        return False
    text = _read_piece(path, begin)[: max(end - begin, 0)]
    return len({step for _, step in _find_steps(text)}) >= _SOME_STEPS


def _find_steps(text: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Yield the offset and the number of each step in a text in small letters.
    """
    for found in _STEP_NUMBER.finditer(text):
        yield found.start(), found[1] or found[2] or found[3]


def _read_piece(path: str, offset: int) -> bytes:
    with open_log(path) as file:
        file.seek(offset)
        return file.read(_PIECE_BYTES).lower()


_MOST_LISTED = 100
_HANDLED_BY_PROGRAM = re.compile(
    # Except the messages of a watchdog, a crash, or a data loader worker.
    r"\b(?:(?<!watchdog )caught(?! signal| .{1,80} in \w)|skipp(?:ed|ing)(?! iterations)"
    r"|ignor(?:ed|ing)|recovered|retry(?:ing)?(?! count| limit|[ -]exceeded)|fall(?:ing)? ?back)\b",
    re.IGNORECASE,
)
# At most this many groups are checked for recovery.
_MOST_RECOVERIES = 50


def _are_of_one_node(event_groups: Iterable[EventGroup]) -> bool:
    """
    Return whether all local ranks are those of one node.

    The output of a launcher repeats what the files of its ranks hold.
    """
    seen: dict[NodeKey, set[tuple[GroupKey, int]]] = {}
    outputs: set[str] = set()
    for group in event_groups:
        outputs.update(group.files)
        for node, rank in group.local_ranks:
            # What the launcher itself says is nowhere else.
            is_own = group.rule.name in _LAUNCHER_RULES
            key = "" if is_own else group.rule.name, group.key or group.shape
            seen.setdefault(node, set()).add((key, rank))
    # The node of an output is known by its path only.
    copies = {x for x in seen if x[0] in outputs}
    if len(seen) == 2 and len(copies) == 1:
        copy = {x for x in seen.pop(copies.pop()) if x[0][0]}
        return all(copy <= events for events in seen.values())
    return len(seen) == 1


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


def _find_survived(harmful: Sequence[EventGroup]) -> set[EventGroup]:
    """
    Return the groups that the job survived.
    """
    # A loss that is not finite stays so, whatever the job does afterwards,
    # unless it shows that it does not.
    lasting = [t for t in harmful if t.rule.cause.is_lasting]
    passing = [t for t in harmful if not t.rule.cause.is_lasting]
    known = read_recoveries(passing[:_MOST_RECOVERIES])
    known |= {
        t: Recovery.CERTAIN
        for t in lasting[:_MOST_RECOVERIES]
        if t.rule.cause is Cause.LOSS_NOT_FINITE and _is_finite_again(t)
    }
    # Other ranks may go on for a while after one has died.
    all_recover = all(
        x or _is_handled(t) for t, x in known.items() if t.rule.cause.ends_job
    )
    least = Recovery.PROGRESSING if all_recover else Recovery.CERTAIN
    # A node that sees how a process goes, which the job survives.
    known |= (
        {
            t: least
            for t in passing[:_MOST_RECOVERIES]
            if t not in known and t.rule.priority == _IS_CONSEQUENCE
        }
        if any(known.values()) and all_recover
        else {}
    )
    return {
        event_group
        for event_group in harmful
        if known.get(event_group, Recovery.NONE) >= least
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
