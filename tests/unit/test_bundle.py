"""
What a snapshot looks like on disk.
"""

from __future__ import annotations

import json
import os
import time

import pytest

from distdebug.bundle import dumps as dumps_module
from distdebug.bundle import logs as logs_module
from distdebug.bundle import manifest as manifest_module
from distdebug.bundle import node as node_module
from distdebug.bundle.dumps import ask_ranks, keep_dumps
from distdebug.bundle.logs import keep_tails
from distdebug.bundle.manifest import (
    Manifest,
    NodeEntry,
    new_bundle,
    read_manifest,
    write_manifest,
)
from distdebug.bundle.node import keep_facts, public_variables
from distdebug.capture.tool import ToolOutput
from distdebug.errors import BundleError
from distdebug.findings import Missing
from distdebug.flight_recorder.request import DumpRequest
from distdebug.testing import SimulatedJob, make_dumps


NODE = {"host": "n1", "status": "ok", "seconds": 1.0, "reason": ""}
MANIFEST = Manifest(
    version="1.2.3",
    created=1.7e9,
    job="run 7",
    nodes=(NodeEntry(host="n1", status="partial", seconds=2.5, files=3),),
    skipped=(Missing(what="log", reason="gone", rank=3, source="a.log"),),
)


def fail_silently(_):
    """
    Fail without a reason.
    """
    raise ValueError


def soon():
    """
    A deadline that does not come in a test.
    """
    return time.monotonic() + 60


def names(folder):
    """
    What is in a folder.
    """
    return [path.name for path in folder.iterdir()]


class TestNewBundle:
    def test_new(self, tmp_path):
        """
        The folder that was wanted is made, for its owner alone.
        """
        folder = new_bundle(tmp_path / "a" / "hang")

        assert tmp_path / "a" / "hang" == folder
        assert 0o700 == folder.stat().st_mode & 0o777

    def test_empty(self, tmp_path):
        """
        An empty folder is used, and closed to others.
        """
        (tmp_path / "hang").mkdir(mode=0o755)

        folder = new_bundle(tmp_path / "hang")

        assert tmp_path / "hang" == folder
        assert 0o700 == folder.stat().st_mode & 0o777

    def test_taken(self, tmp_path):
        """
        What is there is left alone: files, snapshots, and unfinished ones.
        """
        (tmp_path / "hang").write_text("a file")
        first = new_bundle(tmp_path / "hang")
        write_manifest(first, MANIFEST)

        second = new_bundle(tmp_path / "hang")
        third = new_bundle(tmp_path / "hang")

        assert ["hang.2", "hang.3", "hang.4"] == [
            f.name for f in (first, second, third)
        ]
        assert MANIFEST == read_manifest(first)

    def test_both_at_once(self, tmp_path, monkeypatch):
        """
        Of two that find a folder empty only one has it.
        """
        mark = manifest_module._MARK
        (tmp_path / mark).mkdir()
        monkeypatch.setattr(manifest_module, "any", lambda _: False, False)

        folder = new_bundle(tmp_path)

        assert f"{tmp_path.name}.2" == folder.name

    def test_one_was_faster(self, tmp_path, monkeypatch):
        """
        Whoever began and ended meanwhile keeps the folder.
        """
        write_manifest(tmp_path, MANIFEST)
        monkeypatch.setattr(manifest_module, "any", lambda _: False, False)
        monkeypatch.setattr(
            manifest_module.itertools, "count", lambda _: iter([1])
        )

        with pytest.raises(AssertionError):
            new_bundle(tmp_path)

        assert ["manifest.json"] == names(tmp_path)


class TestManifest:
    def test_round_trip(self, tmp_path):
        """
        What is written is read again, and nothing else is left.
        """
        folder = new_bundle(tmp_path)

        write_manifest(folder, MANIFEST)

        assert MANIFEST == read_manifest(folder)
        assert ["manifest.json"] == names(folder)

    def test_nothing(self, tmp_path):
        """
        A folder without a manifest is no finished snapshot.
        """
        with pytest.raises(BundleError, match="never finished"):
            read_manifest(tmp_path)

    def test_may_not_be_read(self, tmp_path):
        """
        What the system says is passed on.
        """
        (tmp_path / "manifest.json").symlink_to("manifest.json")

        with pytest.raises(BundleError, match="symbolic links"):
            read_manifest(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            {"schema": 2},
            {"tool": "other"},
            {"version": 7},
            {"created": "x"},
            {"nodes": 5},
            {"nodes": [{**NODE, "files": float("inf")}]},
            {"nodes": [{"host": "n1", "status": "fine"}]},
            {"skipped": ["x"]},
            {"skipped": [{"what": "x"}]},
        ],
    )
    def test_damaged(self, tmp_path, change):
        """
        What cannot be understood is refused by a typed error.
        """
        data = {**MANIFEST.to_dict(), **change}
        (tmp_path / "manifest.json").write_text(json.dumps(data))

        with pytest.raises(BundleError, match="damaged"):
            read_manifest(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"])
    def test_no_json(self, tmp_path, text):
        """
        Whatever a file holds, the error is ours.
        """
        path = tmp_path / "manifest.json"
        path.write_bytes(text.encode("latin-1"))

        with pytest.raises(BundleError, match="damaged"):
            read_manifest(tmp_path)

    def test_pipe(self, tmp_path):
        """
        Reading does not wait at a pipe.
        """
        os.mkfifo(tmp_path / "manifest.json")

        with pytest.raises(BundleError, match="not a file"):
            read_manifest(tmp_path)

    def test_too_large(self, tmp_path, monkeypatch):
        """
        A file that no snapshot leaves is not read into memory.
        """
        write_manifest(tmp_path, MANIFEST)
        monkeypatch.setattr(manifest_module, "_MOST_BYTES", 8)

        with pytest.raises(BundleError, match="too large"):
            read_manifest(tmp_path)

    def test_without_rank(self, tmp_path):
        """
        What is missing need not belong to a rank or a file.
        """
        lost = Missing(what="stack", reason="gone")
        manifest = Manifest(version="1", created=1.0, skipped=(lost,))

        write_manifest(tmp_path, manifest)

        assert manifest == read_manifest(tmp_path)


class TestLogs:
    def test_tail(self, tmp_path, monkeypatch):
        """
        The end of a log is kept, and logs of one name do not collide.
        """
        monkeypatch.setattr(logs_module, "_MOST_BYTES", 4)
        logs = [tmp_path / name for name in ("a/x.log", "b/x.log", "rank_0")]
        for log in logs:
            log.parent.mkdir(exist_ok=True)
            log.write_text(f"step 7 {log.parent.name[0]}end")

        files, missing = keep_tails(logs, tmp_path / "logs")

        assert [] == missing
        assert ["x.log", "x.2.log", "rank_0.log"] == [f.name for f in files]
        assert ["aend", "bend"] == [f.read_text() for f in files[:2]]

    def test_not_kept(self, tmp_path, monkeypatch):
        """
        Every log fails alone, and says why.
        """
        monkeypatch.setattr(logs_module, "_MOST_LOGS", 3)
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "good.out").write_text("fine")
        names = ["pipe", "gone.log", "good.out", "more"]

        files, missing = keep_tails(
            [tmp_path / name for name in names], tmp_path / "logs"
        )

        assert ["good.out"] == [f.name for f in files]
        assert [
            "it is not a file",
            "No such file or directory",
            "only 3 logs are kept",
        ] == [m.reason for m in missing]


class TestDumps:
    def job(self, folder):
        """
        Write the dumps of a small job.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        return make_dumps(folder, job)

    def test_newest(self, tmp_path):
        """
        Of each rank the newest dump and its side-car are kept, with times.
        """
        source = tmp_path / "dumps"
        first = self.job(source)
        for path in source.iterdir():
            os.utime(path, (1000, 1000))
        later = self.job(source / "later")
        (source / "notes.txt").write_text("hello")
        (source / "config.json").write_text("{}")

        files, missing = keep_dumps(source, tmp_path / "kept", soon())

        names = {f.name for f in files}
        assert 2 == len(first) == len(files)
        assert [] == missing
        assert {p.name for p in later.values()} <= names
        assert not {"notes.txt", "config.json"} & names
        kept = tmp_path / "kept" / "later" / later[0].name
        assert later[0].read_bytes() == kept.read_bytes()
        assert later[0].stat().st_mtime_ns == kept.stat().st_mtime_ns
        assert 0o600 == kept.stat().st_mode & 0o777

    def test_sidecar_alone(self, tmp_path):
        """
        What a rank left that died is kept too.
        """
        data = {
            "kind": "distdebug-sidecar",
            "rank": 1,
            "world_size": 2,
            "reason": "start",
        }
        source = tmp_path / "dumps"
        source.mkdir()
        for number, name in enumerate(("1-1-1", "2-2-1")):
            path = source / f"{name}_rank_1.sidecar.json"
            path.write_text(json.dumps({**data, "written": number}))

        files, _ = keep_dumps(source, tmp_path / "kept", soon())

        assert ["2-2-1_rank_1.sidecar.json"] == [f.name for f in files]

    def test_with_sidecar(self, tmp_path):
        """
        A dump and its side-car are kept together.
        """
        (dump, _) = self.job(tmp_path / "dumps").values()
        side = dump.with_name(f"{dump.name}.sidecar.json")
        data = {
            "kind": "distdebug-sidecar",
            "rank": 0,
            "world_size": 2,
            "dump": dump.name,
        }
        side.write_text(json.dumps(data))

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon()
        )

        assert [] == missing
        assert [dump.name, side.name, "nccl_trace_rank_1"] == [
            f.name for f in files
        ]

    def test_bounds(self, tmp_path, monkeypatch):
        """
        What is too large, or comes too late, is told and not kept.
        """
        self.job(tmp_path / "dumps")
        late = tmp_path / "late"

        files, missing = keep_dumps(tmp_path / "dumps", late, 0.0)

        assert [] == files
        assert {"the time was over"} == {m.reason for m in missing}
        monkeypatch.setattr(dumps_module, "_ONE_MOST_BYTES", 1)
        files, missing = keep_dumps(tmp_path / "dumps", late, soon())
        assert [] == files
        assert {"it is too large for the space that is left"} == {
            m.reason for m in missing
        }

    def test_little_space(self, tmp_path, monkeypatch):
        """
        What the disk has left is not used up.
        """
        self.job(tmp_path / "dumps")
        monkeypatch.setattr(dumps_module, "_free_bytes", lambda _: 100)

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon()
        )

        assert [] == files
        assert 2 == len(missing)

    def test_full_disk(self, tmp_path, monkeypatch):
        """
        What could not be written leaves nothing behind.
        """
        self.job(tmp_path / "dumps")

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(dumps_module.shutil, "copyfileobj", fail)

        files, missing = keep_dumps(
            tmp_path / "dumps", tmp_path / "kept", soon()
        )

        assert [] == files
        assert {"No space left on device"} == {m.reason for m in missing}
        assert [] == names(tmp_path / "kept")

    def test_became_a_pipe(self, tmp_path):
        """
        A pipe where a dump was found is not waited at.
        """
        os.mkfifo(tmp_path / "pipe")

        with pytest.raises(OSError, match="not a file"):
            dumps_module._copy(tmp_path / "pipe", tmp_path / "x", 10)

    def test_ask(self, tmp_path, monkeypatch):
        """
        Who gave no new dump is told; torch's ranks are known by their files.
        """
        (tmp_path / "nccl_trace_rank_2").write_bytes(b"new")
        rows = (
            DumpRequest(0, "dumped", tmp_path),
            DumpRequest(1, "silent", tmp_path, "no answer in time"),
            DumpRequest(2, "asked", tmp_path),
            DumpRequest(3, "asked", tmp_path),
        )
        monkeypatch.setattr(
            dumps_module, "request_dumps", lambda _, timeout_s: rows
        )

        missing = ask_ranks(tmp_path, 0.05)

        assert [
            (1, "no answer in time"),
            (3, "torch was asked for it, and wrote none"),
        ] == [(m.rank, m.reason) for m in missing]

    def test_torch_wrote(self, tmp_path, monkeypatch):
        """
        When all files are there, nobody waits longer.
        """
        (tmp_path / "nccl_trace_rank_2").write_bytes(b"new")
        rows = (DumpRequest(2, "asked", tmp_path),)
        monkeypatch.setattr(
            dumps_module, "request_dumps", lambda _, timeout_s: rows
        )

        missing = ask_ranks(tmp_path, 600)

        assert [] == missing

    def test_nobody(self, tmp_path):
        """
        Without any pipe there is nobody to ask.
        """
        (missing,) = ask_ranks(tmp_path, 0.1)

        assert "no pipes" in missing.reason


@pytest.fixture
def tools(monkeypatch):
    """
    What tools answer, by name.
    """
    answers = {
        "nvidia-smi": ToolOutput(0, "", ""),
        "dmesg": ToolOutput(0, "", ""),
    }
    monkeypatch.setattr(
        node_module,
        "find_tool",
        lambda name: name if name in answers else None,
    )
    monkeypatch.setattr(
        node_module, "run_tool", lambda argv, timeout_s: answers[argv[0]]
    )
    return answers


class TestNode:
    def facts(self, tmp_path, pids=()):
        """
        Write facts, and read them.
        """
        files, missing = keep_facts(pids, tmp_path / "node.json", 5.0)
        (path,) = files
        return json.loads(path.read_text()), [
            (m.what, m.reason) for m in missing
        ]

    def test_machine(self, tools, tmp_path):
        """
        Memory, load, and disks are there.
        """
        facts, missing = self.facts(tmp_path)

        assert [] == missing
        assert facts["machine"]["memory"]["total"] > 0
        assert facts["machine"]["disks"]["bundle"]["total"] > 0
        assert [] == facts["gpus"]

    def test_gpus(self, tools, tmp_path):
        """
        What nvidia-smi prints becomes one row per GPU.
        """
        row = "0, GPU-7, NVIDIA H200, 100, 1024, 143771, 40, P0, 1980"
        tools["nvidia-smi"] = ToolOutput(0, f"{row}\nstrange\n", "")

        facts, _ = self.facts(tmp_path)

        (gpu,) = facts["gpus"]
        assert ("NVIDIA H200", "100", "1024") == (
            gpu["name"],
            gpu["utilization.gpu"],
            gpu["memory.used"],
        )

    def test_kernel(self, tools, tmp_path, monkeypatch):
        """
        Of the kernel's messages the last about trouble are kept, as text.
        """
        monkeypatch.setattr(node_module, "_MOST_LINES", 2)
        lines = [
            "[x] Out of memory: Killed process 1",
            "[x] usb 1-1: new device",
            "[x] NVRM: Xid (PCI:0000:01:00): 79, \x1b[31mfallen off",
            "[x] oom-kill:constraint=CONSTRAINT_NONE",
        ]
        tools["dmesg"] = ToolOutput(0, "\n".join(lines), "")

        facts, _ = self.facts(tmp_path)

        assert 2 == len(facts["kernel"])
        assert "79, fallen off" in facts["kernel"][0]

    def test_variables(self, tools, tmp_path, monkeypatch):
        """
        Workers with the same variables are told together.
        """
        environs = {
            7: ({"NCCL_DEBUG": "INFO", "HOME": "/x"}, "memory"),
            8: ({"NCCL_DEBUG": "INFO"}, "environ"),
            9: ({"NCCL_DEBUG": "WARN"}, "environ"),
            10: ({}, ""),
        }
        monkeypatch.setattr(node_module, "read_environ", environs.get)

        facts, _ = self.facts(tmp_path, environs)

        assert [
            {"pids": [7, 8], "variables": {"NCCL_DEBUG": "INFO"}},
            {"pids": [9], "variables": {"NCCL_DEBUG": "WARN"}},
        ] == facts["variables"]

    @pytest.mark.parametrize(
        ("output", "reason"),
        [
            (ToolOutput(None, "", ""), "dmesg did not end within 5 s"),
            (ToolOutput(1, "", "not\npermitted"), "dmesg: not permitted"),
            (ToolOutput(2, "", ""), "dmesg: exit status 2"),
        ],
    )
    def test_tool_fails(self, tools, tmp_path, output, reason):
        """
        A tool that fails costs its own fact only.
        """
        tools["dmesg"] = output

        facts, missing = self.facts(tmp_path)

        assert "machine" in facts
        assert [("kernel of node", reason)] == missing

    def test_no_tool(self, tools, tmp_path):
        """
        A node without GPUs lacks nothing.
        """
        tools.clear()

        facts, missing = self.facts(tmp_path)

        assert [] == missing
        assert (None, None) == (facts["gpus"], facts["kernel"])

    def test_nothing_to_say(self, tools, tmp_path, monkeypatch):
        """
        An error without a text is told by its name.
        """
        monkeypatch.setattr(node_module, "_machine", lambda _: 1 // 0 or None)
        monkeypatch.setattr(node_module, "_kernel_messages", fail_silently)

        _, missing = self.facts(tmp_path)

        assert [
            ("machine of node", "integer division or modulo by zero"),
            ("kernel of node", "ValueError"),
        ] == missing

    def test_not_written(self, tools, tmp_path):
        """
        A folder that vanished costs the file, and nothing else.
        """
        files, (lost, *_) = keep_facts((), tmp_path / "gone" / "x", 5.0)

        assert [] == files
        assert lost.reason

    def test_secrets(self):
        """
        Nothing that may be a secret is kept.
        """
        environ = {
            "NCCL_DEBUG": "INFO\x1b[31m",
            "TORCH_API_KEY": "hush",
            "NCCL_AUTH_TOKEN": "hush",
            "TORCH_HOME": "https://me:hush@example.org/",
            "HF_TOKEN": "hush",
            "CUDA_VISIBLE_DEVICES": "0,1",
        }

        assert {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NCCL_DEBUG": "INFO",
        } == public_variables(environ)
