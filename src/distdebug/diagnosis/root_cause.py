"""
Diagnose a job from dumps, stacks, logs, and node facts.
"""

from __future__ import annotations

import os
import re

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from .._io import FileWalk, is_folder, is_within, remembered_walks
from .._lazy import late_pattern
from .._text import clean, list_text
from ..causes import Cause
from ..errors import NoDumpsError
from ..findings import Diagnosis, Missing
from ..flight_recorder import (
    Dumps,
    FlightReport,
    Sidecar,
    analyze_dumps,
    check_readable,
    parse_dump_name,
    read_dumps,
)
from ..stacks import (
    ProcessStacks,
    explain_stacks,
    is_capture_file,
    is_stack_file,
    members_of_job,
    read_stack_files,
)
from .known_bugs import note_known_bugs
from .log_evidence import LogEvidence, is_source_file, read_logs
from .order import SILENT_REMEDY, diagnose_logs, join_logs
from .rank_state import (
    DiagnosisInputs,
    all_exited_cleanly,
    build_host_views,
    combine_stacks,
    diagnose_stacks,
    part_jobs,
    rank_processes,
)
from .refine import recheck_running_job, refine


if TYPE_CHECKING:
    from ..capture import Capture
    from ..logs import CollectiveLogs, PhaseReport, ScanReport

    #: What :func:`diagnose` takes: a path, or the result of an earlier step.
    Source: TypeAlias = (
        str
        | os.PathLike[str]
        | Dumps
        | FlightReport
        | Capture
        | ProcessStacks
        | ScanReport
        | CollectiveLogs
        | PhaseReport
    )

# People paste stacks into these files, or the job prints them there.
_LOG_SUFFIXES = {".err", ".log", ".out", ".txt"}
# A running job has none of these.
_STUCK_CAUSES = {
    Cause.RANK_NOT_ARRIVED,
    Cause.RANK_NOT_STARTED,
    Cause.RANK_BLOCKED_IN_LAUNCH,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    Cause.GROUP_ORDER_DEADLOCK,
    Cause.P2P_DEADLOCK,
}
# No recorded call is stuck.
_RUNNING_CAUSES = {Cause.HEALTHY, *(c for c in Cause if c.is_lag)}
_REMEDY = (
    "name a folder with files of at least one of these kinds; how to get them "
    "from a job that runs: distdebug snapshot --help"
)
# A torch build for GPUs has a recorder, but it does not record Gloo calls.
_NO_CALLS = Missing(
    what="calls",
    reason="the dumps hold none: none was made yet, or only such as Gloo does "
    "not record (send, recv, monitored_barrier; before torch 2.8, all)",
)


def diagnose(
    *sources: Source | Iterable[Source],
    known_bugs: Iterable[str | os.PathLike[str]] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Diagnosis:
    """
    Find the root cause of a stuck, slow, or dead job.

    Example::

        diagnosis = distdebug.diagnose("dumps", "logs/")
        print(diagnosis)
        print(diagnosis.verdict.cause, diagnosis.verdict.ranks)

    Args:
        sources: Files and folders with all that was collected: Flight Recorder
            dumps, sidecars, stacks, Ray sessions, logs, snapshots; or what
            earlier steps returned: dumps or their analysis, a capture, stacks,
            a scan of logs, records about collectives, the phase of a job; or
            lists of these.  A result stands for its kind: where dumps are
            given, none are looked for in the folders.

        known_bugs: Further files of published bugs, beside those that come
            with this package.

        progress: Called with the number of files read, and the number of all
            files.

    Returns:
        The diagnosis; its text begins with the verdict.

    Raises:
        NoDumpsError: The sources hold no evidence, or none that can be read.

        RulesError: A file of known bugs cannot be used.

        TypeError: One of them is neither a path nor such a result.
    """
    given = _sort_sources(sources)
    # Each kind of evidence is looked for in the same folders.
    with remembered_walks():
        inputs = _read_all(given, progress)
        unread = tuple(_find_unread(inputs))
    joined = _join_evidence(inputs)
    joined = attrs.evolve(
        joined, missing=(*joined.missing, *unread), seen=inputs
    )
    return note_known_bugs(joined, inputs, known_bugs)


def _read_all(
    given: _Given, progress: Callable[[int, int], object] | None
) -> DiagnosisInputs:
    """
    Read what is not given, and analyze the dumps.

    Raises:
        NoDumpsError: There is no evidence, or none that can be read.
    """
    paths = tuple(given.paths)
    dumps, no_dumps = given.dumps, NoDumpsError("")
    if dumps is None and (paths or not given.is_any):
        try:
            dumps = read_dumps(paths, progress=progress)
        except NoDumpsError as exc:
            no_dumps = exc
    if not given.has_stacks:
        given.read_stacks()
    sidecars = () if dumps is None else dumps.sidecars.values()
    logs = read_logs(
        paths,
        ranks=_ranks_by_process([*sidecars, *given.stacks]),
        since=min((s.started for s in sidecars), default=None),
        known=given.logs,
    )
    if dumps is None and not given.stacks and not logs.is_any:
        raise _no_evidence_error(paths, no_dumps, logs)
    if dumps is not None and not (given.stacks or logs.is_any):
        check_readable(dumps)
    flight = given.flight
    if flight is None and dumps is not None:
        flight = analyze_dumps(dumps)
    return DiagnosisInputs(
        paths=tuple(os.fspath(path) for path in paths),
        flight=flight,
        stacks=tuple(_with_rank(p, logs) for p in given.stacks),
        alive=frozenset(r for r in given.alive if r is not None),
        lost_stacks=tuple(_lost_stacks(given.lost_stacks, dumps, logs)),
        logs=logs,
    )


def _with_rank(process: ProcessStacks, logs: LogEvidence) -> ProcessStacks:
    """
    Return a process with the rank that logs show, if it names none itself.
    """
    if process.rank is not None or logs.processes is None:
        return process
    rank = logs.processes.rank_of(process.pid, [process.host or ""])
    return process if rank is None else attrs.evolve(process, rank=rank)


def _lost_stacks(
    lost: Iterable[Missing], dumps: Dumps | None, logs: LogEvidence
) -> Iterator[Missing]:
    known = {(m.source, m.reason) for m in logs.missing}
    # Neither a log nor a list of calls need hold a stack.
    others = {*logs.files, *(_dump_paths(dumps) if dumps is not None else ())}
    for m in lost:
        if (m.source, m.reason) not in known and m.source not in others:
            yield m


def _dump_paths(dumps: Dumps) -> Iterator[str]:
    """
    Yield the files that the dumps are from, and those that could not be read.
    """
    yield from (dump.path for dump in (*dumps, *dumps.inspector.values()))
    yield from (m.source for m in dumps.problems if m.source)


# What snapshots write beside evidence, and hidden files.
_OWN_FILE = late_pattern(
    r"(?:manifest|node|workers)\.json|REPORT\.txt|.+\.sidecar\.json"
    r"|.+\.html?|\..*",
    re.IGNORECASE,
)
_NO_JOB_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_CORE_DUMP = late_pattern(r"core(?:\.[\w.-]+)?|.+\.core")
_MOST_FILES = 100_000
_MOST_NAMES = 4


def _find_unread(inputs: DiagnosisInputs) -> Iterator[Missing]:
    """
    Yield a note for each path with files that no reader took for evidence.

    Of a folder, these are the files that lie beside evidence, and that no other
    note names.
    """
    logs, dumps = inputs.logs, inputs.dumps
    read = {*logs.files, *(p.source for p in inputs.stacks)}
    read |= {m.source or "" for m in (*inputs.lost_stacks, *logs.missing)}
    read.update(_dump_paths(dumps) if dumps is not None else ())
    # Without looking at them again: all walks begin at the same paths.
    known = {os.path.abspath(path) for path in read if path}  # noqa: PTH100 of thousands
    # Data of the job lie elsewhere.
    folders = {os.path.dirname(path) for path in known}  # noqa: PTH120 of thousands
    unread: dict[str, list[str]] = {}
    for file in FileWalk(
        inputs.paths, is_wanted=_may_be_of_job, max_files=_MOST_FILES
    ):
        path = os.path.abspath(file.path)  # noqa: PTH100 see above
        is_near = file.path == file.root or (
            os.path.dirname(path) in folders  # noqa: PTH120 see above
        )
        if (
            is_near
            and path not in known
            # Only these few are resolved, which asks the server again.
            and not is_within(os.path.realpath(path), *logs.sessions)
        ):
            unread.setdefault(file.root, []).append(file.path)
    for root, files in unread.items():
        yield Missing(what="file", reason=_reason(root, files), source=root)


def _may_be_of_job(entry: os.DirEntry[str], _: object) -> bool:
    name = entry.name
    if entry.is_dir():
        return name not in _NO_JOB_FOLDERS and name[0] != "."
    # The reader of dumps says why a dump was not read.
    is_tried = is_stack_file(entry.path) or parse_dump_name(name).is_dump_like
    return not (is_tried or is_source_file(name) or _OWN_FILE.fullmatch(name))


def _reason(root: str, files: Sequence[str]) -> str:
    if not is_folder(root):
        return _reason_of_one(root)

    cores = [x for x in files if _is_core_dump(x)]
    rest = [x for x in files if not _is_core_dump(x)]
    parts = []
    if rest:
        is_one = len(rest) == 1
        verb, them = (
            ("file was", "it is") if is_one else ("files were", "they are")
        )
        parts.append(
            f"{len(rest):,} {verb} not read ({_names(rest, root)}): {them} "
            "no evidence by name and first bytes; name a log itself to have "
            "it read"
        )
    if cores:
        parts.append(f"{_names(cores, root)}: {_CORE_HINT}")
    return "; ".join(parts)


_CORE_HINT = "a core dump is for a debugger: gdb, or pystack core"


def _reason_of_one(path: str) -> str:
    if _is_core_dump(path):
        return _CORE_HINT
    return "it is no dump, stack, or log by its name and first bytes"


def _is_core_dump(path: str) -> bool:
    return _CORE_DUMP.fullmatch(os.path.basename(path)) is not None  # noqa: PTH119 of thousands


def _names(files: Sequence[str], root: str) -> str:
    names = (os.path.relpath(path, root) for path in files)
    return list_text(names, most=_MOST_NAMES)


@attrs.define(kw_only=True)
class _Given:
    """
    The sources of a diagnosis by their kind.

    Attributes:
        has_stacks: Whether there are any, or the result that should hold them.

        alive: The ranks that ran when they were captured.

        lost_stacks: What could not be read or captured, and why.

        logs: Results from logs, by their field of :class:`LogEvidence`.
    """

    paths: list[str | os.PathLike[str]] = attrs.field(factory=list)
    flight: FlightReport | None = None
    dumps: Dumps | None = None
    has_stacks: bool = False
    stacks: list[ProcessStacks] = attrs.field(factory=list)
    alive: set[int | None] = attrs.field(factory=set)
    lost_stacks: list[Missing] = attrs.field(factory=list)
    logs: dict[str, Any] = attrs.field(factory=dict)

    @property
    def is_any(self) -> bool:
        """
        Return whether there is the result of an earlier step.
        """
        return bool(self.dumps is not None or self.has_stacks or self.logs)

    def read_stacks(self) -> None:
        """
        Read the stacks in the files that are named.
        """
        # A string of several lines is taken for stacks, not for a path.
        paths = (p for p in map(Path, self.paths) if _may_hold_stacks(p))
        found = read_stack_files(paths)
        self.add_stacks(found.stacks, found.missing)

    def add_stacks(
        self, stacks: Sequence[ProcessStacks], lost: Iterable[Missing] = ()
    ) -> None:
        """
        Add stacks; those in the file of a capture are of ranks that run.
        """
        self.has_stacks = True
        self.stacks += stacks
        self.lost_stacks += lost
        self.alive |= {
            p.rank for p in stacks if is_capture_file(Path(p.source).name)
        }

    def add_result(self, source: object) -> None:
        """
        Add the result of an earlier step.

        Raises:
            TypeError: It is none.
        """
        # Whoever names files does not wait for these rooms to load.
        from ..capture import Capture
        from ..logs import CollectiveLogs, PhaseReport, ScanReport

        match source:
            case FlightReport():
                self.flight, self.dumps = source, source.dumps
            case Dumps():
                self.flight, self.dumps = None, source
            case Capture():
                self.add_stacks(source.stacks, source.missing)
                self.alive |= {p.rank for p in source.stacks}
            case ProcessStacks():
                self.add_stacks([source])
            case ScanReport():
                self.logs["scan"] = source
            case CollectiveLogs():
                self.logs["collectives"] = source
            case PhaseReport():
                self.logs["phase"] = source
            case _:
                msg = (
                    "a source is a path or the result of an earlier step, not "
                    f"{type(source).__name__}"
                )
                raise TypeError(msg)


def _sort_sources(sources: Iterable[object]) -> _Given:
    given = _Given()
    left = [*sources][::-1]
    while left:
        source = left.pop()
        if isinstance(source, str | os.PathLike):
            given.paths.append(source)
        elif isinstance(source, list | tuple | set | frozenset):
            left += [*source][::-1]
        else:
            given.add_result(source)
    return given


def _no_evidence_error(
    paths: Sequence[str | os.PathLike[str]],
    no_dumps: NoDumpsError,
    logs: LogEvidence,
) -> NoDumpsError:
    """
    Return the error that lists which kinds of evidence were searched.
    """
    if not paths and not str(no_dumps):
        msg = "what was given holds no dump, no stack, and no error of a log"
        return NoDumpsError(msg, remedy=_REMEDY)
    if not any(map(os.path.lexists, paths)):
        return no_dumps

    msg = f"{no_dumps}; nor are there stacks, logs, or sessions of Ray"
    remedy = _REMEDY
    if logs.files:
        msg = (
            f"there is nothing to judge in {list_text(logs.files, most=3)}: no "
            "error, no call of torch.distributed, no phase of a known framework"
        )
        remedy = SILENT_REMEDY
    if reasons := "; ".join(f"{m.source}: {m.reason}" for m in logs.missing):
        msg += f" ({clean(reasons, limit=400)})"
    return NoDumpsError(msg, remedy=remedy)


def _join_evidence(inputs: DiagnosisInputs) -> Diagnosis:
    """
    Join the diagnoses of all kinds of evidence.
    """
    flight, logs = inputs.flight, inputs.logs
    if flight is None and not inputs.stacks:
        return diagnose_logs(logs)
    if flight is not None:
        return join_logs(
            _diagnose_dumps(flight, inputs),
            logs,
            alive=inputs.alive,
            has_exited_cleanly=all_exited_cleanly(flight.dumps),
        )

    has_logs = len(logs.files) > len(logs.facts)
    kinds = "stacks and logs" if has_logs else "stacks only"
    reason = f"no Flight Recorder dumps; this verdict is based on {kinds}"
    missing = (Missing(what="dump", reason=reason), *inputs.lost_stacks)
    by_stacks = attrs.evolve(diagnose_stacks(inputs.stacks), missing=missing)
    return join_logs(by_stacks, logs, alive=inputs.alive)


def _ranks_by_process(
    known: Iterable[Sidecar | ProcessStacks],
) -> dict[tuple[str, int], int]:
    """
    Map processes, by host and PID, to ranks; the last one counts.
    """
    ranked = ((x, x.rank) for x in known)
    return {(x.host or "", x.pid): r for x, r in ranked if r is not None}


def _diagnose_dumps(
    flight: FlightReport, inputs: DiagnosisInputs
) -> Diagnosis:
    """
    Diagnose the job that wrote the dumps, and then others on its nodes.
    """
    own, others = part_jobs(flight.dumps, inputs.stacks)
    if not others:
        return _diagnose_recorded(flight, inputs)
    alive = inputs.alive & {p.rank for p in own}
    inputs = attrs.evolve(inputs, stacks=own, alive=alive)
    diagnosis = _diagnose_recorded(flight, inputs)
    everybody = (*own, *others)
    known = {id(p) for p in others}
    stuck = tuple(
        f
        for f in explain_stacks(everybody)
        if not f.cause.is_fine
        and known.issuperset(map(id, members_of_job(f, everybody)))
    )
    sure = [f for f in stuck if f.confidence != "possible"]
    if sure and diagnosis.verdict.cause.is_fine:
        rest = (f for f in stuck if f is not sure[0])
        return attrs.evolve(
            diagnosis,
            verdict=sure[0],
            findings=(sure[0], *rest, diagnosis.verdict),
        )
    return attrs.evolve(diagnosis, findings=(*diagnosis.findings, *stuck))


def _diagnose_recorded(
    flight: FlightReport, inputs: DiagnosisInputs
) -> Diagnosis:
    dumps = flight.dumps
    diagnosis = attrs.evolve(flight, alive=inputs.alive).to_diagnosis()
    if _has_no_calls(dumps):
        # Sidecars hold stacks even if the recorder holds no calls.
        stacks = combine_stacks(dumps, inputs.stacks)
        is_open = diagnosis.verdict.cause is Cause.UNKNOWN
        has_any = is_open and any(p.threads for p in stacks)
        if has_any or (inputs.stacks and not len(dumps)):
            unread = (*diagnosis.missing, *inputs.lost_stacks)
            lost = (_NO_CALLS, *unread) if len(dumps) else unread
            by_stacks = attrs.evolve(diagnose_stacks(stacks), missing=lost)
            return _add_delays(by_stacks, flight)

    views = build_host_views(flight, inputs.stacks)
    diagnosis = refine(diagnosis, views)
    is_running = (
        diagnosis.verdict.cause in _RUNNING_CAUSES or not diagnosis.findings
    )
    if is_running and not all_exited_cleanly(dumps):
        diagnosis = recheck_running_job(diagnosis, views)
    # Other jobs of the node may move.
    own = rank_processes(dumps, inputs.stacks)
    diagnosis = _note_progress(diagnosis, own)
    return attrs.evolve(
        diagnosis, missing=(*diagnosis.missing, *inputs.lost_stacks)
    )


def _add_delays(diagnosis: Diagnosis, flight: FlightReport) -> Diagnosis:
    """
    Add which ranks are slow by NCCL Inspector, where stacks are the verdict.
    """
    delays = flight.findings if flight.dumps.inspector else ()
    findings = (*diagnosis.findings, *delays)
    if delays and diagnosis.verdict.cause.is_fine:
        findings = (*delays, *diagnosis.findings)
        diagnosis = attrs.evolve(diagnosis, verdict=delays[0])
    return attrs.evolve(diagnosis, findings=findings)


def _has_no_calls(dumps: Dumps) -> bool:
    """
    Return whether no call is recorded and the job did not exit cleanly.
    """
    has_calls = any(len(dump.entries) for dump in dumps)
    return not (has_calls or all_exited_cleanly(dumps))


def _may_hold_stacks(path: Path) -> bool:
    is_log = path.suffix in _LOG_SUFFIXES
    return is_folder(path) or is_log or is_stack_file(path)


# So long after a hang began, stacks may still have moved.
_SHORT_WAIT_S = 5.0


def _note_progress(
    diagnosis: Diagnosis, stacks: Sequence[ProcessStacks]
) -> Diagnosis:
    """
    Lower the confidence if dumps show a hang but stacks show progress.

    A wait that has just begun is none then.
    """
    is_stuck = diagnosis.verdict.cause in _STUCK_CAUSES
    # Rules take a tenth of a second to load.
    findings = explain_stacks(stacks) if is_stuck and stacks else ()
    moving = [f for f in findings if f.cause is Cause.PROGRESSING]
    if not moving:
        return diagnosis

    verdict = attrs.evolve(diagnosis.verdict, confidence="possible")
    others = [f for f in diagnosis.findings if f != diagnosis.verdict]
    waited_s = verdict.waited_s
    if waited_s is not None and waited_s < _SHORT_WAIT_S:
        first, *more = moving
        findings = (first, *more, verdict, *others)
        return attrs.evolve(diagnosis, verdict=first, findings=findings)
    verdict = verdict.with_clause("but", moving[0], behind=moving[0].evidence)
    return attrs.evolve(
        diagnosis, verdict=verdict, findings=(verdict, *others, *moving)
    )
