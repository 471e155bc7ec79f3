"""
What is there to know about a job while it still hangs?

Everything that dies with the job is taken into one folder: what the ranks
recorded, what they do now, what the node tells.  Nobody is stopped for it,
unless native stacks are asked for.
"""

from __future__ import annotations

import os
import socket
import time

from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from .._files import write_whole
from .._text import clean
from ..bundle.dumps import ask_ranks, keep_dumps
from ..bundle.logs import keep_tails
from ..bundle.manifest import (
    Manifest,
    NodeEntry,
    NodeStatus,
    new_bundle,
    write_manifest,
)
from ..bundle.node import keep_facts
from ..capture.files import make_folder, write_capture
from ..capture.node import Native, capture_node
from ..findings import Cause, Diagnosis, Finding, Missing
from ..findings.text import missing_lines
from ..processes.roles.patterns import compile_patterns
from .diagnose import diagnose


__all__ = ["Snapshot", "snapshot"]

Tell = Callable[[str, int, int], object]
Part = Callable[[], tuple[Iterable[Path], Iterable[Missing]]]

# A rank that can answer does so at once.
_ANSWER_S = 10.0
_FACTS_S = 25.0
# How much of the time stacks may take: they take longest, and the rest has to
# fit behind them.
_SHARE_OF_STACKS = 0.7


@attrs.frozen
class Snapshot:
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

    def __str__(self) -> str:
        nodes = self.manifest.nodes
        files = sum(node.files for node in nodes)
        taken = f"snapshot: {clean(str(self.folder), limit=1000)}"
        skipped = missing_lines(self.manifest.skipped)
        tail = [f"{taken} (nodes: {len(nodes)}, files: {files})", *skipped]
        return "\n".join([str(self.diagnosis), "", *tail])

    def _repr_pretty_(self, p: Any, cycle: bool) -> None:  # noqa: FBT001
        p.text("..." if cycle else str(self))


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
    pids: tuple[int, ...] = ()
    job: str = ""
    is_seen: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def left_s(self) -> float:
        """
        How much time is left, in seconds.
        """
        return max(self.deadline - time.monotonic(), 0.0)

    def take(self, what: str, part: Part) -> int:
        """
        Take one part, which may fail alone; and count its files.
        """
        self.tell(what, 0, 1)
        try:
            files, missing = part()
        except Exception as exc:  # noqa: BLE001 the others are worth it
            self.missing.append(Missing(what=what, reason=_reason(exc)))
            return 0

        before = len(self.files)
        self.files += files
        self.missing += missing
        self.tell(what, 1, 1)
        return len(self.files) - before


def snapshot(  # noqa: PLR0913 each can be left out
    output_dir: str | os.PathLike[str],
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    pids: Iterable[int] | None = None,
    patterns: Iterable[str] = (),
    logs: Iterable[str | os.PathLike[str]] = (),
    native: Native = "none",
    cuda: bool = False,
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

        dump_dir: Where the ranks put their Flight Recorder dumps, if they
            record; they are asked for new ones.

        pids: Which processes; by default the workers that
            :func:`~distdebug.processes.find.find_workers` finds.

        patterns: Regular expressions for the command lines of workers, if
            *pids* is not given.

        logs: Files of which the last MiB is kept.

        native: Whose native stacks to take, which stops a process for a
            moment; see :func:`~distdebug.capture.node.capture_node`.

        cuda: Whether to attach cuda-gdb to every process, which stops it for
            seconds.

        timeout_s: How long collecting may take, in seconds.  Killing tools
            and the diagnosis come on top.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        The diagnosis, and where everything is; it prints itself.

    Raises:
        OSError: The folder cannot be made.
        PatternError: A pattern is no regular expression.
    """
    start, created = time.monotonic(), time.time()
    patterns = tuple(patterns)
    compile_patterns(patterns)  # before a folder is made
    folder, host = new_bundle(output_dir), socket.gethostname()
    taking = _Taking(make_folder(folder, host), start + timeout_s, tell)

    taking.take(
        "stacks",
        lambda: _stacks(
            taking, pids=pids, patterns=patterns, native=native, cuda=cuda
        ),
    )
    if dump_dir is not None:
        _take_dumps(taking, Path(dump_dir))
    facts_s = min(_FACTS_S, taking.left_s)
    facts = taking.folder / "node.json"
    taking.take("node", lambda: keep_facts(taking.pids, facts, facts_s))
    taking.take("logs", lambda: keep_tails(logs, taking.folder / "logs"))

    diagnosis = _diagnose(taking, folder)
    manifest = _manifest(taking, host, created, time.monotonic() - start)
    return Snapshot(folder, diagnosis, _keep_manifest(folder, manifest))


def _take_dumps(taking: _Taking, dump_dir: Path) -> None:
    """
    Take what was recorded.

    That is after the looks: who has waited all the time is stuck, and not
    merely early.
    """
    seconds = min(_ANSWER_S, max(taking.left_s / 2, 1.0))
    taking.take("asking for dumps", lambda: ((), ask_ranks(dump_dir, seconds)))
    folder = taking.folder / "flight_recorder"
    kept = taking.take(
        "dumps", lambda: keep_dumps(dump_dir, folder, taking.deadline)
    )
    taking.is_seen = taking.is_seen or kept > 0


def _stacks(
    taking: _Taking, **who: Any
) -> tuple[Iterable[Path], Iterable[Missing]]:
    seconds = max(taking.left_s * _SHARE_OF_STACKS, 1.0)
    capture = capture_node(timeout_s=seconds, tell=taking.tell, **who)
    workers = [process.worker for process in capture.processes]
    taking.pids = tuple(worker.pid for worker in workers)
    jobs = Counter(worker.job for worker in workers if worker.job)
    taking.job = next((job for job, _ in jobs.most_common(1)), "")
    taking.is_seen = not capture.is_blind
    taking.findings = capture.findings
    written = write_capture(capture, taking.folder)
    return written.files, written.missing


def _diagnose(taking: _Taking, folder: Path) -> Diagnosis:
    taking.tell("diagnosis", 0, 1)
    try:
        diagnosis = diagnose(folder)
        text = f"{diagnosis}\n".encode("utf-8", "replace")
        taking.take("report", lambda: _report(folder, text))
    except Exception as exc:  # noqa: BLE001 what was taken is still there
        taking.missing.append(Missing(what="diagnosis", reason=_reason(exc)))
        # Nothing could be written, perhaps; but something was seen.
        verdict = next(iter(taking.findings), _UNKNOWN)
        diagnosis = Diagnosis(verdict=verdict, findings=taking.findings)
    return diagnosis


def _report(
    folder: Path, text: bytes
) -> tuple[Iterable[Path], Iterable[Missing]]:
    write_whole(folder / "REPORT.txt", text)
    return [folder / "REPORT.txt"], []


def _reason(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror

    return clean(f"{type(exc).__name__}: {exc}")


def _manifest(
    taking: _Taking, host: str, created: float, seconds: float
) -> Manifest:
    # An import of the package would look like one of all rooms.
    package = import_module(__package__.partition(".")[0])
    status: NodeStatus = "partial" if taking.missing else "ok"
    node = NodeEntry(
        host=host,
        status=status if taking.is_seen else "failed",
        seconds=round(seconds, 3),
        files=len(taking.files),
        reason="" if taking.is_seen else "no worker of a job could be seen",
    )
    return Manifest(
        version=str(package.__version__),
        created=created,
        job=taking.job,
        nodes=(node,),
        skipped=tuple(taking.missing),
    )


def _keep_manifest(folder: Path, manifest: Manifest) -> Manifest:
    try:
        write_manifest(folder, manifest)
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        lost = Missing(what="manifest", reason=reason)
        return attrs.evolve(manifest, skipped=(*manifest.skipped, lost))

    return manifest


_UNKNOWN = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="nothing could be taken that tells what the job does",
    confidence="possible",
    remedy="see what is missing; distdebug preflight tells what is in the way",
)
