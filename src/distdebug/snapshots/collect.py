"""
Take a snapshot: collect stacks, dumps, logs, and node facts of a job.

Collects on this node or on all nodes while the job hangs, and diagnoses the
result.  Stops no process unless native stacks or cuda-gdb are requested.
"""

from __future__ import annotations

import os
import time

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

from .._io import output_to, write_whole
from .._proc import in_time
from .._render import Block, Shown
from .._text import clean
from ..capture import (
    PATIENCE_S,
    Check,
    Checklist,
    Native,
    capture_node,
    check_capture,
    make_folder,
    write_capture,
)
from ..causes import Cause
from ..diagnosis import diagnose
from ..errors import DistdebugError
from ..findings import (
    Diagnosis,
    Finding,
    Missing,
    diagnosis_blocks,
    missing_block,
)
from ..nodes import Engine, NodeResult, run_on_nodes
from ..processes import Worker, find_workers
from .bundle import (
    Manifest,
    NodeEntry,
    NodeStatus,
    merge_manifests,
    missing_part,
    new_bundle,
    node_name,
    parse_manifest,
    write_manifest,
)
from .debug_server import collect_debug_server
from .node_files import (
    MAX_DUMP_BYTES,
    DumpFolder,
    collect_dumps,
    find_dump_dirs,
    find_worker_logs,
    request_rank_dumps,
    save_log_tails,
    save_node_facts,
)
from .options import SnapshotOptions
from .ras import RasWatch


_Answer = TypeVar("_Answer")
ProgressCallback = Callable[[str, int, int], object]
Saved = tuple[Iterable[Path], Iterable[Missing]]

# A rank that can answer does so within this time.
_DUMP_ANSWER_S = 10.0
_FACTS_S = 25.0
_MIN_LOGS_S = 5.0
# Share of the time for stacks, which take longest; the rest must still fit.
_STACKS_SHARE = 0.7
# Share of the remaining time for a debug server.
_SERVER_SHARE = 0.8


@attrs.frozen
class CollectedNode:
    """
    Evidence collected on one node.

    Attributes:
        manifest: What was saved, and what is missing.

        findings: Findings by stacks alone.
    """

    manifest: Manifest
    findings: tuple[Finding, ...]


def collect_node(
    folder: Path,
    options: SnapshotOptions,
    *,
    host: str,
    is_one_of_many: bool = False,
    tell: ProgressCallback = lambda _stage, _done, _total: None,
) -> CollectedNode:
    """
    Collect all evidence about the job on this node.

    Each source fails alone; the manifest lists what is missing.

    Args:
        folder: Output folder; it must exist.

        options: What to collect.

        host: The name of this node.

        is_one_of_many: Whether other nodes take part too.  Their ranks may
            share the dump folder, so only dumps of this node are copied.  The
            manifest is written beside them.

        tell: Called with the stage, the number done, and the total.
    """
    start, created = time.monotonic(), time.time()
    collector = _Collector(folder, options, start + options.timeout_s, tell)
    # Before anything else: ranks that end meanwhile may leave their dumps.
    collector.find_dump_dirs()
    collector.collect("stacks", collector.save_stacks)
    ask = partial(RasWatch, collector.pids, collector.left_s)
    ras = collector.attempt("RAS", ask, None)
    collector.collect_dumps(is_one_of_many=is_one_of_many)
    collector.collect_debug_server()
    save_facts = partial(
        save_node_facts,
        collector.pids,
        folder / "node.json",
        min(_FACTS_S, collector.left_s),
    )
    collector.collect("node", save_facts)
    collector.collect("logs", collector.save_logs)
    if ras is not None:
        collector.collect("RAS", partial(ras.save, folder, collector.left_s))
    seconds = time.monotonic() - start
    manifest = collector.manifest(host, created, seconds)
    if is_one_of_many:
        manifest = save_manifest(folder, manifest)
    return CollectedNode(manifest, collector.findings)


@attrs.define
class _Collector:
    """
    State of a collection in progress.
    """

    folder: Path
    options: SnapshotOptions
    deadline: float
    tell: ProgressCallback
    files: list[Path] = attrs.Factory(list)
    missing: list[Missing] = attrs.Factory(list)
    workers: tuple[Worker, ...] = ()
    dump_dirs: Mapping[Path, tuple[str, ...] | None] = attrs.Factory(dict)
    has_evidence: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def left_s(self) -> float:
        """
        Return the time left, in seconds.
        """
        return max(self.deadline - time.monotonic(), 0.0)

    @property
    def pids(self) -> tuple[int, ...]:
        """
        Return the PIDs of the captured processes.
        """
        return tuple(worker.pid for worker in self.workers)

    def attempt(
        self, what: str, call: Callable[[], _Answer], default: _Answer
    ) -> _Answer:
        """
        Return what a source gives; if it fails, the others go on.
        """
        self.tell(what, 0, 1)
        try:
            answer = call()
        except Exception as exc:  # noqa: BLE001 other sources may still work
            self.missing.append(Missing(what=what, reason=failure_reason(exc)))
            return default

        self.tell(what, 1, 1)
        return answer

    def collect(self, what: str, source: Callable[[], Saved]) -> list[Path]:
        """
        Collect from one source, and return its files.
        """
        nothing: Saved = ((), ())
        files, missing = self.attempt(what, source, nothing)
        added = list(files)
        self.files += added
        self.missing += missing
        return added

    def find_dump_dirs(self) -> None:
        """
        Find the folders of the dumps.
        """

        def search() -> Mapping[Path, tuple[str, ...] | None]:
            pids = self.options.pids
            if pids is None:
                workers = find_workers(self.options.patterns)
                pids = tuple(worker.pid for worker in workers)
            return find_dump_dirs(pids)

        if self.options.dump_dir is not None:
            self.dump_dirs = {self.options.dump_dir: None}
        else:
            self.dump_dirs = self.attempt("folders of dumps", search, {})

    def save_stacks(self) -> Saved:
        """
        Capture the processes, and save their stacks.
        """
        capture = capture_node(
            pids=self.options.pids,
            patterns=self.options.patterns,
            native=self.options.native,
            cuda=self.options.cuda,
            patience_s=PATIENCE_S,
            timeout_s=max(self.left_s * _STACKS_SHARE, 1.0),
            tell=self.tell,
        )
        self.workers = tuple(process.worker for process in capture.processes)
        self.has_evidence = not capture.is_blind
        self.findings = capture.findings
        written = write_capture(capture, self.folder)
        return written.files, written.missing

    def collect_dumps(self, *, is_one_of_many: bool) -> None:
        """
        Collect dumps.

        After the stacks: a rank that has waited through both is stuck, not
        early.
        """
        sources = self._dump_folders(is_one_of_many=is_one_of_many)
        bytes_left = MAX_DUMP_BYTES
        for number, source in enumerate(sources, 1):
            # Each folder may not answer, and copying dumps takes time too.
            seconds = self.left_s / (len(sources) - number + 2)
            if not seconds:
                where, reason = str(source.path), "the time was over"
                lost = Missing(what="dump", reason=reason, source=where)
                self.missing.append(lost)
                continue

            wait_s = min(_DUMP_ANSWER_S, seconds)
            ask = partial(request_rank_dumps, source, wait_s)
            self.missing += self.attempt("asking for dumps", ask, [])
            name = "flight_recorder" + f".{number}" * (number > 1)
            copy = partial(
                collect_dumps,
                source,
                self.folder / name,
                self.deadline,
                max_bytes=bytes_left,
            )
            files = self.collect("dumps", copy)
            bytes_left -= sum(map(_size, files))
            self.has_evidence |= bool(files)

    def _dump_folders(self, *, is_one_of_many: bool) -> list[DumpFolder]:
        ranks = {x.rank for x in self.workers if x.rank is not None}
        local_ranks = ranks if is_one_of_many else None
        return [
            DumpFolder(path, prefixes, local_ranks)
            for path, prefixes in self.dump_dirs.items()
        ]

    def collect_debug_server(self) -> None:
        """
        Collect from the debug server, if there is one.
        """
        if not (address := self.options.debug_server):
            return
        deadline = time.monotonic() + self.left_s * _SERVER_SHARE
        ask = partial(collect_debug_server, address, self.folder, deadline)
        self.has_evidence |= bool(self.collect("debug server", ask))

    def save_logs(self) -> Saved:
        """
        Save the ends of the named logs, and of the outputs of workers.
        """

        def save_tails() -> Saved:
            named = [Path(log).absolute() for log in self.options.logs]
            found = find_worker_logs(self.pids)
            more = [log for log in found if log not in named]
            return save_log_tails((*named, *more), self.folder / "logs")

        most_s = max(self.left_s, _MIN_LOGS_S)
        try:
            return in_time(save_tails, most_s)
        except TimeoutError:
            msg = f"they could not be read within {most_s:.0f} s"
            raise TimeoutError(msg) from None

    def manifest(self, host: str, created: float, seconds: float) -> Manifest:
        """
        Return the manifest of this node.
        """
        jobs = Counter(worker.job for worker in self.workers if worker.job)
        status: NodeStatus = "partial" if self.missing else "ok"
        is_blind = not self.has_evidence
        node = NodeEntry(
            host=host,
            status="failed" if is_blind else status,
            seconds=round(seconds, 3),
            files=len(self.files),
            reason="no worker of a job could be seen" if is_blind else "",
        )
        return Manifest(
            created=created,
            job=next((job for job, _ in jobs.most_common(1)), ""),
            nodes=(node,),
            skipped=tuple(self.missing),
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def save_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """
    Write a manifest, if possible.

    Returns:
        The manifest; it says so if it could not be written.
    """
    try:
        write_manifest(folder, manifest)
    except OSError as exc:
        return _add_missing(
            manifest, "manifest", f"not written: {exc.strerror}"
        )

    return manifest


def failure_reason(exc: Exception) -> str:
    """
    Return in one line why something failed.
    """
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror

    if isinstance(exc, MemoryError):  # its text is empty
        return "there is not enough memory"
    if isinstance(exc, DistdebugError):
        return clean(str(exc))
    return clean(f"{type(exc).__name__}: {exc}")


@attrs.frozen
class Snapshot(Shown):
    """
    Result of a snapshot.

    Attributes:
        folder: The folder of the bundle.

        diagnosis: The diagnosis.

        manifest: What was saved, and what is missing.
    """

    folder: Path
    diagnosis: Diagnosis
    manifest: Manifest

    @property
    def is_blind(self) -> bool:
        """
        Return whether nothing of the job itself could be captured.
        """
        return all(node.status == "failed" for node in self.manifest.nodes)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
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
    tell: ProgressCallback = lambda _stage, _done, _total: None,
) -> Snapshot:
    """
    Collect all evidence about the job on this node, and diagnose it.

    Each source fails alone; the manifest lists what is missing.  The job goes
    on as before.

    Example::

        taken = distdebug.snapshot("hang")
        print(taken.diagnosis)

    Args:
        output_dir: Output folder; if it is not empty, ``OUTPUT_DIR.2``, and so
            on.

        dump_dir: Folder of the Flight Recorder dumps; its ranks are asked for
            new ones.  By default found in the environment of the ranks.

        pids: Processes to capture; by default the workers that
            :func:`~distdebug.processes.find.find_workers` finds.

        patterns: Regular expressions for the command lines of workers, if
            *pids* is not given.

        logs: Log files; the last MiB of each is saved.

        native: Which processes to take native stacks of; this stops a process
            for a moment.  See :func:`~distdebug.capture.node.capture_node`.

        cuda: Whether to attach cuda-gdb to every process, which stops it for
            seconds.

        debug_server: Address of a ``torch.distributed.debug`` server, as
            ``HOST:PORT``: one more source, for all ranks of the job.

        timeout_s: Time limit for collecting, in seconds; killing tools and the
            diagnosis come on top.

        tell: Called with the stage, the number done, and the total.

    Raises:
        OutputError: The folder cannot be made.

        PatternError: A pattern is no regular expression.
    """
    options = SnapshotOptions(  # before the folder is made: it may raise
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
    collected = collect_node(folder, options, host=host, tell=tell)
    tell("diagnosis", 0, 1)
    return diagnose_bundle(
        bundle, collected.manifest, findings=collected.findings
    )


def diagnose_bundle(
    folder: Path, manifest: Manifest, *, findings: tuple[Finding, ...] = ()
) -> Snapshot:
    """
    Diagnose the evidence of all nodes, and finish the snapshot.

    Args:
        folder: The folder of all nodes.

        manifest: What was saved, and what is missing.

        findings: Used if the diagnosis itself fails.

    Returns:
        The snapshot; its report and its manifest are written.
    """
    try:
        diagnosis = diagnose(folder)
    except Exception as exc:  # noqa: BLE001 the evidence is still there
        manifest = _add_missing(manifest, "diagnosis", failure_reason(exc))
        verdict = next(iter(findings), UNKNOWN_VERDICT)
        diagnosis = Diagnosis(verdict=verdict, findings=findings)
    else:
        diagnosis = _without_strangers(diagnosis, manifest)
        text = f"{diagnosis}\n".encode("utf-8", "replace")
        try:
            write_whole(folder / "REPORT.txt", text)
        except OSError as exc:
            manifest = _add_missing(manifest, "report", failure_reason(exc))
    return Snapshot(folder, diagnosis, save_manifest(folder, manifest))


def _without_strangers(diagnosis: Diagnosis, manifest: Manifest) -> Diagnosis:
    """
    Let no event of the kernel stand for a job of which no worker was found.
    """
    is_blind = all(node.status == "failed" for node in manifest.nodes)
    kinds = {x.kind for x in diagnosis.verdict.evidence}
    if not is_blind or kinds != {"kernel"}:
        return diagnosis
    findings = (UNKNOWN_VERDICT, *diagnosis.findings)
    return attrs.evolve(diagnosis, verdict=UNKNOWN_VERDICT, findings=findings)


def _add_missing(manifest: Manifest, what: str, reason: str) -> Manifest:
    lost = Missing(what=what, reason=reason)
    return attrs.evolve(manifest, skipped=(*manifest.skipped, lost))


UNKNOWN_VERDICT = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="no worker of a job was found, and nothing else that shows a job",
    confidence="possible",
    remedy="name the workers with --pid, or with --pattern REGEX, or the dumps "
    "with --dump-dir; distdebug preflight shows what prevents a capture",
)


# Time for starting Python on a node, and for killing tools.
_START_UP_S = 60.0


def snapshot_everywhere(
    output_dir: str | os.PathLike[str],
    *,
    engine: Engine,
    tell: ProgressCallback = lambda _stage, _done, _total: None,
    **options: Any,
) -> Snapshot:
    """
    Take a snapshot on every node of a job, and diagnose them together.

    A node that does not answer costs only its own part.

    Args:
        output_dir: Output folder, on a file system that all nodes share; if it
            is not empty, ``OUTPUT_DIR.2``, and so on.

        engine: Lists the nodes of the job and runs code on them, such as
            :class:`distdebug.nodes.slurm.Slurm`.

        tell: Called with the stage, the number done, and the total.

        options: Further options of
            :func:`~distdebug.snapshots.collect.snapshot`.

    Raises:
        OutputError: The folder cannot be made.

        NodesError: The nodes of the job are not known.

        PatternError: A pattern is no regular expression.
    """
    snapshot_options, created = SnapshotOptions(**options), time.time()
    with output_to(output_dir):
        folder = new_bundle(output_dir)
    results = run_on_nodes(
        partial(_collect_part, str(folder), snapshot_options),
        engine=engine,
        timeout_s=snapshot_options.timeout_s + _START_UP_S,
        tell=partial(tell, "nodes"),
    )
    manifest = merge_manifests(
        map(_parse_part, sorted(results, key=lambda result: result.host)),
        created=created,
    )
    tell("diagnosis", 0, 1)
    return diagnose_bundle(folder, manifest)


def _collect_part(folder: str, options: SnapshotOptions) -> dict[str, Any]:
    """
    Collect the part of one node; runs on that node.
    """
    node_folder = make_folder(Path(folder), node_name())
    collected = collect_node(
        node_folder, options, host=node_folder.name, is_one_of_many=True
    )
    return collected.manifest.to_dict()


def _parse_part(result: NodeResult) -> Manifest:
    """
    Return the manifest of one node, or one that says why it is missing.
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
    return missing_part(node, result.remedy)


@attrs.frozen
class PreflightReport(Checklist, Shown):
    """
    Result of a preflight check.

    Attributes:
        checks: Every check, with a remedy where it failed.
    """

    checks: tuple[Check, ...]

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {"ready": self.is_ready, "checks": self.to_records()}


def preflight() -> PreflightReport:
    """
    Check whether this node allows capturing the processes of a job.

    Changes nothing, and takes seconds.

    Returns:
        All checks, with what to change before a job hangs.
    """
    return PreflightReport(check_capture())
