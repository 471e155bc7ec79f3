"""
The command ``snapshot``.
"""

from __future__ import annotations

import json

from types import SimpleNamespace

import attrs
import pytest

import distdebug

from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.findings import Diagnosis, Finding
from distdebug.snapshots import Manifest, NodeEntry


def finding(cause):
    """
    A verdict.
    """
    return Finding(
        cause=cause, ranks=(3,), summary="rank 3 reads", confidence="certain"
    )


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """
    What a snapshot gives, and how it was asked for.
    """
    node = NodeEntry(host="n1", status="ok", files=4)
    log = SimpleNamespace(
        snapshot=distdebug.Snapshot(
            tmp_path / "hang",
            Diagnosis(verdict=finding(Cause.IO_WAIT)),
            Manifest(version="1", created=1.0, nodes=(node,)),
        ),
        calls=[],
    )

    def take(*args, **kwargs):
        log.calls.append((args, kwargs))
        kwargs["tell"]("stacks", 1, 4)
        return log.snapshot

    monkeypatch.setattr("distdebug.snapshot", take, raising=False)
    return log


def test_page(taken):
    """
    What was taken gets a page, which shows the diagnosis.
    """
    taken.snapshot.folder.mkdir()

    main(["snapshot", "hang"])

    page = taken.snapshot.folder / "report.html"
    assert "Rank 3 reads." in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", (None, None, (), (), "none", False, 120.0)),
        (
            (
                "--here --dump-dir d --pid 7 --pattern a --log x --log y "
                "--native --cuda --timeout 9"
            ),
            ("d", [7], ["a"], ["x", "y"], "classes", True, 9.0),
        ),
    ],
    ids=["none", "all"],
)
def test_options(taken, capsys, line, expected):
    """
    Options say what is taken, and how; the diagnosis is printed, and where
    everything is.
    """
    status = main(["snapshot", *line.split(), "hang"])

    (((folder,), options),) = taken.calls
    names = "dump_dir pids patterns logs native cuda timeout_s"
    assert expected == tuple(options[name] for name in names.split())
    out = capsys.readouterr().out
    assert (1, "hang") == (status, folder)
    assert out.startswith("rank 3 reads\n")
    assert "hang (nodes: 1, files: 4)" in out


def test_json(taken, capsys):
    """
    Programs get the diagnosis and the manifest.
    """
    status = main(["snapshot", "--json", "hang"])

    data = json.loads(capsys.readouterr().out)
    assert (1, "snapshot", 1) == (data["schema"], data["command"], status)
    assert "io_wait" == data["verdict"]["cause"]
    assert "n1" == data["manifest"]["nodes"][0]["host"]


def test_healthy(taken):
    """
    The status says if nothing is wrong, or no worker could be seen.
    """
    healthy = Diagnosis(verdict=finding(Cause.HEALTHY))
    taken.snapshot = attrs.evolve(taken.snapshot, diagnosis=healthy)
    assert 0 == main(["snapshot", "hang"])

    node = NodeEntry(host="n1", status="failed")
    manifest = attrs.evolve(taken.snapshot.manifest, nodes=(node,))
    taken.snapshot = attrs.evolve(taken.snapshot, manifest=manifest)
    assert 2 == main(["snapshot", "hang"])


def test_no_folder(tmp_path, capsys):
    """
    A folder that cannot be made is refused before anything is done.
    """
    (tmp_path / "file").write_text("")

    status = main(["snapshot", str(tmp_path / "file" / "hang")])

    assert 2 == status
    assert "Not a directory" in capsys.readouterr().err


def test_slurm(taken, monkeypatch):
    """
    With a job of Slurm, all of its nodes are asked.
    """
    seen = []

    def take(folder, *, engine, **_):
        seen.append((folder, engine.job, engine.container_name))
        return taken.snapshot

    monkeypatch.setattr("distdebug.snapshots.snapshot_everywhere", take)

    status = main(
        ["snapshot", "--slurm", "1234", "--container-name", "c", "hang"]
    )

    assert 1 == status
    assert [("hang", "1234", "c")] == seen
