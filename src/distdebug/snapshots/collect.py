"""
What is there to take from a job on this node, while it still hangs?

Everything that dies with the job: what the ranks recorded, what they do now,
what the node tells.  Nobody is stopped for it, unless native stacks are asked
for.
"""

from __future__ import annotations

import os
import time

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from .._in_time import in_time
from .._io import output_to, write_whole
from .._render import Block, Shown
from .._text import clean
from ..capture import (
    Check,
    Native,
    capture_node,
    check_blocks,
    check_capture,
    make_folder,
    write_capture,
)
from ..diagnosis import diagnose
from ..findings import (
    Cause,
    Diagnosis,
    Finding,
    Missing,
    diagnosis_blocks,
    missing_block,
)
from ..nodes import Engine, NodeResult, run_on_nodes
from ..processes import Worker
from .bundle import (
    Manifest,
    NodeEntry,
    NodeStatus,
    lost_part,
    merge_manifests,
    new_bundle,
    node_name,
    parse_manifest,
    write_manifest,
)
from .debug_server import keep_debug_server
from .node import (
    MOST_BYTES,
    ask_ranks,
    find_dump_dirs,
    keep_dumps,
    keep_facts,
    keep_tails,
    own_logs,
)
from .options import Wanted


Tell = Callable[[str, int, int], object]
Source = Callable[[], tuple[Iterable[Path], Iterable[Missing]]]

# A rank that can answer does so at once.
_ANSWER_S = 10.0
_FACTS_S = 25.0
_LEAST_LOGS_S = 5.0
# How much of the time stacks may take: they take longest, and the rest has to
# fit behind them.
_SHARE_OF_STACKS = 0.7
# How much of the rest a debug server may take.
_SHARE_OF_SERVER = 0.8


@attrs.frozen
class Collected:
    """
    What was taken on one node.

    Attributes:
        manifest: What there is, and what is not.

        findings: What the stacks alone tell.
    """

    manifest: Manifest
    findings: tuple[Finding, ...]


@attrs.define
class _Taking:
    """
    What was taken so far.
    """

    folder: Path
    deadline: float
    tell: Tell
    files: list[Path] = attrs.Factory(list)
    missing: list[Missing] = attrs.Factory(list)
    workers: tuple[Worker, ...] = ()
    is_seen: bool = False
    findings: tuple[Finding, ...] = ()
    # How much of dumps may still be kept.
    room: int = MOST_BYTES

    @property
    def left_s(self) -> float:
        """
        How much time is left, in seconds.
        """
        return max(self.deadline - time.monotonic(), 0.0)

    @property
    def pids(self) -> tuple[int, ...]:
        """
        The processes that were looked at.
        """
        return tuple(worker.pid for worker in self.workers)

    def take(self, what: str, source: Source) -> int:
        """
        Take from one source, which may fail alone; and count its files.
        """
        self.tell(what, 0, 1)
        try:
            files, missing = source()
        except Exception as exc:  # noqa: BLE001 the others are worth it
            self.missing.append(Missing(what=what, reason=reason_of(exc)))
            return 0

        before = len(self.files)
        self.files += files
        self.missing += missing
        self.tell(what, 1, 1)
        return len(self.files) - before


def collect_node(
    folder: Path,
    wanted: Wanted,
    *,
    host: str,
    is_one_of_many: bool = False,
    tell: Tell = lambda _stage, _done, _total: None,
) -> Collected:
    """
    Take everything worth having about the job on this node.

    Each part fails alone, and the manifest tells which did.

    Args:
        folder: Where to; it is there already.

        wanted: What to take.

        host: The name of this node.

        is_one_of_many: Whether other nodes take part, whose ranks may put
            their dumps into the same folder: then only those of this node
            are taken, and the manifest is put beside them.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        What was taken.
    """
    start, created = time.monotonic(), time.time()
    taking = _Taking(folder, start + wanted.timeout_s, tell)
    taking.take("stacks", lambda: _stacks(taking, wanted))
    _take_dumps(taking, wanted, is_one_of_many=is_one_of_many)
    if wanted.debug_server:
        _ask_server(taking, wanted.debug_server)
    facts_s = min(_FACTS_S, taking.left_s)
    facts = folder / "node.json"
    taking.take("node", lambda: keep_facts(taking.pids, facts, facts_s))
    taking.take("logs", lambda: _logs(taking, wanted))

    manifest = _manifest(taking, host, created, time.monotonic() - start)
    if is_one_of_many:
        manifest = keep_manifest(folder, manifest)
    return Collected(manifest, taking.findings)


def _logs(
    taking: _Taking, wanted: Wanted
) -> tuple[Iterable[Path], Iterable[Missing]]:
    """
    The logs that were named, and what the workers print into files.
    """

    def keep() -> tuple[Iterable[Path], Iterable[Missing]]:
        named = [Path(log).absolute() for log in wanted.logs]
        found = [log for log in own_logs(taking.pids) if log not in named]
        return keep_tails((*named, *found), taking.folder / "logs")

    most_s = max(taking.left_s, _LEAST_LOGS_S)
    try:
        return in_time(keep, most_s)
    except TimeoutError:
        msg = f"they could not be read within {most_s:.0f} s"
        raise TimeoutError(msg) from None


def keep_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """
    Write a manifest, if that can be done.

    Args:
        folder: Where to.

        manifest: What there is.

    Returns:
        The manifest; it says so if it could not be written.
    """
    try:
        write_manifest(folder, manifest)
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        lost = Missing(what="manifest", reason=reason)
        return attrs.evolve(manifest, skipped=(*manifest.skipped, lost))

    return manifest


def reason_of(exc: Exception) -> str:
    """
    Tell in one line why something failed.

    Args:
        exc: What was raised.

    Returns:
        What a user understands of it.
    """
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror

    if isinstance(exc, MemoryError):  # which says nothing itself
        return "there is not enough memory"
    return clean(f"{type(exc).__name__}: {exc}")


def version() -> str:
    """
    Tell which *distdebug* this is.

    Returns:
        Its version.
    """
    # An import of the package would look like one of all rooms.
    package = import_module(__package__.partition(".")[0])
    return str(package.__version__)


def _stacks(
    taking: _Taking, wanted: Wanted
) -> tuple[Iterable[Path], Iterable[Missing]]:
    capture = capture_node(
        pids=wanted.pids,
        patterns=wanted.patterns,
        native=wanted.native,
        cuda=wanted.cuda,
        timeout_s=max(taking.left_s * _SHARE_OF_STACKS, 1.0),
        tell=taking.tell,
    )
    taking.workers = tuple(process.worker for process in capture.processes)
    taking.is_seen = not capture.is_blind
    taking.findings = capture.findings
    written = write_capture(capture, taking.folder)
    return written.files, written.missing


def _take_dumps(
    taking: _Taking, wanted: Wanted, *, is_one_of_many: bool
) -> None:
    """
    Take what was recorded.

    That is after the looks: who has waited all the time is stuck, and not
    merely early.
    """
    dump_dirs: dict[Path, tuple[str, ...] | None] = {}
    if wanted.dump_dir is None:
        taking.take("folders of dumps", lambda: _told(taking, dump_dirs))
    else:
        dump_dirs[wanted.dump_dir] = None
    ranks = {x.rank for x in taking.workers if x.rank is not None}
    own = ranks if is_one_of_many else None
    for number, (dump_dir, starts) in enumerate(dump_dirs.items(), 1):
        if not taking.left_s:
            lost = "the time was over"
            taking.missing.append(
                Missing(what="dump", reason=lost, source=str(dump_dir))
            )
            continue
        name = (
            "flight_recorder" if number == 1 else f"flight_recorder.{number}"
        )
        # Each may be silent, and the dumps are still to be copied.
        seconds = taking.left_s / (len(dump_dirs) - number + 2)
        place = _Place(dump_dir, starts, taking.folder / name, own)
        _take_dump_dir(taking, place, min(_ANSWER_S, seconds))


@attrs.frozen
class _Place:
    """
    Where dumps are, which they are, and where they go to.
    """

    dump_dir: Path
    starts: tuple[str, ...] | None
    folder: Path
    own: set[int] | None


def _told(
    taking: _Taking, dump_dirs: dict[Path, tuple[str, ...] | None]
) -> tuple[Iterable[Path], Iterable[Missing]]:
    dump_dirs.update(find_dump_dirs(taking.pids))
    return (), ()


def _take_dump_dir(taking: _Taking, place: _Place, seconds: float) -> None:
    taking.take(
        "asking for dumps",
        lambda: (
            (),
            ask_ranks(
                place.dump_dir, seconds, ranks=place.own, starts=place.starts
            ),
        ),
    )
    kept = taking.take(
        "dumps",
        lambda: keep_dumps(
            place.dump_dir,
            place.folder,
            taking.deadline,
            own=place.own,
            starts=place.starts,
            most_bytes=taking.room,
        ),
    )
    taking.room -= sum(map(_size, taking.files[len(taking.files) - kept :]))
    taking.is_seen = taking.is_seen or kept > 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _ask_server(taking: _Taking, address: str) -> None:
    ends = time.monotonic() + taking.left_s * _SHARE_OF_SERVER
    kept = taking.take(
        "debug server",
        lambda: keep_debug_server(address, taking.folder, ends),
    )
    taking.is_seen = taking.is_seen or kept > 0


def _manifest(
    taking: _Taking, host: str, created: float, seconds: float
) -> Manifest:
    jobs = Counter(worker.job for worker in taking.workers if worker.job)
    status: NodeStatus = "partial" if taking.missing else "ok"
    node = NodeEntry(
        host=host,
        status=status if taking.is_seen else "failed",
        seconds=round(seconds, 3),
        files=len(taking.files),
        reason="" if taking.is_seen else "no worker of a job could be seen",
    )
    return Manifest(
        version=version(),
        created=created,
        job=next((job for job, _ in jobs.most_common(1)), ""),
        nodes=(node,),
        skipped=tuple(taking.missing),
    )


@attrs.frozen
class Snapshot(Shown):
    """
    What was taken from a job that runs.

    Attributes:
        folder: Where it is.

        diagnosis: What it tells.

        manifest: What is in it, and what is not.
    """

    folder: Path
    diagnosis: Diagnosis
    manifest: Manifest

    @property
    def is_blind(self) -> bool:
        """
        Whether nothing of the job itself could be seen.
        """
        return all(node.status == "failed" for node in self.manifest.nodes)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            **self.diagnosis.to_dict(),
            "folder": str(self.folder),
            "manifest": self.manifest.to_dict(),
        }

    def _blocks_(self) -> Iterable[Block]:
        nodes = self.manifest.nodes
        files = sum(node.files for node in nodes)
        taken = f"snapshot: {clean(str(self.folder), limit=1000)}"
        yield from diagnosis_blocks(self.diagnosis)
        yield f"{taken} (nodes: {len(nodes)}, files: {files})"
        yield missing_block(self.manifest.skipped)


def snapshot(  # noqa: PLR0913 each can be left out
    output_dir: str | os.PathLike[str],
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    pids: Iterable[int] | None = None,
    patterns: Iterable[str] = (),
    logs: Iterable[str | os.PathLike[str]] = (),
    native: Native = "none",
    cuda: bool = False,
    debug_server: str = "",
    timeout_s: float = 120.0,
    tell: Tell = lambda _stage, _done, _total: None,
) -> Snapshot:
    """
    Take everything worth having about the job on this node, and diagnose it.

    Each part fails alone, and the manifest tells which did.  The job goes on
    as before.

    Args:
        output_dir: Where to; if something is there already,
            ``OUTPUT_DIR.2``, and so on.

        dump_dir: Where the ranks put their Flight Recorder dumps; they are
            asked for new ones.  By default the ranks themselves tell.

        pids: Which processes; by default the workers that
            :func:`~distdebug.processes.find.find_workers` finds.

        patterns: Regular expressions for the command lines of workers, if
            *pids* is not given.

        logs: Files of which the last MiB is kept.

        native: Whose native stacks to take, which stops a process for a
            moment; see :func:`~distdebug.capture.node.capture_node`.

        cuda: Whether to attach cuda-gdb to every process, which stops it for
            seconds.

        debug_server: Where a server of ``torch.distributed.debug`` answers,
            as ``HOST:PORT``: a further source, about all ranks of the job.

        timeout_s: How long collecting may take, in seconds.  Killing tools
            and the diagnosis come on top.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        The diagnosis, and where everything is; it prints itself.

    Raises:
        OutputError: The folder cannot be made.

        PatternError: A pattern is no regular expression.
    """
    wanted = Wanted(  # before a folder is made: it may be refused
        dump_dir=dump_dir,
        pids=pids,
        patterns=patterns,
        logs=logs,
        native=native,
        cuda=cuda,
        debug_server=debug_server,
        timeout_s=timeout_s,
    )
    host = node_name()
    with output_to(output_dir):
        bundle = new_bundle(output_dir)
        folder = make_folder(bundle, host)
    taken = collect_node(folder, wanted, host=host, tell=tell)
    tell("diagnosis", 0, 1)
    return explain_bundle(bundle, taken.manifest, findings=taken.findings)


def explain_bundle(
    folder: Path, manifest: Manifest, *, findings: tuple[Finding, ...] = ()
) -> Snapshot:
    """
    Diagnose what all nodes took, and finish the snapshot.

    Args:
        folder: The folder of all nodes.

        manifest: What is in it.

        findings: What is known already, in case that nothing could be
            written.

    Returns:
        The snapshot, with its report and its manifest.
    """
    try:
        diagnosis = diagnose(folder)
    except Exception as exc:  # noqa: BLE001 what was taken is still there
        manifest = _without(manifest, "diagnosis", exc)
        verdict = next(iter(findings), UNKNOWN)
        diagnosis = Diagnosis(verdict=verdict, findings=findings)
    else:
        manifest = _report(folder, diagnosis, manifest)
    return Snapshot(folder, diagnosis, keep_manifest(folder, manifest))


def _report(
    folder: Path, diagnosis: Diagnosis, manifest: Manifest
) -> Manifest:
    text = f"{diagnosis}\n".encode("utf-8", "replace")
    try:
        write_whole(folder / "REPORT.txt", text)
    except OSError as exc:
        return _without(manifest, "report", exc)

    return manifest


def _without(manifest: Manifest, what: str, exc: Exception) -> Manifest:
    lost = Missing(what=what, reason=reason_of(exc))
    return attrs.evolve(manifest, skipped=(*manifest.skipped, lost))


UNKNOWN = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="nothing could be taken that tells what the job does",
    confidence="possible",
    remedy="see what is missing; distdebug preflight tells what is in the way",
)


# For starting Python there, and killing tools.
_MORE_S = 60.0


def snapshot_everywhere(
    output_dir: str | os.PathLike[str],
    *,
    engine: Engine,
    tell: Tell = lambda _stage, _done, _total: None,
    **options: Any,
) -> Snapshot:
    """
    Take a snapshot on every node of a job, and diagnose all of it.

    A node that does not answer costs its own part only.

    Args:
        output_dir: Where to, on a file system that all nodes share; if
            something is there already, ``OUTPUT_DIR.2``, and so on.

        engine: What knows the nodes of the job, such as
            :class:`distdebug.nodes.slurm.Slurm`.

        tell: Called with the stage, and how many of how many are done.

        options: What else :func:`~distdebug.snapshots.collect.snapshot`
            takes.

    Returns:
        The diagnosis, and where everything is; it prints itself.

    Raises:
        OutputError: The folder cannot be made.

        NodesError: The nodes of the job are not known.

        PatternError: A pattern is no regular expression.
    """
    wanted, created = Wanted(**options), time.time()
    with output_to(output_dir):
        folder = new_bundle(output_dir)
    results = run_on_nodes(
        partial(_take_here, str(folder), wanted),
        engine=engine,
        timeout_s=wanted.timeout_s + _MORE_S,
        tell=partial(tell, "nodes"),
    )
    parts = [_part(result) for result in _by_host(results)]
    manifest = merge_manifests(parts, version=version(), created=created)
    tell("diagnosis", 0, 1)
    return explain_bundle(folder, manifest)


def _take_here(folder: str, wanted: Wanted) -> dict[str, Any]:
    """
    Take the part of one node; runs there.
    """
    own = make_folder(Path(folder), node_name())
    taken = collect_node(own, wanted, host=own.name, is_one_of_many=True)
    return taken.manifest.to_dict()


def _by_host(results: Iterable[NodeResult]) -> list[NodeResult]:
    return sorted(results, key=lambda result: result.host)


def _part(result: NodeResult) -> Manifest:
    """
    What one node took, or why nothing.
    """
    reason = result.reason
    try:
        if result.value is not None:
            return parse_manifest(result.value)
    except ValueError as exc:
        reason = f"it answered with something else: {exc}"

    node = NodeEntry(
        host=result.host,
        status="failed",
        seconds=result.seconds,
        reason=reason,
    )
    return lost_part(node, result.remedy)


@attrs.frozen
class PreflightReport(Shown):
    """
    What was checked.

    Attributes:
        checks: Every check, with what to do where something is not as it
            should be.
    """

    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """
        Whether no check failed.
        """
        return all(check.ok is not False for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {"ready": self.is_ready, "checks": self.to_records()}

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def _blocks_(self) -> Iterable[Block]:
        return check_blocks(self.checks)


def preflight() -> PreflightReport:
    """
    Check whether this node lets us look into the processes of a job.

    It changes nothing, and is done within seconds.

    Returns:
        What was found, and what to do about it before a job hangs.
    """
    return PreflightReport(check_capture())
