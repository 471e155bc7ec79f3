"""
What is taken from a job that hangs, and what happens if a part of it fails?
"""

from __future__ import annotations

import json
import socket
import threading
import time

from types import SimpleNamespace

import pytest

from distdebug import snapshot
from distdebug.bundle import Manifest, Wanted, new_bundle
from distdebug.bundle.manifest import read_manifest
from distdebug.bundle.mark import MARK
from distdebug.capture import Capture
from distdebug.capture.model import CaptureStatus, ProcessCapture
from distdebug.diagnosis import collect as module
from distdebug.diagnosis import snapshot as snapshot_module
from distdebug.errors import PatternError
from distdebug.findings import Cause, Missing
from distdebug.processes import Worker
from distdebug.stacks import ProcessStacks, StackFrame, ThreadStack
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
        assert f"snapshot: {tmp_path}/hang (nodes: 1, files: 6)" in str(taken)
        data = json.loads(json.dumps(taken.to_dict()))
        assert data["verdict"]["cause"] == taken.diagnosis.verdict.cause
        assert str(taken.folder) == data["folder"]
        assert HOST == data["manifest"]["nodes"][0]["host"]


class TestDumpDirs:
    @pytest.fixture(name="asked")
    def _asked(self, node, monkeypatch):
        """
        Where dumps are asked for, and of whom; each folder has one.
        """
        asked = []

        def ask(folder, _, *, ranks, **_options):
            asked.append((folder.name, ranks))
            return []

        def keep(source, folder, _, *, own, **_options):
            asked.append((folder.name, own))
            return [folder / "dump"], []

        monkeypatch.setattr(module, "ask_ranks", ask)
        monkeypatch.setattr(module, "keep_dumps", keep)
        return asked

    def test_told_by_ranks(self, node, asked, tmp_path, monkeypatch):
        """
        Nobody needs to know where dumps are: the ranks that were seen do.
        """
        pids = []

        def find(found):
            pids.extend(found)
            return {tmp_path / "a": ("x_",), tmp_path / "b": ("y_",)}

        monkeypatch.setattr(module, "find_dump_dirs", find)

        taken = snapshot(tmp_path / "hang")

        assert [1000, 1001] == pids
        assert [
            *(("a", None), ("flight_recorder", None)),
            *(("b", None), ("flight_recorder.2", None)),
        ] == asked
        assert "ok" == taken.manifest.nodes[0].status

    def test_named(self, node, asked, tmp_path, monkeypatch):
        """
        Where the user says so, nobody else is believed.
        """
        monkeypatch.setattr(module, "find_dump_dirs", raises(ValueError()))

        snapshot(tmp_path / "hang", dump_dir=str(tmp_path / "a"))

        assert [("a", None), ("flight_recorder", None)] == asked

    def test_not_told(self, node, asked, tmp_path, monkeypatch):
        """
        If the folders cannot be learned, the rest goes on.
        """
        monkeypatch.setattr(module, "find_dump_dirs", raises(ValueError("x")))

        taken = snapshot(tmp_path / "hang")

        assert [] == asked
        assert [("folders of dumps", "ValueError: x")] == reasons(taken)

    def test_many(self, node, tmp_path, monkeypatch):
        """
        Many folders of silent ranks share the time, and the room for dumps.
        """
        waits, rooms = [], []

        def ask(_, seconds, **_options):
            waits.append(seconds)
            return []

        def keep(source, folder, _, *, most_bytes, **_options):
            rooms.append(most_bytes)
            folder.mkdir()
            (folder / source.name).write_bytes(b"12345")
            return [folder / source.name], []

        monkeypatch.setattr(module, "ask_ranks", ask)
        monkeypatch.setattr(module, "keep_dumps", keep)
        monkeypatch.setattr(
            module,
            "find_dump_dirs",
            lambda _: {tmp_path / str(n): ("x",) for n in range(12)},
        )

        snapshot(tmp_path / "hang", timeout_s=5.0)

        assert 0 < waits[0] < 5.0 / 12
        assert [5 * n for n in range(12)] == [rooms[0] - x for x in rooms]

    def test_no_time(self, node, asked, tmp_path, monkeypatch):
        """
        Folders for which no time is left are told.
        """
        monkeypatch.setattr(
            module, "find_dump_dirs", lambda _: {tmp_path / "a": ("x",)}
        )

        taken = snapshot(tmp_path / "hang", timeout_s=0.0)

        assert [] == asked
        assert ("dump", "the time was over") in reasons(taken)

    def test_dumps_alone(self, node, asked, tmp_path):
        """
        Who has dumps has seen the job, also without a process.
        """
        node.capture = Capture(host=HOST, processes=())

        taken = snapshot(tmp_path / "hang", dump_dir=tmp_path / "a")

        assert not taken.is_blind

    def test_one_of_many(self, node, asked, tmp_path):
        """
        Of many nodes each takes its own ranks, and says when it is done.
        """
        wanted = Wanted(dump_dir=tmp_path / "a")

        taken = module.collect_node(
            tmp_path, wanted, host="n1", is_one_of_many=True
        )

        assert [("a", {0, 1}), ("flight_recorder", {0, 1})] == asked
        assert taken.manifest == read_manifest(tmp_path)
        assert "n1" == taken.manifest.nodes[0].host
        assert Cause.IO_WAIT == taken.findings[0].cause

    def test_alone(self, node, asked, tmp_path):
        """
        Alone, whoever explains it writes the manifest.
        """
        module.collect_node(tmp_path, Wanted(), host="n1")

        assert not (tmp_path / "manifest.json").exists()


class TestDebugServer:
    def test_asked(self, node, tmp_path, monkeypatch):
        """
        A server that knows all ranks is one more source, in time.
        """
        asked = []

        def keep(address, folder, ends):
            asked.append((address, folder.name, ends - time.monotonic()))
            return [folder / "dump"], []

        monkeypatch.setattr(module, "keep_debug_server", keep)
        node.capture = Capture(host=HOST, processes=())

        taken = snapshot(
            tmp_path / "hang", debug_server="node-0:25999", timeout_s=100.0
        )

        ((address, folder, left_s),) = asked
        assert ("node-0:25999", HOST) == (address, folder)
        assert 50 < left_s <= 80
        assert not taken.is_blind

    def test_silent(self, node, tmp_path, monkeypatch):
        """
        One that does not answer costs nothing but itself.
        """
        monkeypatch.setattr(
            module, "keep_debug_server", raises(TimeoutError("no answer"))
        )

        taken = snapshot(tmp_path / "hang", debug_server="node-0:25999")

        assert [("debug server", "TimeoutError: no answer")] == reasons(taken)
        assert Cause.IO_WAIT == taken.diagnosis.verdict.cause

    def test_not_asked(self, node, tmp_path, monkeypatch):
        """
        Nobody is asked who was not named.
        """
        monkeypatch.setattr(module, "keep_debug_server", raises(ValueError()))

        assert [] == reasons(snapshot(tmp_path / "hang"))


class TestLogs:
    def test_own(self, node, tmp_path, monkeypatch):
        """
        What workers print into is kept too, but nothing twice.
        """
        named, own = tmp_path / "named.log", tmp_path / "own.log"
        named.write_text("one")
        own.write_text("two")
        monkeypatch.setattr(module, "own_logs", lambda _: [named, own])

        taken = snapshot(tmp_path / "x", logs=[named])

        folder = taken.folder / HOST / "logs"
        assert ["named.log", "own.log"] == sorted(
            path.name for path in folder.iterdir()
        )

    def test_silent(self, node, tmp_path, monkeypatch):
        """
        A file system that does not answer costs the logs, and no more time.
        """
        over = threading.Event()
        monkeypatch.setattr(module, "_LEAST_LOGS_S", 0.05)
        monkeypatch.setattr(module, "own_logs", lambda _: over.wait(60))

        taken = snapshot(tmp_path / "x", timeout_s=0.1)

        over.set()
        assert "logs: TimeoutError: they could not be read within 0 s" in [
            f"{m.what}: {m.reason}" for m in taken.manifest.skipped
        ]


class TestExplain:
    def test_many(self, node, tmp_path):
        """
        The parts of all nodes are one diagnosis, which ends the snapshot.
        """
        mark = new_bundle(tmp_path / "hang") / MARK
        for number in (0, 1):
            node.capture = Capture(host=HOST, processes=(process(number),))
            part = tmp_path / "hang" / f"n{number}"
            part.mkdir()
            module.collect_node(
                part, Wanted(), host=part.name, is_one_of_many=True
            )
        manifest = Manifest(version="1", created=5.0, job="run 7")

        taken = snapshot_module.explain_bundle(tmp_path / "hang", manifest)

        assert (Cause.IO_WAIT, (0, 1)) == (
            taken.diagnosis.verdict.cause,
            taken.diagnosis.verdict.ranks,
        )
        assert manifest == taken.manifest == read_manifest(tmp_path / "hang")
        assert (taken.folder / "REPORT.txt").exists()
        assert not mark.exists()


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
        monkeypatch.setattr(snapshot_module, "write_whole", raises(FULL))
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
        monkeypatch.setattr(snapshot_module, "write_whole", raises(FULL))

        taken = snapshot(tmp_path / "hang")

        assert ["report"] == [what for what, _ in reasons(taken)]
