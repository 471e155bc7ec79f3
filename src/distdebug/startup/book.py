"""
What is known about a framework: its phases, failures, and ends?
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from typing import Any, Literal, get_args

import attrs

from ..findings import Cause, Confidence


__all__ = ["Book", "Ending", "Failure", "How", "Kind", "Phase"]

Kind = Literal["orchestrator", "trainer", "engine", "common"]
How = Literal["completed", "failed", "killed"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def _patterns(texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in texts)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else _patterns([text])[0]


def _name(text: object) -> str:
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        msg = f"a name is small letters, digits, and _: {text!r:.60}"
        raise ValueError(msg)

    return text


def _patterns_field() -> Any:
    return attrs.field(converter=_patterns, default=())


@attrs.frozen(kw_only=True)
class Phase:
    """
    One step of a start-up, and how it shows in a log.

    A pattern is a regular expression that has to fit at the beginning of what
    was printed, after times, levels, and names of files; begin it with
    ``.{0,80}`` to find it further inside.  Named groups are kept as facts.
    These mean more: *done* and *total*, how far it is; *next*, which step comes
    next; *part*, which of several equal parts it is about, such as a rank; and
    *of*, how many parts there are.

    Attributes:
        name: What it is called in results.

        title: What it is called in sentences, as in "loading the dataset".

        what: What happens in it.

        begin: Texts that only appear once it has begun.

        progress: Texts that appear while it goes on.

        bars: What progress bars of it are called: searched for in what stands
            before the percentage.  An empty name is ``"^$"``.

        side_bars: The same for bars that tell that it goes on, but not how
            far it is.

        end: Texts that end it.

        end_part: Texts that end one part of it.

        fail: Texts that tell that it failed.

        facts: Texts that tell something about it at any time.

        until: Which later phases end it, if it goes on beside others; by
            default every later one.

        typical_s: How many seconds it usually takes.

        alarming_s: After how many seconds it takes too long.

        silent_s: For how many seconds nothing may be printed in it.

        then: What follows in silence once its bar is at 100 %.  Without it,
            the bar ends the phase.

        then_silent_s: How many seconds of that silence are normal.

        reason: Why it usually stalls.

        remedy: What to do about that.

        then_reason: Why it usually stalls at 100 %.

        then_remedy: What to do about that.

        trains: Whether the job has started, and trains.

        serves: Whether a server is ready once this has ended, and may then
            be silent for ever.

        part_of: The phase inside which it comes again and again, as the
            generation of samples does in every step of training.  It is only
            looked for once that has begun.

        weight: How much its texts tell about the framework: 0 if all jobs
            print them.
    """

    name: str = attrs.field(converter=_name)
    title: str
    what: str = ""
    begin: tuple[re.Pattern[str], ...] = _patterns_field()
    progress: tuple[re.Pattern[str], ...] = _patterns_field()
    bars: tuple[re.Pattern[str], ...] = _patterns_field()
    side_bars: tuple[re.Pattern[str], ...] = _patterns_field()
    end: tuple[re.Pattern[str], ...] = _patterns_field()
    end_part: tuple[re.Pattern[str], ...] = _patterns_field()
    fail: tuple[re.Pattern[str], ...] = _patterns_field()
    facts: tuple[re.Pattern[str], ...] = _patterns_field()
    until: tuple[str, ...] = attrs.field(converter=tuple, default=())
    typical_s: float = 60.0
    alarming_s: float = 1800.0
    silent_s: float = 600.0
    then: str = ""
    then_silent_s: float = 600.0
    reason: str = ""
    remedy: str = ""
    then_reason: str = ""
    then_remedy: str = ""
    trains: bool = False
    serves: bool = False
    part_of: str = ""
    weight: float = 1.0

    def __attrs_post_init__(self) -> None:
        if not (self.begin or self.progress or self.bars):
            msg = "neither begin, progress, nor bars are given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Failure:
    """
    What goes wrong in any phase, or only looks so.

    Attributes:
        name: What it is called in results.

        patterns: Texts that tell it.

        more: Texts that tell more, searched for in that line and, unless it
            tells some itself, in the 20 after it by the same process.  Then
            each is about one actor, and what comes after that about another,
            but for patterns with a group *again*.

        cause: What is wrong.

        summary: One sentence; ``{pid}`` stands for the group of that name,
            and what is in square brackets is left out if a group is missing.

        reason: Why it usually happens.

        remedy: What to do about it.

        confidence: How sure this is.

        harmless: Whether it means nothing.

        fatal: Whether the job ends by it, unless it goes on to train.
    """

    name: str = attrs.field(converter=_name)
    patterns: tuple[re.Pattern[str], ...] = attrs.field(converter=_patterns)
    more: tuple[re.Pattern[str], ...] = _patterns_field()
    cause: Cause = attrs.field(converter=Cause, default=Cause.UNKNOWN)
    summary: str
    reason: str = ""
    remedy: str = ""
    confidence: Confidence = "likely"
    harmless: bool = False
    fatal: bool = False

    def __attrs_post_init__(self) -> None:
        if self.confidence not in get_args(Confidence):
            msg = f"confidence is {' or '.join(get_args(Confidence))}"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Ending:
    """
    How a log tells that its job is over.

    Attributes:
        how: ``"completed"``, ``"failed"``, or ``"killed"``.

        patterns: Texts that tell it.
    """

    how: How
    patterns: tuple[re.Pattern[str], ...] = attrs.field(converter=_patterns)

    def __attrs_post_init__(self) -> None:
        if self.how not in get_args(How):
            msg = f"how is {' or '.join(get_args(How))}"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Book:
    """
    All that is known about one framework.

    Attributes:
        name: What it is called in results and by those who ask.

        title: Its own name.

        kind: ``"orchestrator"``, which may run trainers and engines;
            ``"trainer"``; ``"engine"``; or ``"common"``, which fits any job.
            Who runs others is the framework of a log.

        start: The first texts of a job.  If one of them comes again, the job
            was started again.

        decisive: Texts that only this framework prints.

        actors: Names of Ray actors and tasks that only this framework has, as
            Ray writes them before what they print.

        shared_actors: Names of such that others may have, too: they tell the
            framework only together with something else.

        covers: Which phases of the common book it tells better.

        table: The text after which a table of seconds follows.

        phases: In their order.

        failures: What goes wrong.

        endings: How jobs end.
    """

    name: str = attrs.field(converter=_name)
    title: str
    kind: Kind = "orchestrator"
    start: tuple[re.Pattern[str], ...] = _patterns_field()
    decisive: tuple[re.Pattern[str], ...] = _patterns_field()
    actors: tuple[re.Pattern[str], ...] = _patterns_field()
    shared_actors: tuple[re.Pattern[str], ...] = _patterns_field()
    covers: tuple[str, ...] = attrs.field(converter=tuple, default=())
    table: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    phases: tuple[Phase, ...] = ()
    failures: tuple[Failure, ...] = ()
    endings: tuple[Ending, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            msg = f"kind is {' or '.join(get_args(Kind))}"
            raise ValueError(msg)
        names = [phase.name for phase in self.phases]
        if len(names) != len(set(names)):
            msg = "two phases have one name"
            raise ValueError(msg)
        wholes = {phase.name for phase in self.phases if not phase.part_of}
        for phase in self.phases:
            if phase.part_of and phase.part_of not in wholes:
                msg = f"{phase.name} is part of no phase of this book"
                raise ValueError(msg)
