"""
What lies in a snapshot, and what torch's debug server tells.
"""

from __future__ import annotations

import json

from distdebug.diagnosis.log_evidence import (
    find_log_sources,
    read_node_evidence,
)
from distdebug.errors import BundleError
from distdebug.findings import Missing
from distdebug.health import check_node_json, parse_node_json, worker_environs
from distdebug.nsight.reports import join_workers
from distdebug.snapshots import (
    Manifest,
    NodeEntry,
    merge_manifests,
    read_parts,
    write_manifest,
)
from distdebug.snapshots.bundle import read_manifest, read_marker_run
from distdebug.snapshots.debug_server import (
    RankAnswers,
    read_addresses,
    read_page,
    save_rank_answers,
)

from ..places import file_of, folder_of
from ..target import HERE, target


def _manifests() -> list[bytes]:
    lost = Missing(what="dump", reason="none", rank=3, source="x")
    nodes = (NodeEntry(host="a", status="ok", seconds=1.5, files=3),)
    one = Manifest(version="1", created=1.7e9, nodes=nodes, skipped=(lost,))
    return [json.dumps(one.to_dict()).encode()]


@target(BundleError, seeds=_manifests)
def manifest(data: bytes) -> object:
    """
    What a snapshot says of itself.
    """
    folder = file_of(data, "bundle/manifest.json").parent
    found = read_manifest(folder)
    json.dumps(found.to_dict(), allow_nan=False)
    write_manifest(folder, found)
    assert read_manifest(folder).nodes == found.nodes
    return None


@target(OSError)
def parts(data: bytes) -> object:
    """
    A snapshot in parts.
    """
    folder = folder_of(data, "parts")
    read_marker_run(folder)
    merge_manifests(read_parts(folder), created=0.0)
    found = find_log_sources([folder])
    return read_node_evidence(found.nodes, {}) and None


def _nodes() -> list[bytes]:
    files = sorted((HERE / "seeds" / "node_json").iterdir())
    return [x.read_bytes() for x in files]


@target(ValueError, RecursionError)
def node_json(data: bytes) -> object:
    """
    Facts about a node.
    """
    told = json.loads(data)
    worker_environs(told)
    facts = parse_node_json(told, host="node0")
    return facts.host, check_node_json(told, host="node0", ranks={7: 3})


@target(ValueError, RecursionError)
def workers_json(data: bytes) -> object:
    """
    The workers of a node, as a capture lists them.
    """
    rows = json.loads(data)
    return join_workers([], rows if isinstance(rows, list) else [])


@target()
def debug_server_page(data: bytes) -> object:
    """
    A page of torch's debug server.
    """
    page = data.decode("utf-8", "replace")
    read_addresses(page)
    shown = []
    for rank, (endpoint, answer) in list(read_page(page).items())[:50]:
        told = RankAnswers(endpoint=endpoint, asked_at=1.7e9)
        told.add("stack", answer)
        told.add("dump", answer)
        for file in save_rank_answers(told, rank, 8, folder_of(b"", "told")):
            file.read_bytes()
        shown += told.missing.values()
    return shown
