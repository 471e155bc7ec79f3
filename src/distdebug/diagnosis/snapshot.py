"""
What is there to know about a job while it still hangs?

Everything that dies with the job is taken into one folder, and explained.
"""

from __future__ import annotations

import os

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from .._files import output_to, write_whole
from .._showing import Block, Shown
from .._text import clean
from ..bundle.folder import new_bundle, node_name
from ..bundle.manifest import Manifest
from ..bundle.options import Wanted
from ..capture.files import make_folder
from ..capture.model import Native
from ..findings import Cause, Diagnosis, Finding, Missing
from ..findings.text import diagnosis_blocks, missing_block
from .collect import Tell, collect_node, keep_manifest, reason_of
from .root_cause import diagnose


__all__ = ["UNKNOWN", "Snapshot", "explain_bundle", "snapshot"]


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
