"""
What is taken from a job that hangs, and what happens if a part of it fails?
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from distdebug import snapshot
from distdebug.causes import Cause
from distdebug.errors import PatternError
from distdebug.findings import Diagnosis, Evidence, Finding, Missing
from distdebug.snapshots import (
    Manifest,
    SnapshotOptions,
    collect,
    collect_node,
    diagnose_bundle,
    new_bundle,
    read_manifest,
)
from distdebug.testing import SimulatedJob, make_dumps


HOST = socket.gethostname()


@pytest.fixture(name="rank")
def _rank(node):
    """
    Has ranks on the node that are real processes, with this environment.
    """
    with contextlib.ExitStack() as stack:

        def start(*environs, **options):
            pids = []
            for environ in environs:
                sleeps = stack.enter_context(
                    subprocess.Popen(
                        ["/bin/sleep", "60"], env=environ, **options
                    )
                )
                stack.callback(sleeps.kill)
                # It has an environment when its program has begun.
                while psutil.Process(sleeps.pid).status() != "sleeping":
                    time.sleep(0.001)
                pids.append(sleeps.pid)
            node.shows(*(node.seen(r, pid) for r, pid in enumerate(pids)))

        yield start


def write_dumps(folder):
    """
    Write the dumps of a job of two ranks.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    return make_dumps(folder, job)


def files(taken):
    """
    The files of the node's part.
    """
    folder = taken.folder / HOST
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file()
    }


def no_space(*_, **__):
    """
    The disk is full.
    """
    raise OSError(28, "No space left on device")


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
        write_dumps(tmp_path / "dumps")
        (tmp_path / "train.log").write_text("step 3")
        told = []

        taken = snapshot(
            tmp_path / "hang",
            dump_dir=tmp_path / "dumps",
            pids=[5_000_000, 5_000_001],
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
            *(f"{HOST}/pyspy_{HOST}_{5_000_000 + r}.json" for r in (0, 1)),
        } < names
        assert any("/flight_recorder/" in name for name in names)
        assert taken.manifest == read_manifest(taken.folder)
        assert "run 7" == taken.manifest.job
        assert (5_000_000, 5_000_001) == node.pids
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
        Without dumps the stacks yield the diagnosis.
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
    @pytest.mark.process
    def test_told_by_ranks(self, rank, tmp_path):
        """
        The folders of dumps are taken from the environments of the ranks.
        """
        for name in "ab":
            write_dumps(tmp_path / name)
        rank(
            {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a/nccl_trace_rank_"},
            {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/b/nccl_trace_rank_"},
        )

        taken = snapshot(tmp_path / "hang")

        assert {
            f"{folder}/nccl_trace_rank_{number}"
            for folder in ("flight_recorder", "flight_recorder.2")
            for number in (0, 1)
        } <= files(taken)

    @pytest.mark.process
    def test_ended_meanwhile(self, rank, node, tmp_path, monkeypatch):
        """
        Ranks that end while they are looked at may have left their dumps.
        """
        write_dumps(tmp_path / "a")
        rank({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a/nccl_trace_rank_"})
        look = collect.capture_node

        def end(**options):
            seen = look(**options)
            for process in seen.processes:
                os.kill(process.worker.pid, signal.SIGKILL)
            return seen

        monkeypatch.setattr(collect, "capture_node", end)

        taken = snapshot(tmp_path / "hang")

        assert "flight_recorder/nccl_trace_rank_0" in files(taken)

    @pytest.mark.process
    def test_named(self, rank, tmp_path):
        """
        A folder that the user names replaces those of the ranks.
        """
        for name in "ab":
            write_dumps(tmp_path / name)
        rank({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/b/nccl_trace_rank_"})

        taken = snapshot(tmp_path / "hang", dump_dir=str(tmp_path / "a"))

        assert {"flight_recorder"} == {
            name.partition("/")[0]
            for name in files(taken)
            if "flight_recorder" in name
        }
        assert [str(tmp_path / "a")] == [
            lost.source for lost in taken.manifest.skipped
        ]

    @pytest.mark.process
    def test_many(self, rank, tmp_path, monkeypatch):
        """
        Many folders of silent ranks share the time, and the room for dumps.
        """
        rooms, keep = [], collect.collect_dumps

        def collect_dumps(*args, max_bytes, **options):
            rooms.append(max_bytes)
            return keep(*args, max_bytes=max_bytes, **options)

        monkeypatch.setattr(collect, "collect_dumps", collect_dumps)
        names, pipes = "abc", []
        for name in names:
            write_dumps(tmp_path / name)
            os.mkfifo(tmp_path / name / "1-5_request_0.pipe")
            pipe = tmp_path / name / "1-5_request_0.pipe"
            pipes.append(os.open(pipe, os.O_RDWR))
        rank(
            *(
                {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/{name}/nccl"}
                for name in names
            )
        )

        taken = snapshot(tmp_path / "hang", timeout_s=1.5)

        for pipe in pipes:
            os.close(pipe)
        sizes = sum(
            path.stat().st_size for path in (tmp_path / "a").glob("nccl*")
        )
        assert [("fresh dump", "no answer in time")] * 3 == reasons(taken)
        assert [sizes * n for n in range(3)] == [rooms[0] - x for x in rooms]
        assert "flight_recorder.3/nccl_trace_rank_1" in files(taken)

    @pytest.mark.process
    def test_no_time(self, rank, tmp_path):
        """
        Folders for which no time is left are reported.
        """
        write_dumps(tmp_path / "a")
        rank({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/a/nccl_trace_rank_"})

        taken = snapshot(tmp_path / "hang", timeout_s=0.0)

        assert ("dump", "the time was over") in reasons(taken)
        assert not any("flight_recorder" in name for name in files(taken))

    def test_dumps_alone(self, node, tmp_path):
        """
        Dumps count as a view of the job, also without a process.
        """
        node.shows()
        write_dumps(tmp_path / "a")

        taken = snapshot(tmp_path / "hang", dump_dir=tmp_path / "a")

        assert not taken.is_blind

    def test_one_of_many(self, node, tmp_path):
        """
        Of many nodes each takes its own ranks, and says when it is done.
        """
        (tmp_path / "part").mkdir()
        for path in write_dumps(tmp_path / "a").values():
            path.unlink()
        for rank, host in ((0, "alias"), (7, "elsewhere")):
            told = {"kind": "distdebug-sidecar", "rank": rank, "host": host}
            path = tmp_path / "a" / f"1-1-1_rank_{rank}.sidecar.json"
            path.write_text(json.dumps({**told, "world_size": 8}))
        wanted = SnapshotOptions(dump_dir=tmp_path / "a")

        taken = collect_node(
            tmp_path / "part", wanted, host="n1", is_one_of_many=True
        )

        kept = tmp_path / "part" / "flight_recorder"
        assert ["1-1-1_rank_0.sidecar.json"] == [
            path.name for path in kept.iterdir()
        ]
        assert taken.manifest == read_manifest(tmp_path / "part")
        assert "n1" == taken.manifest.nodes[0].host
        assert Cause.IO_WAIT == taken.findings[0].cause

    def test_alone(self, node, tmp_path):
        """
        Alone, a node leaves the manifest to the caller.
        """
        collect_node(tmp_path, SnapshotOptions(), host="n1")

        assert not (tmp_path / "manifest.json").exists()


def test_debug_server(node, tmp_path, monkeypatch):
    """
    A debug server that knows all ranks is one more source, in time; none is
    asked unless it is named.
    """
    asked = []

    def keep(address, folder, ends):
        asked.append((address, folder.name, ends - time.monotonic()))
        return [folder / "dump"], []

    monkeypatch.setattr(collect, "collect_debug_server", keep)
    node.shows()

    alone = snapshot(tmp_path / "hang")
    taken = snapshot(
        tmp_path / "hang", debug_server="node-0:25999", timeout_s=100.0
    )

    ((address, folder, left_s),) = asked
    assert ("node-0:25999", HOST) == (address, folder)
    assert 50 < left_s <= 80
    assert (True, False) == (alone.is_blind, taken.is_blind)


class TestLogs:
    @pytest.mark.process
    def test_own(self, rank, tmp_path):
        """
        What workers print into is kept too, but nothing twice.
        """
        named, own = tmp_path / "named.log", tmp_path / "own.log"
        with named.open("w") as out, own.open("w") as err:
            rank({}, stdout=out, stderr=err)

        taken = snapshot(tmp_path / "x", logs=[named])

        assert {"logs/named.log", "logs/own.log"} == {
            name for name in files(taken) if "logs/" in name
        }

    def test_silent(self, node, tmp_path, monkeypatch):
        """
        A file system that does not answer costs the logs, and no more time.
        """
        over, log, real = threading.Event(), tmp_path / "train.log", os.open

        def open_file(path, *args, **options):
            if str(path) == str(log):
                over.wait(60)
            return real(path, *args, **options)

        monkeypatch.setattr(os, "open", open_file)
        # As it is, logs may take 5 s in any case.
        monkeypatch.setattr(collect, "_MIN_LOGS_S", 0.05)

        taken = snapshot(tmp_path / "x", logs=[log], timeout_s=0.1)

        over.set()
        assert [
            ("logs", "TimeoutError: they could not be read within 0 s")
        ] == reasons(taken)


class TestExplain:
    def test_many(self, node, tmp_path):
        """
        The parts of all nodes are one diagnosis, which ends the snapshot.
        """
        mark = new_bundle(tmp_path / "hang") / ".unfinished"
        for number in (0, 1):
            node.shows(node.seen(number))
            part = tmp_path / "hang" / f"n{number}"
            part.mkdir()
            collect_node(
                part, SnapshotOptions(), host=part.name, is_one_of_many=True
            )
        manifest = Manifest(version="1", created=5.0, job="run 7")

        taken = diagnose_bundle(tmp_path / "hang", manifest)

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
            ("find_dump_dirs", "folders of dumps"),
            ("request_rank_dumps", "asking for dumps"),
            ("collect_dumps", "dumps"),
            ("collect_debug_server", "debug server"),
            ("save_node_facts", "node"),
            ("save_log_tails", "logs"),
        ],
    )
    def test_part(self, node, tmp_path, monkeypatch, name, what):
        """
        Each part fails alone.
        """
        monkeypatch.setattr(collect, name, raises(ValueError("a\x1b[31mb")))

        taken = snapshot(
            tmp_path / "hang",
            dump_dir=None if name == "find_dump_dirs" else tmp_path,
            debug_server="node-0:25999" if "server" in name else "",
            timeout_s=1,
        )

        assert (what, "ValueError: ab") in reasons(taken)
        assert (taken.folder / "manifest.json").exists()

    def test_nothing(self, node, tmp_path):
        """
        If no worker could be seen, the verdict is that nothing is known.
        """
        node.shows()

        taken = snapshot(tmp_path / "hang")

        assert taken.is_blind
        assert Cause.UNKNOWN == taken.diagnosis.verdict.cause
        assert ["diagnosis"] == [what for what, _ in reasons(taken)]
        assert "failed" == taken.manifest.nodes[0].status
        assert not (taken.folder / "REPORT.txt").exists()

    def test_strangers(self, node, tmp_path, monkeypatch):
        """
        What the kernel says of some process is no verdict on a job of which no
        worker was seen.
        """
        node.shows()
        event = Finding(
            cause=Cause.NATIVE_CRASH,
            ranks=(),
            summary="process 7 crashed",
            confidence="likely",
            evidence=(Evidence(kind="kernel", source="n"),),
        )
        found = Diagnosis(verdict=event, findings=(event,))
        monkeypatch.setattr(collect, "diagnose", lambda _: found)

        got = snapshot(tmp_path / "hang").diagnosis

        assert Cause.UNKNOWN is got.verdict.cause
        assert "no worker of a job was found" in got.verdict.summary
        assert event in got.findings

    def test_told_by_capture(self, node, tmp_path):
        """
        What a part could not see makes the node a partial one.
        """
        lost = Missing(what="stack", reason="denied", rank=1)
        node.shows(node.seen(0), missing=(lost,))

        taken = snapshot(tmp_path / "hang")

        assert (lost,) == taken.manifest.skipped
        assert "partial" == taken.manifest.nodes[0].status
        assert not taken.is_blind

    def test_full_disk(self, node, tmp_path, monkeypatch):
        """
        Where nothing can be written there is still a diagnosis.
        """
        real = os.open

        def open_file(path, flags, *args, **options):
            if flags & os.O_CREAT and ".unfinished" not in str(path):
                no_space()
            return real(path, flags, *args, **options)

        monkeypatch.setattr(os, "open", open_file)

        taken = snapshot(tmp_path / "hang")

        assert Cause.IO_WAIT == taken.diagnosis.verdict.cause
        lost = reasons(taken)
        assert ["stack", "stack"] == [what for what, _ in lost[:2]]
        assert ["diagnosis", "manifest"] == [what for what, _ in lost[-2:]]
        assert "No space left on device" in lost[0][1]

    def test_no_report(self, node, tmp_path, monkeypatch):
        """
        A report that cannot be written is reported as missing.
        """
        replace = Path.replace

        def refuse(path, target):
            if target.name == "REPORT.txt":
                no_space()
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", refuse)

        taken = snapshot(tmp_path / "hang")

        assert [("report", "No space left on device")] == reasons(taken)
