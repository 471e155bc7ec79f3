"""
The command ``watch``.
"""

from __future__ import annotations

import json

from types import SimpleNamespace

import attrs
import pytest

from distdebug.__main__ import main
from distdebug.bundle.manifest import Manifest, NodeEntry
from distdebug.diagnosis.snapshot import Snapshot
from distdebug.findings import Cause, Diagnosis, Finding
from distdebug.watching import watch as room
from distdebug.watching.watch import HangReason


REASON = HangReason(kind="wait", elapsed_s=1800.0, pids=(7, 8))


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """
    A watch that calls once, and a snapshot that finds something.
    """
    verdict = Finding(
        cause=Cause.IO_WAIT, ranks=(3,), summary="rank 3 is blocked"
    )
    node = NodeEntry(host="n1", status="ok", files=4)
    log = SimpleNamespace(
        ending="ended",
        calls=1,
        options=None,
        taken=[],
        snapshot=Snapshot(
            tmp_path / "hang",
            Diagnosis(verdict=verdict),
            Manifest(version="1", created=1.0, nodes=(node,)),
        ),
    )

    def watch(config, **options):
        log.options = (config, options)
        for _ in range(log.calls):
            options["on_hang"](REASON)
        return log.ending

    def take(*args, **kwargs):
        log.taken.append((args, kwargs))
        return log.snapshot

    monkeypatch.setattr(room, "watch_processes", watch)
    monkeypatch.setattr("distdebug.snapshot", take, raising=False)
    return log


def test_found(watched, capsys, tmp_path):
    """
    A snapshot is taken of who was watched, where it was wished, and shown.
    """
    status = main(
        ["watch", "--wait-seconds", "1800", "--output-dir", str(tmp_path)]
    )

    out, err = capsys.readouterr()
    ((folder,), options) = watched.taken[0]
    assert 1 == status
    assert (tmp_path, (7, 8)) == (folder, options["pids"])
    assert "rank 3 is blocked" in out
    assert "1,800 s are over: taking a snapshot" in err
    config, how = watched.options
    assert ((1800.0,), False) == (config.wait_seconds, how["until_exit"])


def test_only_progress(watched):
    """
    Without a wait, it goes on until the job is over.
    """
    watched.calls = 0

    status = main(["watch", "--floor", "20", "--pid", "7"])

    config, how = watched.options
    assert 0 == status
    assert config.enabled
    assert (True, (7,), 5.0) == (
        how["until_exit"],
        tuple(how["pids"]),
        how["poll_s"],
    )
    assert {"floor_s": 20.0} == how["new_sensor"].keywords


def test_healthy(watched):
    """
    A snapshot that finds nothing is no hang.
    """
    verdict = Finding(cause=Cause.PROGRESSING, ranks=(), summary="it moves")
    watched.snapshot = attrs.evolve(
        watched.snapshot, diagnosis=Diagnosis(verdict=verdict)
    )

    assert 0 == main(["watch", "--wait-seconds", "5"])


def test_json(watched, capsys):
    """
    Each snapshot is one line.
    """
    watched.calls = 2

    main(["watch", "--json", "--wait-seconds", "5"])

    lines = capsys.readouterr().out.splitlines()
    assert ["watch", "watch"] == [json.loads(x)["command"] for x in lines]


def test_job_file(watched, tmp_path):
    """
    A job file says when to look, and where to write.
    """
    pytest.importorskip("yaml")
    job = tmp_path / "job.yaml"
    job.write_text("debug:\n  enabled: true\n  wait_seconds: [60, 120]\n")

    main(["watch", "--config", str(job), "--log-dir", "/logs"])

    config, _ = watched.options
    assert (60.0, 120.0) == config.wait_seconds
    assert "/logs/backtraces" == str(watched.taken[0][0][0])


@pytest.mark.parametrize("ending", ["off", "nobody"])
def test_nobody(watched, capsys, ending):
    """
    Who watched nobody does not say that all is well.
    """
    watched.ending, watched.calls = ending, 0

    assert 2 == main(["watch"])
    assert "nothing was watched" in capsys.readouterr().err
