"""
What is taken from a job that hangs, and what happens if a part of it fails?
"""

from __future__ import annotations

import json
import socket

from types import SimpleNamespace

import pytest

from distdebug.bundle.manifest import read_manifest
from distdebug.capture.model import Capture, CaptureStatus, ProcessCapture
from distdebug.diagnosis import snapshot as module
from distdebug.diagnosis.snapshot import snapshot
from distdebug.errors import PatternError
from distdebug.findings import Cause, Missing
from distdebug.processes.model import Worker
from distdebug.stacks.model import ProcessStacks, StackFrame, ThreadStack
from distdebug.testing import SimulatedJob, make_dumps


HOST = socket.gethostname()
FULL = OSError(28, "No space left on device")


def process(rank):
    """
    A rank that reads a file.
    """
    worker = Worker(
        pid=1000 + rank,
        start_ticks=5,
        parent_pid=1,
        uid=0,
        title="python train.py",
        framework="torchrun",
        rank=rank,
        job="run 7" if rank else "",
    )
    frame = StackFrame("readinto", "/usr/lib/python3.11/socket.py", 706)
    thread = ThreadStack(name="MainThread", frames=(frame,), is_main=True)
    stacks = ProcessStacks(
        pid=1000 + rank,
        source="py-spy",
        threads=(thread,),
        rank=rank,
        role="rank",
    )
    return ProcessCapture(
        worker=worker, status=CaptureStatus.OK, stacks=stacks
    )


@pytest.fixture
def node(monkeypatch):
    """
    A node with two ranks, and what it was asked.
    """
    log = SimpleNamespace(
        capture=Capture(host=HOST, processes=(process(0), process(1))),
        calls=[],
        pids=None,
    )

    def capture(**kwargs):
        log.calls.append(kwargs)
        return log.capture

    def facts(pids, path, _):
        log.pids = pids
        path.write_text("{}")
        return [path], []

    monkeypatch.setattr(module, "capture_node", capture)
    monkeypatch.setattr(module, "keep_facts", facts)
    return log


def raises(exc):
    """
    A function that fails.
    """

    def fail(*_, **__):
        raise exc

    return fail


def reasons(taken):
    """
    What was skipped, and why.
    """
    return [(m.what, m.reason) for m in taken.manifest.skipped]


class TestAll:
    def test_everything(self, node, tmp_path):
        """
        Stacks, dumps, facts, and logs are in one folder, with a report.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        make_dumps(tmp_path / "dumps", job)
        (tmp_path / "train.log").write_text("step 3")
        told = []

        taken = snapshot(
            tmp_path / "hang",
            dump_dir=tmp_path / "dumps",
            pids=[1000, 1001],
            logs=[tmp_path / "train.log"],
            timeout_s=4,
            tell=lambda *row: told.append(row),
        )

        names = {
            str(p.relative_to(taken.folder))
            for p in taken.folder.rglob("*")
            if p.is_file()
        }
        assert {
            *("manifest.json", "REPORT.txt", f"{HOST}/node.json"),
            *(f"{HOST}/workers.json", f"{HOST}/logs/train.log"),
            *(f"{HOST}/pyspy_{HOST}_{1000 + r}.json" for r in (0, 1)),
        } < names
        assert any("/flight_recorder/" in name for name in names)
        assert taken.manifest == read_manifest(taken.folder)
        assert "run 7" == taken.manifest.job
        assert (1000, 1001) == node.pids
        assert ("node", 1, 1) in told

    def test_options(self, node, tmp_path):
        """
        Options are passed on, and stacks may not take all of the time.
        """
        snapshot(
            tmp_path / "hang",
            patterns=iter(["train"]),
            native="all",
            cuda=True,
            timeout_s=100,
        )

        (options,) = node.calls
        assert (None, ("train",), "all", True) == tuple(
            options[name] for name in ("pids", "patterns", "native", "cuda")
        )
        assert 60 < options["timeout_s"] <= 70

    def test_from_stacks(self, node, tmp_path):
        """
        Without dumps the stacks tell what there is to tell.
        """
        taken = snapshot(tmp_path / "hang")

        (entry,) = taken.manifest.nodes
        assert (HOST, "ok", "") == (entry.host, entry.status, entry.reason)
        assert Cause.IO_WAIT == taken.diagnosis.verdict.cause
        report = (taken.folder / "REPORT.txt").read_text()
        assert f"{taken.diagnosis}\n" == report

    def test_second(self, node, tmp_path):
        """
        A second snapshot leaves the first alone.
        """
        first = snapshot(tmp_path / "hang")

        second = snapshot(tmp_path / "hang")

        assert tmp_path / "hang" == first.folder
        assert tmp_path / "hang.2" == second.folder

    def test_shown(self, node, tmp_path):
        """
        It prints the verdict first, and then where everything is.
        """
        printed = []
        printer = SimpleNamespace(text=printed.append)

        taken = snapshot(tmp_path / "hang")

        taken._repr_pretty_(printer, cycle=False)
        taken._repr_pretty_(printer, cycle=True)
        assert [str(taken), "..."] == printed
        assert str(taken).startswith(str(taken.diagnosis))
        assert f"snapshot: {tmp_path}/hang (nodes: 1, files: 7)" in str(taken)
        data = json.loads(json.dumps(taken.to_dict()))
        assert data["verdict"]["cause"] == taken.diagnosis.verdict.cause
        assert str(taken.folder) == data["folder"]
        assert HOST == data["manifest"]["nodes"][0]["host"]


class TestFailures:
    def test_bad_pattern(self, node, tmp_path):
        """
        A pattern that cannot be read is an error before anything is made.
        """
        with pytest.raises(PatternError):
            snapshot(tmp_path / "hang", patterns=["("])

        assert not (tmp_path / "hang").exists()

    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("capture_node", "stacks"),
            ("ask_ranks", "asking for dumps"),
            ("keep_dumps", "dumps"),
            ("keep_facts", "node"),
            ("keep_tails", "logs"),
        ],
    )
    def test_part(self, node, tmp_path, monkeypatch, name, what):
        """
        Each part fails alone.
        """
        monkeypatch.setattr(module, name, raises(ValueError("a\x1b[31mb")))

        taken = snapshot(tmp_path / "hang", dump_dir=tmp_path, timeout_s=1)

        assert (what, "ValueError: ab") in reasons(taken)
        assert (taken.folder / "manifest.json").exists()

    def test_nothing(self, node, tmp_path):
        """
        If no worker could be seen, the verdict is that nothing is known.
        """
        node.capture = Capture(host=HOST, processes=())

        taken = snapshot(tmp_path / "hang")

        assert taken.is_blind
        assert Cause.UNKNOWN == taken.diagnosis.verdict.cause
        assert ["diagnosis"] == [what for what, _ in reasons(taken)]
        assert "failed" == taken.manifest.nodes[0].status
        assert not (taken.folder / "REPORT.txt").exists()

    def test_told_by_capture(self, node, tmp_path):
        """
        What a part could not see makes the node a partial one.
        """
        lost = Missing(what="stack", reason="denied", rank=1)
        node.capture = Capture(
            host=HOST, processes=(process(0),), missing=(lost,)
        )

        taken = snapshot(tmp_path / "hang")

        assert (lost,) == taken.manifest.skipped
        assert "partial" == taken.manifest.nodes[0].status
        assert not taken.is_blind

    def test_full_disk(self, node, tmp_path, monkeypatch):
        """
        Where nothing can be written there is still a diagnosis.
        """
        monkeypatch.setattr(module, "write_whole", raises(FULL))
        monkeypatch.setattr(module, "write_manifest", raises(FULL))
        monkeypatch.setattr(module, "write_capture", raises(FULL))

        taken = snapshot(tmp_path / "hang")

        assert Cause.IO_WAIT == taken.diagnosis.verdict.cause
        assert ["stacks", "diagnosis", "manifest"] == [
            what for what, _ in reasons(taken)
        ]

    def test_no_report(self, node, tmp_path, monkeypatch):
        """
        A report that cannot be written is told.
        """
        monkeypatch.setattr(module, "write_whole", raises(FULL))

        taken = snapshot(tmp_path / "hang")

        assert ["report"] == [what for what, _ in reasons(taken)]
