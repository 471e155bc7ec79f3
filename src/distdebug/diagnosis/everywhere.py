"""
What is there to know about a job on all of its nodes?
"""

from __future__ import annotations

import os
import socket
import time

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .._files import write_whole
from ..bundle.manifest import (
    Manifest,
    NodeEntry,
    new_bundle,
    write_manifest,
)
from ..findings import Cause, Diagnosis, Finding, Missing
from ..nodes.model import Engine, NodeResult
from ..nodes.run import run_on_nodes
from .diagnose import diagnose
from .snapshot import Snapshot, snapshot


__all__ = ["snapshot_everywhere"]

# For the diagnosis on each node, and for starting Python there.
_MORE_S = 60.0


def snapshot_everywhere(
    output_dir: str | os.PathLike[str],
    *,
    engine: Engine,
    timeout_s: float = 120.0,
    tell: Callable[[str, int, int], object] = lambda _s, _d, _t: None,
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

        timeout_s: How long collecting may take on each node, in seconds.

        tell: Called with the stage, and how many of how many are done.

        options: What else :func:`~distdebug.diagnosis.snapshot.snapshot`
            takes.

    Returns:
        The diagnosis, and where everything is; it prints itself.

    Raises:
        OSError: The folder cannot be made.

        NodesError: The nodes of the job are not known.
    """
    created = time.time()
    folder = new_bundle(output_dir)
    take = partial(
        _take_here, str(folder), {"timeout_s": timeout_s, **options}
    )
    results = list(
        run_on_nodes(
            take,
            engine=engine,
            timeout_s=timeout_s + _MORE_S,
            tell=partial(tell, "nodes"),
        )
    )
    manifest = _manifest(results, created)
    diagnosis = _diagnose(folder, manifest)
    report = f"{diagnosis}\n".encode("utf-8", "replace")
    write_whole(folder / "REPORT.txt", report)
    write_manifest(folder, manifest)
    return Snapshot(folder, diagnosis, manifest)


def _take_here(folder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """
    Take the snapshot of one node; runs there.
    """
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return snapshot(Path(folder) / name, **options).manifest.to_dict()


def _diagnose(folder: Path, manifest: Manifest) -> Diagnosis:
    try:
        return diagnose(folder)
    except (OSError, ValueError) as exc:
        unknown = Finding(
            cause=Cause.UNKNOWN,
            ranks=(),
            summary=f"no node could tell anything: {exc}",
            confidence="possible",
            remedy="see what each node said in manifest.json",
        )
        return Diagnosis(verdict=unknown, missing=manifest.skipped)


def _manifest(results: list[NodeResult], created: float) -> Manifest:
    # An import of the package would look like one of all rooms.
    package = import_module(__package__.partition(".")[0])
    jobs = {r.value["job"] for r in results if r.value and r.value["job"]}
    return Manifest(
        version=str(package.__version__),
        created=created,
        job=" ".join(sorted(jobs)),
        nodes=tuple(map(_entry, sorted(results, key=lambda r: r.host))),
        skipped=tuple(
            Missing(
                what="node",
                reason=f"{r.reason}{f' (try: {r.remedy})' if r.remedy else ''}",
                source=r.host,
            )
            for r in results
            if r.value is None
        ),
    )


def _entry(result: NodeResult) -> NodeEntry:
    if result.value is None:
        return NodeEntry(
            host=result.host,
            status="failed",
            seconds=result.seconds,
            reason=result.reason,
        )

    (there,) = result.value["nodes"]
    return NodeEntry(**{**there, "host": result.host})
