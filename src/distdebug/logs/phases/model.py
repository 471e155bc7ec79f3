"""
Data model and display of detected phases: PhaseReport and PhaseState.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from ..._render import Block, Entries, Entry, Lines, Shown, Table
from ..._text import clean, time_text
from ...findings import Finding, Missing
from ..lines import LogLine
from .framework_rules import Outcome
from .progress_bars import Progress


PhaseStatus = Literal["not begun", "begun", "done", "failed"]


@attrs.frozen(kw_only=True)
class PhaseState:
    """
    The state of one phase of a job.

    Times are seconds since the epoch, of the clock that the log shows;
    ``None`` where it shows none.

    Attributes:
        name: The name in the rules of its framework.

        title: The name in sentences.

        framework: The framework of the phase; for an engine inside a trainer,
            the engine.

        state: ``"not begun"``, ``"begun"``, ``"done"``, or ``"failed"``, as
            far as the log shows.

        begun_at: When it began.

        ended_at: When it ended.

        last_at: The time of its last line.

        progress: The progress of the slowest process at work.

        parts: How many of its parts are done, such as ranks or engines.

        of: How many parts it has, if the log shows it.

        facts: Facts from the log, such as ``{"have": "8", "want": "16"}`` for
            GPUs.

        line: The last line that is about it.

        what: What happens in it.

        typical_s: How many seconds it usually takes.

        trains: Whether it is training itself, so that the start-up is over.

        part_of: The phase inside which it comes again and again, or ``""``.
    """

    name: str
    title: str
    framework: str
    state: PhaseStatus = "not begun"
    begun_at: float | None = None
    ended_at: float | None = None
    last_at: float | None = None
    progress: Progress | None = None
    parts: int = 0
    of: int | None = None
    facts: Mapping[str, str] = attrs.field(factory=dict)
    line: LogLine | None = None
    what: str = ""
    typical_s: float | None = None
    trains: bool = False
    part_of: str = ""

    @property
    def percent(self) -> float | None:
        """
        Return the progress in percent, if known.
        """
        return self.progress.percent if self.progress else None


@attrs.frozen(kw_only=True)
class Harmless:
    """
    Lines that look bad and mean nothing.

    Attributes:
        name: The name of the rule.

        summary: What the lines say.

        why: Why it does not matter.

        count: The number of lines, at least.

        line: The first of them.
    """

    name: str
    summary: str
    why: str
    count: int
    line: LogLine


@attrs.frozen(kw_only=True)
class PhaseReport(Shown):
    """
    The current phase of a job, and whether it takes too long.

    Attributes:
        framework: The framework of the log, or ``None`` if unknown.

        title: The framework's own name.

        phases: Those of the framework in their order, then those seen of
            engines inside it and of torch.

        current: The deepest phase that is not done; if all that began are
            done, the last of them; ``None`` if none began.

        inner: The phase of an engine, a trainer, or torch inside the current
            phase; while the job trains, the part of a step, such as the
            generation of samples.

        last_line: The last line of all.

        last_time: The time of the last line, as the text shows.

        silent_s: For how many seconds nothing was printed; ``None`` if
            unknown.

        idle_s: For how many seconds no step was made, by the clock of the
            logs, which go on with other lines; ``None`` if unknown.

        behind: The last lines of the few ranks that stopped elsewhere than
            the others, by rank, where each rank has a log.

        ended: How the job ended, or ``None`` while nothing shows that it has.

        is_normal: Whether nothing is wrong; ``None`` if unknown, as without a
            time.

        verdict: One sentence.

        findings: What is wrong.

        harmless: What only looks wrong.

        timings: Seconds by name, where the job prints a table of them.

        attempt: The number of the attempt: 1, or how often the job was started
            in this log.

        missing: What could not be read, and why.
    """

    framework: str | None = None
    title: str = ""
    phases: tuple[PhaseState, ...] = ()
    current: PhaseState | None = None
    inner: PhaseState | None = None
    last_line: LogLine | None = None
    last_time: float | None = None
    silent_s: float | None = None
    idle_s: float | None = None
    behind: Mapping[int, LogLine] = attrs.field(factory=dict)
    ended: Outcome | None = None
    is_normal: bool | None = None
    verdict: str = ""
    findings: tuple[Finding, ...] = ()
    harmless: tuple[Harmless, ...] = ()
    timings: Mapping[str, float] = attrs.field(factory=dict)
    attempt: int = 1
    missing: tuple[Missing, ...] = ()

    @property
    def progress(self) -> Progress | None:
        """
        Return the progress of the current phase, or of what runs inside it.
        """
        phases = [x for x in (self.current, self.inner) if x is not None]
        known = [x.progress for x in phases if x.progress is not None]
        # Prefer what goes on to what is full or has no total.
        return min(
            known, key=lambda x: (x.total is None, x.is_full), default=None
        )

    @property
    def percent(self) -> float | None:
        """
        Return that progress in percent, if known.
        """
        return self.progress.percent if self.progress else None

    @property
    def rate(self) -> float | None:
        """
        Return how much is done per second, in the unit of the progress.
        """
        return self.progress.rate if self.progress else None

    @property
    def left_s(self) -> float | None:
        """
        Return how many seconds of the current phase remain, if known.
        """
        return self.progress.left_s if self.progress else None

    def phase(self, name: str) -> PhaseState | None:
        """
        Find a phase by name.

        Args:
            name: The name; with its framework, as in ``"vllm/kv_cache"``, if
                several have one of that name.

        Returns:
            The first phase of that name, or ``None``.
        """
        return next(
            (
                phase
                for phase in self.phases
                if name in {phase.name, f"{phase.framework}/{phase.name}"}
            ),
            None,
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return the report as plain data, as for JSON.
        """
        return {
            "framework": self.framework,
            "current": self.current.name if self.current else None,
            "inner": self.inner.name if self.inner else None,
            "percent": self.percent,
            "rate": self.rate,
            "left_s": self.left_s,
            "last_line": self.last_line.text if self.last_line else None,
            "last_time": self.last_time,
            "silent_s": self.silent_s,
            "idle_s": self.idle_s,
            "ended": self.ended,
            "is_normal": self.is_normal,
            "verdict": self.verdict,
            "attempt": self.attempt,
            "timings": dict(self.timings),
            "phases": self.to_records(),
            "findings": [finding.to_dict() for finding in self.findings],
            "harmless": [
                {"name": h.name, "summary": h.summary, "count": h.count}
                for h in self.harmless
            ],
            "missing": [attrs.asdict(one) for one in self.missing],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per phase, for a data frame.
        """
        shown = [
            *("framework", "name", "title", "state", "begun_at", "ended_at"),
            *("percent", "parts", "of"),
        ]
        return [
            {name: getattr(phase, name) for name in shown}
            | {"facts": dict(phase.facts)}
            for phase in self.phases
        ]

    def _blocks_(self) -> Iterator[Block]:

        yield Entries([Entry(self.verdict)])
        rows = [_row(phase) for phase in self.phases]
        if rows:
            headers = ("phase", "state", "progress", "took")
            yield Table(headers, rows, len(rows))
        entries = [_entry(finding) for finding in self.findings]
        yield Entries(entries, len(entries))
        harmless = [f"harmless: {clean(x.summary)}" for x in self.harmless]
        yield Lines(harmless, len(harmless))
        if self.last_line:
            yield f"last line: {clean(self.last_line.text)}"


def _entry(finding: Finding) -> Entry:
    facts = [("try", finding.remedy)] if finding.remedy else []
    return Entry(f"{finding.cause}: {finding.summary}", facts)


def _row(phase: PhaseState) -> tuple[str, str, str, str]:
    took = ""
    if phase.begun_at is not None and phase.ended_at is not None:
        took = time_text(max(phase.ended_at - phase.begun_at, 0.0))
    progress = str(phase.progress) if phase.progress else ""
    if not progress and phase.of:
        progress = f"{phase.parts} of {phase.of}"
    return f"{phase.framework}: {phase.name}", phase.state, progress, took
