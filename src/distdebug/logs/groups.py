"""
What went wrong, and what of it is the most important?
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from .._text import clean
from ..findings import Cause, Evidence, Finding, Location
from ..ranks import ranks_text
from .lines import Origin, open_log
from .model import Hit, LogGroup, TraceGroup
from .part import Event, is_packed
from .rules import EXCEPTION, LEAST_PRIORITY, LogRule
from .tracebacks import PyError


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


_MOST_ORIGINS = 100
_MOST_KINDS = 2_000
# Beyond, the tasks that Slurm names are not listed, as they may be many.
_MOST_TASKED = 200
_LONGEST = 500
# Each rank words these in its own way, and they tell of the same.
_SHARED = frozenset({Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE})
_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
_QUOTED = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")

Key = tuple[str, str]


@attrs.define(kw_only=True)
class Tally:
    """
    What is known of lines that tell of the same, while they are counted.

    Attributes:
        rule: The rule that they fit.

        key: What tells them apart from others of the rule.

        shape: That of a traceback, or ``""``.

        first: The first of them.

        last: The last of them.

        errors: The exceptions of the first traceback.

        count: How many there are.

        is_more: Whether there are more.

        files: The files they are in, with where in it the last one stands.

        ranks: The global ranks they are about.

        locals: Ranks on a node, with where that stands.

        origins: Who printed them.
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
    locals: set[tuple[str, int]] = attrs.field(factory=set)
    origins: dict[Origin, None] = attrs.field(factory=dict)


def gather(events: Iterable[Event], path: str) -> dict[Key, Tally]:
    """
    Count what part of a file tells.

    Args:
        events: What was found in it.

        path: The file.

    Returns:
        What tells of the same, each once.
    """
    tallies: dict[Key, Tally] = {}
    named = rank_of_file(path)
    node = path.partition("/attempt_")[0] if "local_rank" in named else path
    for event in events:
        shape = shape_of(event.trace.errors) if event.trace else ""
        group = clean(event.groups.get("key", ""), limit=100)
        hit = _hit(event, path, named)
        tasks = tasks_of_line(event.line.text)
        # Who failed first, and who only ended then, is told apart.
        is_shared = event.rule.cause in _SHARED
        key = event.rule.name, group or (not is_shared and shape) or tasks
        tally = tallies.get(key)
        if tally is None:
            if len(tallies) >= _MOST_KINDS:
                continue
            tally = tallies[key] = Tally(
                rule=event.rule, key=group, shape=shape, first=hit, last=hit
            )
            tally.errors = event.trace.errors if event.trace else ()
            if len(tallies) <= _MOST_TASKED:
                tally.ranks.update(tasks_in(tasks))
        tally.last = hit
        tally.files[path] = hit.offset
        tally.count += event.line.count
        tally.is_more |= event.is_last
        if hit.rank is not None:
            tally.ranks.add(hit.rank)
        elif hit.local_rank is not None:
            tally.locals.add((node, hit.local_rank))
        if hit.origin and len(tally.origins) < _MOST_ORIGINS:
            tally.origins[hit.origin] = None
    return tallies


def shape_of(errors: Iterable[PyError]) -> str:
    """
    What do tracebacks have in common that tell of the same?

    Args:
        errors: The exceptions of one of them.

    Returns:
        Types and functions, and messages without what differs each time.
    """
    return "\n".join(
        "|".join(
            [
                error.type,
                _NUMBERS.sub("#", _QUOTED.sub("''", error.message))[:_LONGEST],
                *(
                    f"{x.file.rpartition('/')[2]}:{x.function}"
                    for x in error.frames
                ),
            ]
        )
        for error in errors
    )


def join_tallies(
    parts: Iterable[tuple[int | None, Mapping[Key, Tally]]],
) -> dict[Key, Tally]:
    """
    Join what parts of files tell.

    Args:
        parts: Those of all files in their order, each with how many lines of
            its file are before it, if that is known.

    Returns:
        What tells of the same, each once.
    """
    joined: dict[Key, Tally] = {}
    for lines, tallies in parts:
        for key, tally in tallies.items():
            tally.first = _moved(tally.first, lines)
            tally.last = _moved(tally.last, lines)
            known = joined.setdefault(key, tally)
            if known is not tally:
                _join(known, tally)
    return joined


def harmless_of(tallies: Mapping[Key, Tally]) -> dict[str, int]:
    """
    How many lines only look bad, by the name of the rule.
    """
    counts: Counter[str] = Counter()
    for tally in tallies.values():
        if tally.rule.is_harmless:
            counts[tally.rule.name] += tally.count
    return dict(counts)


def _hit(event: Event, path: str, named: Mapping[str, int]) -> Hit:
    line, text = event.line, event.line.text
    if event.trace and event.trace.root:
        text = str(event.trace.root)
    told = rank_of_line(text, line.origin, event.groups, named)
    if event.trace and not told:
        told = rank_of_line(line.text, None, {}, {})
    if not told and event.trace and event.trace.rank is not None:
        told = {"rank": event.trace.rank}
    return Hit(
        text=clean(text, limit=_LONGEST),
        source=path,
        line=event.number,
        offset=event.offset,
        time=event.time,
        origin=line.origin,
        rank=told.get("rank"),
        local_rank=told.get("local_rank"),
    )


def _moved(hit: Hit, lines: int | None) -> Hit:
    return attrs.evolve(hit, line=0 if lines is None else hit.line + lines)


def _join(known: Tally, new: Tally) -> None:
    if _is_before(new.first, known.first):
        known.first, known.errors = new.first, new.errors
    if not _is_before(new.last, known.last):
        known.last = new.last
    known.count += new.count
    known.is_more |= new.is_more
    known.files |= new.files
    known.ranks |= new.ranks
    known.locals |= new.locals
    known.origins |= new.origins


def _is_before(one: Hit, other: Hit) -> bool:
    if one.time is None or other.time is None:
        return False
    return one.time < other.time


# Launchers say who ended first, not why.
_LAUNCHERS = frozenset(
    {
        "MPI reports a failed process",
        "killed",
        "task ended by Slurm",
        "torchrun reports a failed worker",
    }
)
_DEADLY = frozenset(
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
_HEAVY = 3


def lent_ranks(tallies: Sequence[Tally]) -> dict[int, set[int]]:
    """
    Find ranks for what tells none.

    An assertion of a GPU program stands before the traceback of its rank; and
    where a single process failed, the launcher says which.

    Args:
        tallies: What went wrong, the most important first.

    Returns:
        Global ranks, by the ``id`` of the tally.
    """
    lent: dict[int, set[int]] = {}
    for tally in tallies:
        if tally.shape or _is_told(tally):
            continue
        for other in tallies:
            is_same = other.rule is tally.rule
            if is_same and other.ranks and _share_file(tally, other):
                lent[id(tally)] = set(other.ranks)
                break
    first = _blamed_first(tallies)
    if first is not None and id(tallies[0]) not in lent:
        lent[id(tallies[0])] = set(first.ranks)
    return lent


def _blamed_first(tallies: Sequence[Tally]) -> Tally | None:
    """
    What names the only rank that can be meant by what matters most.
    """
    if not tallies:
        return None

    top = tallies[0]
    rivals = [t for t in tallies[1:] if t.rule.priority < _HEAVY]
    is_alone = top.count == 1 and not any(map(_is_told, (top, *rivals)))
    if not is_alone or top.rule.cause not in _DEADLY:
        return None

    launchers = [
        t
        for t in tallies
        if t.rule.name in _LAUNCHERS and t.ranks and _share_file(t, top)
    ]
    first = min(launchers, key=lambda t: t.first.offset, default=None)
    return first if first is not None and len(first.ranks) == 1 else None


def _is_told(tally: Tally) -> bool:
    return bool(tally.ranks or tally.locals)


def _share_file(one: Tally, other: Tally) -> bool:
    return not one.files.keys().isdisjoint(other.files)


_PIECE = 1 << 16
_MOST_FILES = 20
# So many different numbers of steps tell that a job goes on.
_MANY_STEPS, _SOME_STEPS = 20, 3
# What a process has printed and not written yet follows its last words.
_BUFFER = 1 << 13

_MORTAL = frozenset(
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
# In small letters, as other than ignoring case that takes no time.
_STEP = re.compile(
    rb"(?:step|iteration|iter|epoch|batch)[\"']?[ :=\[(]{1,12}"
    rb"(\d{1,9}(?:\.\d{1,6})?)|\b(\d{1,9})/\d{1,9} \[\d"
)
_WELL = re.compile(
    rb"(?:training|fine-?tuning)(?: run| job)? (?:is |has |was )?"
    rb"(?:successfully )?(?:completed?|finished|done|succeeded)\b"
    rb"(?![^\n]{0,60}(?:fail|error))|saved final"
)
_BEST = re.compile(
    rb"'train_runtime': \d|`trainer\.fit` stopped: `max_"
    rb"|\n=+ \d{1,6} passed\b(?![^\n]{0,60}failed)"
)
_AGAIN = (
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
class Sequel:
    """
    What a log tells of the time after an error.

    Attributes:
        is_over: Whether it was surely survived: the job was started again, or
            ended well.

        goes_on: Whether the job made steps, which others may do for a while.
    """

    is_over: bool = False
    goes_on: bool = False


def is_mortal(cause: Cause) -> bool:
    """
    Whether a job that goes on shows that this did not matter.

    Args:
        cause: What went wrong.  A loss that is not a number stays one.
    """
    return cause in _MORTAL


def read_sequels(places: Sequence[Mapping[str, int]]) -> list[Sequel]:
    """
    Look at what logs tell behind errors.

    Args:
        places: For each error where it stands last in each file, in bytes.

    Returns:
        What holds for all files, for each error.
    """
    ends: dict[str, _End] = {}
    return [_sequel(files, ends) for files in places]


@attrs.frozen(kw_only=True)
class _End:
    """
    The last lines of a file, in small letters, with where things stand there.
    """

    start: int = 0
    size: int = 0
    steps: tuple[tuple[int, bytes], ...] = ()
    well: int = -1
    best: int = -1


def _sequel(files: Mapping[str, int], ends: dict[str, _End]) -> Sequel:
    if not files or len(files) > _MOST_FILES or any(map(is_packed, files)):
        return Sequel()

    sequels = []
    for path, offset in files.items():
        try:
            if path not in ends:
                ends[path] = _end_of(path)
            sequels.append(_behind(path, offset, ends[path]))
        except (OSError, ValueError):  # rotated away meanwhile
            return Sequel()
    return Sequel(
        is_over=all(x.is_over for x in sequels),
        goes_on=all(x.goes_on for x in sequels),
    )


def _end_of(path: str) -> _End:
    with open_log(path) as file:
        size = file.seek(0, 2)
        start = max(size - _PIECE, 0)
        file.seek(start)
        text = file.read(_PIECE).lower()
    return _End(
        start=start,
        size=size,
        steps=tuple(
            (start + x.start(), x[1] or x[2]) for x in _STEP.finditer(text)
        ),
        well=max(
            (start + x.start() for x in _WELL.finditer(text)), default=-1
        ),
        best=max(
            (start + x.start() for x in _BEST.finditer(text)), default=-1
        ),
    )


def _behind(path: str, offset: int, end: _End) -> Sequel:
    steps = {step for at, step in end.steps if at > offset}
    # What a script prints in its end, it prints after a failure too.
    is_done = end.well > offset and len(steps) >= _SOME_STEPS
    if is_done or end.best > offset:
        return Sequel(is_over=True, goes_on=True)
    if len(steps) < _MANY_STEPS:
        return Sequel()

    with open_log(path) as file:
        file.seek(offset)
        text = file.read(_PIECE).lower()
    return Sequel(
        is_over=any(words in text for words in _AGAIN),
        goes_on=end.size - offset > _BUFFER,
    )


_MOST_LISTED = 100
_HANDLED = re.compile(
    # Not what a watchdog, a crash, or the worker of a data loader says.
    r"\b(?:(?<!watchdog )caught(?! signal| .{1,80} in \w)|skipp(?:ed|ing)"
    r"|ignor(?:ed|ing)|recovered|retry(?:ing)?|fall(?:ing)? ?back)\b",
    re.IGNORECASE,
)
# So many things are looked at to see whether the job survived them.
_MOST_SEQUELS = 50


def groups_of(
    tallies: Mapping[Key, Tally],
) -> list[tuple[LogRule, LogGroup | TraceGroup]]:
    """
    What went wrong, the most important first.

    Args:
        tallies: What tells of the same, each once.
    """
    bad = [t for t in tallies.values() if not t.rule.is_harmless]
    times = _times(bad)
    files = {
        path: n
        for n, path in enumerate(
            dict.fromkeys(path for t in bad for path in t.files)
        )
    }

    def order(tally: Tally) -> tuple[int, bool, float, int, int]:
        hit, time = tally.first, times[id(tally)]
        place = files[hit.source], hit.offset
        return tally.rule.priority, time is None, time or 0.0, *place

    bad.sort(key=order)
    survived = _survived(bad)
    bad.sort(key=lambda tally: id(tally) in survived)
    lent = lent_ranks([t for t in bad if id(t) not in survived])
    nodes = {node for tally in bad for node, _ in tally.locals}
    groups = []
    for tally in bad:
        ranks = tally.ranks | lent.get(id(tally), set())
        if len(nodes) == 1:
            ranks |= {rank for _, rank in tally.locals}
        is_survived = id(tally) in survived
        groups.append(
            (tally.rule, _group(tally, ranks, is_survived=is_survived))
        )
    return groups


def _times(tallies: Iterable[Tally]) -> dict[int, float | None]:
    """
    When each began: what tells no time, when the next of its file did.
    """
    by_file: dict[str, list[Tally]] = {}
    for tally in tallies:
        by_file.setdefault(tally.first.source, []).append(tally)
    times: dict[int, float | None] = {}
    for mine in by_file.values():
        mine.sort(key=lambda tally: tally.first.offset)
        time = max((t.first.time for t in mine if t.first.time), default=None)
        for tally in reversed(mine):
            time = tally.first.time or time
            times[id(tally)] = time
    return times


def _survived(bad: list[Tally]) -> set[int]:
    """
    Which of the things that went wrong did the job survive?
    """
    mortal = [tally for tally in bad if is_mortal(tally.rule.cause)]
    looked = mortal[:_MOST_SEQUELS]
    sequels = read_sequels([tally.files for tally in looked])
    told = {id(t): x for t, x in zip(looked, sequels, strict=True)}
    nothing = Sequel()
    after = [told.get(id(tally), nothing) for tally in bad]
    # Others may go on for a while without the one that died.
    is_well = all(x.is_over or x.goes_on for x in after)
    return {
        id(tally)
        for tally, x in zip(bad, after, strict=True)
        if x.is_over or (is_well and x.goes_on) or _is_handled(tally)
    }


def _is_handled(tally: Tally) -> bool:
    """
    Whether the program says itself that it goes on.
    """
    lines = (tally.first.text, tally.last.text)
    return not tally.shape and all(map(_HANDLED.search, lines))


def _group(
    tally: Tally, ranks: set[int], *, is_survived: bool
) -> LogGroup | TraceGroup:
    rule = tally.rule
    group = LogGroup(
        rule=rule.name,
        key=tally.key,
        cause=rule.cause,
        priority=LEAST_PRIORITY if is_survived else rule.priority,
        count=tally.count,
        is_more=tally.is_more,
        first=tally.first,
        last=tally.last,
        files=tuple(tally.files)[:_MOST_LISTED],
        ranks=tuple(sorted(ranks)),
        origins=tuple(tally.origins)[:_MOST_LISTED],
        is_survived=is_survived,
    )
    if not tally.shape:
        return group
    return TraceGroup(errors=tally.errors, group=group)


_CONCLUDE_LONGEST = 160
_MOST_ERRORS = 4


def conclude(rule: LogRule, found: LogGroup | TraceGroup) -> Finding:
    """
    Make a finding of lines that tell of the same.

    Args:
        rule: The rule that they fit.

        found: The lines.

    Returns:
        The finding.
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
        told = clean(str(found.root), limit=_CONCLUDE_LONGEST)
        says = (
            f"raised {told}"
            if rule.name == EXCEPTION.name
            else f"{says}: {told}"
        )
    elif group.key:
        says = f"{says} ({group.key})"
    who = _who(group)
    if rule.name == EXCEPTION.name and isinstance(found, TraceGroup):
        says = f"{who or 'a process'} {says}"
    elif who:
        says = f"{who}: {says}"
    more = "at least " if group.is_more else ""
    unit = "times" if isinstance(found, TraceGroup) else "lines"
    times = f" ({more}{group.count:,} {unit})" if group.count > 1 else ""
    then = "; the job went on afterwards" if group.is_survived else ""
    return says[:1].upper() + says[1:] + times + then


def _who(group: LogGroup) -> str:
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
        quote=clean(hit.text, limit=2 * _CONCLUDE_LONGEST),
    )
