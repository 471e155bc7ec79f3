"""
What did each node take, also if it was killed?
"""

from __future__ import annotations

import pytest

from distdebug import __version__
from distdebug.findings import Missing
from distdebug.snapshots import (
    Manifest,
    NodeEntry,
    SharedBundle,
    count_parts,
    merge_manifests,
    read_parts,
    write_manifest,
)


IN_PROGRESS_MARKER = ".unfinished"


def manifest_of(host, **options):
    """
    What one node says.
    """
    node = NodeEntry(host=host, status="ok", files=3)
    return Manifest(version="1", created=5.0, nodes=(node,), **options)


@pytest.fixture(name="bundle")
def _bundle(tmp_path):
    """
    Node n2 is done, and n1 is not.
    """
    for host in ("n2", "n1"):
        bundle = SharedBundle(tmp_path / "hang", host, run="", window_s=300.0)
        part = bundle.join()
    write_manifest(tmp_path / "hang" / "n2", manifest_of("n2"))
    (part.bundle / "notes.txt").write_text("no node")
    (part.bundle / "link").symlink_to(part.bundle / "n2")
    return part.bundle


def test_count(bundle):
    """
    Nodes are counted; the mark, files, and links are none.
    """
    assert (bundle / IN_PROGRESS_MARKER).exists()
    assert (1, 1) == count_parts(bundle)


def test_count_dead(tmp_path):
    """
    A node that was killed, and began once more, is not waited for.
    """
    for name in ("n1", "n1.2", "n2"):
        (tmp_path / name).mkdir()
    (tmp_path / "n1.2" / "manifest.json").touch()

    assert (1, 1) == count_parts(tmp_path)


def test_read(bundle):
    """
    A node without a manifest is reported as partial, by its name.
    """
    undone, done = read_parts(bundle)

    (node,) = undone.nodes
    (lost,) = undone.skipped
    assert manifest_of("n2") == done
    assert ("n1", "partial") == (node.host, node.status)
    assert ("node", "n1") == (lost.what, lost.source)
    assert "killed" in node.reason
    assert node.reason == lost.reason


def test_damaged(bundle):
    """
    A manifest that cannot be parsed costs its own node only.
    """
    (bundle / "n2" / "manifest.json").write_text("{")

    parts = read_parts(bundle)

    assert [("n1", "partial"), ("n2", "partial")] == [
        (x.nodes[0].host, x.nodes[0].status) for x in parts
    ]


def test_known(bundle):
    """
    What the caller knows counts if nothing could be written, and only then.
    """
    known = {"n1": manifest_of("n1"), "n2": manifest_of("another")}

    parts = read_parts(bundle, known=known)

    assert [manifest_of("n1"), manifest_of("n2")] == parts


def test_draft(tmp_path):
    """
    A draft of a mark is no node.
    """
    (tmp_path / f"{IN_PROGRESS_MARKER}.0123").mkdir()

    assert (0, 0) == count_parts(tmp_path)


def test_merge_runs():
    """
    The merged run is the one on which all parts agree.
    """
    parts = [manifest_of("n1", run="7"), manifest_of("n2")]

    alike = merge_manifests(parts, created=7.0)
    parts.append(manifest_of("n3", run="8"))
    apart = merge_manifests(parts, created=7.0)

    assert ("7", "") == (alike.run, apart.run)


@pytest.mark.parametrize("read", [count_parts, read_parts])
def test_gone(tmp_path, read):
    """
    A folder that is not there is an error of the system.
    """
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "gone")


def test_merge():
    """
    All nodes, jobs, and losses are in one manifest, from any iterator.
    """
    lost = [Missing(what="log", reason="gone", source=x) for x in "ab"]
    parts = iter(
        [
            manifest_of("n1", job="run 8", skipped=(lost[0],)),
            manifest_of("n2", job="run 7", skipped=(lost[1],)),
            manifest_of("n3", job="run 8"),
            manifest_of("n4"),
        ]
    )

    merged = merge_manifests(parts, created=7.0)

    assert (__version__, 7.0, "run 7 run 8") == (
        merged.version,
        merged.created,
        merged.job,
    )
    assert ["n1", "n2", "n3", "n4"] == [node.host for node in merged.nodes]
    assert tuple(lost) == merged.skipped


def test_merge_nobody():
    """
    Without parts the merged manifest is empty.
    """
    assert Manifest(created=7.0) == merge_manifests([], created=7.0)
