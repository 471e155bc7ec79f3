"""
Join sidecars and captured stacks into one view per rank.

Diagnoses by stacks alone, and finds the rank that crashed first.
"""

from __future__ import annotations

import math
import socket

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import attrs

from .. import logs
from .._lazy import late_pattern
from .._text import clean
from ..causes import Cause
from ..findings import (
    Activity,
    Diagnosis,
    Evidence,
    Finding,
    Location,
    Missing,
)
from ..flight_recorder import (
    Dumps,
    FlightReport,
    Sidecar,
    exit_sidecars,
    exit_time_s,
    exited_cleanly,
    is_collective_error,
    is_keyboard_interrupt,
    measure_silence_s,
)
from ..identity import same_host
from ..processes import STATE_NAMES
from ..stacks import (
    NO_THREAD,
    ProcessStacks,
    ProcessView,
    StackFrame,
    ThreadStack,
    explain_ranks,
    explain_stacks,
    members_of_job,
    split_jobs,
)
from ..usercode import is_user_code
from .log_evidence import LogEvidence


NO_ACTIVITY = Activity(doing="")
#: States of a process that still exists.
ALIVE_STATES = frozenset({"running", "stopped"})
_NOT_CONNECTED = late_pattern(r"(?i)connection refused|pair closure")


def is_peer_lost_error(error: str) -> bool:
    """
    Return whether a collective failed because another rank was gone.

    Args:
        error: Type and message of the exception.
    """
    return is_collective_error(error) and any(
        pattern.search(error) for pattern in (logs.lost_peer(), _NOT_CONNECTED)
    )


@attrs.frozen(kw_only=True)
class HostView:
    """
    State of one rank on its host.

    Attributes:
        cause: What the rank is doing; ``None`` if no rule matches.

        activity: The same as part of a finding.

        location: The line of user code that the rank is in.

        evidence: The stacks behind it, of the rank and of its children.

        remedy: What to do about it, or ``""``.

        error: The exception that ended the rank, in one line, or ``""``.

        has_exited_cleanly: Whether the rank ended without an error.

        state: Last known state of the process: ``"stopped"``, ``"running"``,
            ``"dead"``; ``""`` if it is not known.

        lock_holder: The rank that holds the file lock this one waits for;
            ``None`` if it waits for none, or no rank holds it.

        torch_call: The function of torch.distributed that the user called and
            the rank is in, or ``""``.

        process: The explanation of its process, if there is a stack.
    """

    rank: int
    cause: Cause | None = None
    activity: Activity = NO_ACTIVITY
    location: Location | None = None
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    error: str = ""
    has_exited_cleanly: bool = False
    state: str = ""
    lock_holder: int | None = None
    torch_call: str = ""
    process: ProcessView | None = None

    @property
    def doing(self) -> str:
        """
        What the rank is doing, as a predicate, or ``""``.
        """
        return self.activity.doing

    @property
    def place(self) -> str:
        """
        The line it is in without folders, or ``""``.
        """
        return self.location.brief if self.location else ""

    @property
    def is_peer_wait(self) -> bool:
        """
        Return whether the rank waits for other ranks.
        """
        return self.cause is not None and self.cause.is_peer_wait


class HostViews(dict[int, HostView]):
    """
    The state of each rank on its host; of other ranks, nothing is known.

    Attributes:
        flight: What the dumps of these ranks show.

        stacks: The stacks of all processes.
    """

    def __init__(
        self, flight: FlightReport, stacks: Sequence[ProcessStacks]
    ) -> None:
        super().__init__()
        self.flight, self.stacks = flight, stacks

    def __missing__(self, rank: int) -> HostView:
        return HostView(rank=rank)


def build_host_views(
    flight: FlightReport, stacks: Iterable[ProcessStacks]
) -> HostViews:
    """
    Join sidecars and stacks by rank.

    Args:
        flight: The sidecars of its dumps map processes to ranks, and hold the
            stacks that ranks took of themselves.

        stacks: Captured from outside; newer, so they win.

    Returns:
        The view of each rank that has a sidecar or a stack.
    """
    sidecars = flight.dumps.sidecars
    known = combine_stacks(flight.dumps, stacks)
    explained = {v.process.rank: v for v in explain_ranks(known)}
    states = {p.rank: p.state for p in known if p.state}
    views = HostViews(flight, known)
    for rank in {*sidecars, *explained, *states}:
        if rank is not None:
            views[rank] = _build_view(
                rank,
                sidecars.get(rank),
                explained.get(rank),
                states.get(rank, ""),
            )
    return views


def combine_stacks(
    dumps: Dumps, stacks: Iterable[ProcessStacks]
) -> tuple[ProcessStacks, ...]:
    """
    Combine captured stacks with those in sidecars.

    Returns:
        The captured stacks, with ranks from the sidecars, and then the stacks
        in the sidecars of all other ranks.
    """
    captured = [
        _assign_rank(p, dumps.sidecars)
        for p in _drop_stale_processes(tuple(stacks), dumps.sidecars)
    ]
    captured_ranks = {p.rank for p in captured}
    from_sidecars = [
        _sidecar_stacks(s)
        for s in dumps.sidecars.values()
        if s.rank not in captured_ranks
    ]
    return (*captured, *from_sidecars)


def all_exited_cleanly(dumps: Dumps) -> bool:
    """
    Return whether every rank of the job ended without an error.
    """
    sidecars = dumps.sidecars.values()
    world_size = max((s.world_size for s in sidecars), default=0)
    return len(sidecars) >= max(world_size, 1) and all(
        map(exited_cleanly, sidecars)
    )


def _process_state(sidecar: Sidecar) -> str:
    """
    Return the state of a process on this machine; empty if it is not known.
    """
    if sidecar.host != socket.gethostname() or not sidecar.pid:
        return ""

    import psutil

    try:
        process = psutil.Process(sidecar.pid)
        # The system reuses PIDs.
        if process.create_time() > sidecar.started + 1:
            return ""
        status = process.status()
    except psutil.Error:
        return ""

    if status in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}:
        return "stopped"

    is_gone = status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return "" if is_gone else "running"


def _drop_stale_processes(
    stacks: Sequence[ProcessStacks], sidecars: Mapping[int, Sidecar]
) -> Iterable[ProcessStacks]:
    """
    Drop processes of an earlier run that carry the number of a rank.
    """
    pids = {(s.host, s.pid) for s in sidecars.values()}
    # PIDs in a container differ from those on the node.
    comparable = {p.host for p in stacks if (p.host, p.pid) in pids}
    for process in stacks:
        sidecar = sidecars.get(-1 if process.rank is None else process.rank)
        if (
            sidecar is None
            or sidecar.host not in comparable
            or (sidecar.host, sidecar.pid) == (process.host, process.pid)
        ):
            yield process


def _assign_rank(
    process: ProcessStacks, sidecars: Mapping[int, Sidecar]
) -> ProcessStacks:
    """
    Set the rank of a process from the sidecar with its PID.
    """
    if process.rank is not None:
        return process

    same_pid = [s for s in sidecars.values() if s.pid == process.pid]
    on_host = [
        s for s in same_pid if same_host(s.host or "", process.host or "")
    ]
    # A PID alone is enough if no other process has it.
    found = on_host or (same_pid if len(same_pid) == 1 else [])
    return attrs.evolve(process, rank=found[0].rank) if found else process


def _build_view(
    rank: int,
    sidecar: Sidecar | None,
    explained: ProcessView | None,
    state_letter: str,
) -> HostView:
    state = STATE_NAMES.get(state_letter, "running" if state_letter else "")
    if not state and sidecar is not None:
        state = _process_state(sidecar)
    view = HostView(
        rank=rank,
        error=sidecar.error if sidecar else "",
        has_exited_cleanly=sidecar is not None and exited_cleanly(sidecar),
        state=state,
    )
    if explained is None or explained.thread is NO_THREAD:
        return view

    is_known = explained.cause is not Cause.UNKNOWN
    place = f"rank {rank}, thread {explained.thread.name}"
    quote = attrs.evolve(explained.stack, location=place)
    return attrs.evolve(
        view,
        cause=explained.cause if is_known else None,
        activity=explained.activity if is_known else NO_ACTIVITY,
        location=explained.location,
        evidence=(quote, *explained.evidence),
        remedy=explained.remedy if is_known else "",
        torch_call=_find_torch_call(explained.thread),
        process=explained,
        lock_holder=explained.lock_holder,
    )


_TORCH_DISTRIBUTED = late_pattern(
    r"(?:^|/)(?:distributed_c10d|torch/distributed/device_mesh)\.py$"
)


def _find_torch_call(thread: ThreadStack) -> str:
    # Frames are innermost first, and the outermost is what the user called.
    calls = (
        frame.name
        for frame in reversed(thread.frames)
        if _TORCH_DISTRIBUTED.search(frame.filename)
    )
    return next(calls, "")


def _sidecar_stacks(sidecar: Sidecar) -> ProcessStacks:
    return ProcessStacks(
        pid=sidecar.pid,
        rank=sidecar.rank,
        host=sidecar.host,
        source=sidecar.path,
        threads=tuple(
            ThreadStack(
                name=name,
                frames=tuple(StackFrame(*frame) for frame in frames),
                is_main=name == "MainThread",
            )
            for name, frames in sidecar.threads
        ),
    )


_UNKNOWN_VERDICT = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="the stacks do not show what the processes wait for",
    confidence="possible",
    remedy="take native stacks too (distdebug stacks --native), and enable "
    "the Flight Recorder",
)


def diagnose_stacks(stacks: Sequence[ProcessStacks]) -> Diagnosis:
    """
    Diagnose a job by stacks alone.

    Args:
        stacks: All captured processes, of any number of jobs.

    Returns:
        The diagnosis; its verdict is ``UNKNOWN`` if no rule matches.
    """
    findings = explain_stacks(stacks)
    verdict = findings[0] if findings else _UNKNOWN_VERDICT
    victims = _find_victims(members_of_job(verdict, stacks), verdict)
    if len(findings) > 1 and not victims and verdict.cause is not Cause.DEAD:
        # No rank waits for another: the first finding is only a suspect.
        verdict = attrs.evolve(
            verdict,
            confidence="possible",
            remedy="enable the Flight Recorder, and take the dumps of all "
            "ranks: they show who waits for whom",
        )
        findings = (verdict, *findings[1:])
    return Diagnosis(verdict=verdict, findings=findings, victims=victims)


def _find_victims(
    stacks: Iterable[ProcessStacks], verdict: Finding
) -> tuple[int, ...]:
    waiting = {
        view.process.rank
        for view in explain_ranks(stacks)
        if view.process.rank is not None and view.cause.is_peer_wait
    }
    return tuple(sorted(waiting.difference(verdict.ranks)))


# Clocks of hosts may differ by this much.
_CLOCK_SKEW_S = 0.5
# An exception may close connections this long before the process ends.
_MAX_TEARDOWN_S = 10.0


def find_first_crash(views: HostViews) -> Finding | None:
    """
    Find the first rank that crashed, not counting consequences.

    Exceptions from failed collectives and lost peers are consequences.

    Returns:
        The finding; ``None`` if no rank crashed on its own.
    """
    dumps = views.flight.dumps
    sidecars = [exit_sidecars(dumps, rank) for rank in dumps.sidecars]
    onset_s = _failure_onset_s(chain.from_iterable(sidecars))
    crashes = sorted(
        (
            s
            for s in map(_first_error, sidecars)
            if s and _is_own_failure(s.error) and exit_time_s(s) <= onset_s
        ),
        key=lambda s: s.written,
    )
    if not crashes:
        return None

    first = crashes[0]
    where = views[first.rank].location
    if where is not None and not is_user_code(where.file):
        where = None  # of a library that handles the error
    place = f" at {where.brief}" if where else ""
    rule = logs.explain_error(first.error)
    cause = rule.cause if rule else Cause.RANK_CRASHED
    is_deadly = cause.ends_process and cause is not Cause.RANK_CRASHED
    return Finding(
        cause=Cause.RANK_CRASHED,
        ranks=(first.rank,),
        summary=f"rank {first.rank} died of {clean(first.error)}{place}",
        detail_cause=cause if is_deadly else None,
        confidence="certain",
        remedy=(rule and rule.remedy)
        or "fix the exception; the other ranks only lost their peer",
        location=where,
        evidence=tuple(map(quote_error, crashes[:4])),
    )


def quote_error(sidecar: Sidecar) -> Evidence:
    """
    Quote the exception that ended a rank.
    """
    return Evidence(
        kind="sidecar",
        source=sidecar.path,
        location=f"rank {sidecar.rank}",
        quote=sidecar.error,
    )


def _first_error(sidecars: Sequence[Sidecar]) -> Sidecar | None:
    return next((s for s in sidecars if s.error), None)


def _failure_onset_s(all_sidecars: Iterable[Sidecar]) -> float:
    """
    Return when calls began to fail, or the job got SIGTERM.

    A crash after this time is a consequence.
    """
    sidecars = list(all_sidecars)
    clocks = {s.host for s in sidecars}
    skew_s = _CLOCK_SKEW_S if len(clocks) > 1 else 0.0
    return skew_s + min(
        (
            s.written + _teardown_s(s)
            for s in sidecars
            if is_collective_error(s.error) or s.reason == "SIGTERM"
        ),
        default=math.inf,
    )


def _teardown_s(sidecar: Sidecar) -> float:
    """
    Return by how much the root cause may be recorded later than this failure.
    """
    is_consequence = (
        is_peer_lost_error(sidecar.error) and sidecar.reason != "SIGTERM"
    )
    return _MAX_TEARDOWN_S if is_consequence else 0.0


def _is_own_failure(error: str) -> bool:
    return bool(error) and not (
        is_collective_error(error) or is_keyboard_interrupt(error)
    )


@attrs.frozen(kw_only=True, eq=False)
class DiagnosisInputs:
    """
    All evidence behind a diagnosis, for the report.

    Attributes:
        paths: The files and folders as the caller named them.

        flight: Analysis of the dumps; None if there are none.

        stacks: The stacks of all processes.

        alive: The ranks that ran when they were captured; stacks in a log may
            be of ranks that died since.

        lost_stacks: What could not be read or captured, and why.

        logs: Results from logs and node facts.
    """

    paths: tuple[str, ...] = ()
    flight: FlightReport | None = None
    stacks: tuple[ProcessStacks, ...] = ()
    alive: frozenset[int] = frozenset()
    lost_stacks: tuple[Missing, ...] = ()
    logs: LogEvidence = attrs.field(factory=LogEvidence)

    @property
    def dumps(self) -> Dumps | None:
        """
        The analyzed dumps; None if there are none.
        """
        return None if self.flight is None else self.flight.dumps

    @property
    def hosts(self) -> frozenset[str]:
        """
        The names of all hosts that the evidence shows.
        """
        dumps = self.dumps
        named = (
            *(x.host for x in dumps or ()),
            *(x.host for x in (dumps.sidecars.values() if dumps else ())),
            *(x.host for x in self.stacks),
            *(x.host for x in self.logs.facts),
        )
        return frozenset(host for host in named if host)

    @property
    def blocked_on(self) -> frozenset[str]:
        """
        What the system calls are about in which threads are blocked.
        """
        threads = (t for process in self.stacks for t in process.threads)
        calls = (thread.system_call for thread in threads)
        return frozenset(call.target for call in calls if call)


def inputs_of(diagnosis: Diagnosis) -> DiagnosisInputs:
    """
    Return the evidence behind a diagnosis.

    Returns:
        The inputs; empty if the diagnosis comes from another process.
    """
    inputs = diagnosis.seen
    return inputs if isinstance(inputs, DiagnosisInputs) else DiagnosisInputs()


def explain_silence(diagnosis: Diagnosis, views: HostViews) -> Diagnosis:
    """
    Diagnose by stacks a job that has recorded no call for a long time.

    Args:
        diagnosis: By the dumps: healthy, or slow.

        views: State of each rank on its host.

    Returns:
        The diagnosis by stacks, unless it shows only a pause that healthy jobs
        make too; then *diagnosis*, as only possible.
    """
    dumps = views.flight.dumps
    seconds = measure_silence_s(dumps)
    if not seconds:
        return diagnosis

    is_waiting = any(v.is_peer_wait for v in views.values())
    note = f"no call is on record for {seconds:.0f} s, longer than ever before"
    by_stacks = diagnose_stacks(rank_processes(dumps, views.stacks))
    verdict = by_stacks.verdict
    # What healthy jobs do between two calls, sometimes for long.
    is_pause = (
        verdict.cause.is_slow
        or verdict.cause.is_computing
        or verdict.cause in {Cause.GPU_SYNC_WAIT, Cause.SLEEPING}
    )
    is_hung = verdict.confidence != "possible" and not is_pause
    if verdict.cause.is_fine or not by_stacks.findings:
        return _weaken_healthy_verdict(diagnosis, note)
    if not (is_hung or is_waiting):
        return _weaken_healthy_verdict(diagnosis, note, verdict)

    verdict = verdict.with_clause(
        "and",
        note,
        # Without a waiting rank, this may be a long pause.
        confidence=verdict.confidence
        if is_waiting or verdict.cause is Cause.DEAD
        else "possible",
    )
    return attrs.evolve(
        diagnosis,
        verdict=verdict,
        findings=(verdict, *by_stacks.findings[1:]),
        victims=by_stacks.victims,
    )


def _weaken_healthy_verdict(
    diagnosis: Diagnosis, note: str, pause: Finding | None = None
) -> Diagnosis:
    """
    Lower a healthy verdict to possible, and say why.

    Args:
        pause: What the ranks do meanwhile.
    """
    if diagnosis.verdict.cause.is_absence:
        return diagnosis

    healthy = diagnosis.verdict.with_clause(
        "but",
        note,
        confidence="possible",
        remedy="if it hangs, look at its stacks (distdebug stacks): not "
        "all calls are recorded on Gloo",
    )
    if pause is not None:
        healthy = healthy.with_clause("and", pause)
    return attrs.evolve(diagnosis, verdict=healthy)


def part_jobs(
    dumps: Dumps, stacks: Sequence[ProcessStacks]
) -> tuple[tuple[ProcessStacks, ...], tuple[ProcessStacks, ...]]:
    """
    Part the processes of the job that wrote the dumps from those of other jobs.

    Returns:
        Both; all are of the same job if no sidecar names one of them, or if
        nothing names their jobs.
    """
    recorded = {(s.host, s.pid) for s in dumps.sidecars.values()}
    jobs = split_jobs(stacks).values()
    others = [
        members
        for members in jobs
        if any(p.job for p in members)
        and recorded.isdisjoint((p.host, p.pid) for p in members)
    ]
    foreign = {id(p) for members in others for p in members}
    own = tuple(p for p in stacks if id(p) not in foreign)
    if recorded.isdisjoint((p.host, p.pid) for p in own):
        return tuple(stacks), ()
    return own, tuple(p for p in stacks if id(p) in foreign)


def rank_processes(
    dumps: Dumps, stacks: Sequence[ProcessStacks]
) -> Sequence[ProcessStacks]:
    """
    Return the ranks and their children, if sidecars name any; else all.
    """
    pids = {(s.host, s.pid) for s in dumps.sidecars.values()}
    own = [
        p
        for p in stacks
        if not pids.isdisjoint({(p.host, p.pid), (p.host, p.parent_pid)})
    ]
    return own or stacks
