"""
What is there to know about a job on all of its nodes?
"""

from __future__ import annotations

import os
import time

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from .._files import output_to
from ..bundle.folder import lost_part, merge_manifests, new_bundle, node_name
from ..bundle.manifest import Manifest, NodeEntry, parse_manifest
from ..bundle.options import Wanted
from ..capture.files import make_folder
from ..nodes.results import Engine, NodeResult
from ..nodes.run import run_on_nodes
from .collect import Tell, collect_node, version
from .snapshot import Snapshot, explain_bundle


__all__ = ["snapshot_everywhere"]

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

        options: What else :func:`~distdebug.diagnosis.snapshot.snapshot`
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
