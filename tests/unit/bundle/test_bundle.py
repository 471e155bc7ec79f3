"""
What a snapshot looks like on disk.
"""

from __future__ import annotations

import json
import os
import subprocess

from functools import partial

import pytest

from distdebug.bundle import (
    Manifest,
    NodeEntry,
    keep_facts,
    keep_tails,
    new_bundle,
    own_logs,
    parse_manifest,
    write_manifest,
)
from distdebug.bundle import logs as logs_module
from distdebug.bundle import manifest as manifest_module
from distdebug.bundle import node as node_module
from distdebug.bundle.manifest import read_manifest
from distdebug.capture.tool import ToolOutput
from distdebug.errors import BundleError
from distdebug.findings import Missing
from distdebug.health import judge_node_facts, public_variables
from distdebug.health.gpu import smi as smi_module
from distdebug.health.kernel import log as kernel_module


NO_INTEGER = "invalid literal for int() with base 10: 'x'"
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


def names(folder):
    """
    What is in a folder.
    """
    return [path.name for path in folder.iterdir()]


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
            {"schema": 0},
            {"schema": "1"},
            {"schema": True},
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


class TestParse:
    def test_of_another_node(self):
        """
        What a node answers is understood as what it writes.
        """
        answer = json.loads(json.dumps(MANIFEST.to_dict()))

        assert MANIFEST == parse_manifest(answer)

    @pytest.mark.parametrize(
        "answer",
        [None, 7, "text", [], {}, {"tool": "distdebug", "schema": 1}],
    )
    def test_something_else(self, answer):
        """
        Whatever a node answers instead, the error is ours.
        """
        with pytest.raises(BundleError, match="damaged"):
            parse_manifest(answer)


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

    def test_no_path(self, tmp_path):
        """
        What cannot be the name of a file costs no other log.
        """
        (tmp_path / "good.out").write_text("fine")

        files, (lost,) = keep_tails(
            [tmp_path / "a\0b", tmp_path / "good.out"], tmp_path / "logs"
        )

        assert ["good.out"] == [f.name for f in files]
        assert "null" in lost.reason


class TestOwnLogs:
    def test_files(self, tmp_path):
        """
        The files that processes print into are found, each once.
        """
        log = tmp_path / "rank0.log"
        with log.open("wb") as out, (tmp_path / "gone").open("wb") as gone:
            (tmp_path / "gone").unlink()
            with (
                subprocess.Popen(
                    ["sleep", "60"], stdout=out, stderr=out
                ) as one,
                subprocess.Popen(
                    ["sleep", "60"], stdout=gone, stderr=subprocess.DEVNULL
                ) as other,
            ):
                found = own_logs([one.pid, other.pid, 1 << 22])
                one.kill()
                other.kill()

        assert [log] == found


@pytest.fixture
def tools(monkeypatch):
    """
    What tools answer, by name.
    """
    answers = {
        "nvidia-smi": ToolOutput(0, "", ""),
        "dmesg": ToolOutput(0, "[1.5] Linux version 6.1", ""),
    }
    for module in (node_module, kernel_module):
        monkeypatch.setattr(
            module, "find_tool", lambda name: name if name in answers else None
        )
    for module in (smi_module, kernel_module):
        monkeypatch.setattr(
            module, "run_tool", lambda argv, timeout_s: answers[argv[0]]
        )
    # No other way to the kernel's log.
    monkeypatch.setattr(
        node_module,
        "read_kernel_log",
        partial(
            kernel_module.read_kernel_log,
            device="/proc/none",
            folder="/proc/none",
        ),
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
        row = (
            "0, GPU-7, 100, 40, Disabled, NVIDIA H200, 00000000:3B:00.0, 1024, "
            "143771, 40, P0, 1980, 1980, 650.5, 700, 0x1, 0, No, Completed, None"
        )
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
            "[7.5] Out of memory: Killed process 1",
            "[8.5] usb 1-1: new device",
            "[9.5] NVRM: Xid (PCI:0000:01:00): 79, \x1b[31mfallen off",
            "[9.7] oom-kill:constraint=CONSTRAINT_NONE",
        ]
        tools["dmesg"] = ToolOutput(0, "\n".join(lines), "")

        facts, _ = self.facts(tmp_path)

        assert 2 == len(facts["kernel"])
        assert "79, fallen off" in facts["kernel"][0]

    def test_judged(self, tools, tmp_path):
        """
        What is kept tells later what was wrong with which GPU.
        """
        tools["dmesg"] = ToolOutput(
            0, "[7.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, fallen off", ""
        )
        lost = (
            "Unable to determine the device handle for GPU 0000:3B:00.0: "
            "Unknown Error\n"
        )
        tools["nvidia-smi"] = ToolOutput(255, lost, "")

        facts, missing = self.facts(tmp_path)
        found = judge_node_facts(facts, host="n1", ranks={7: 3})

        assert [] == missing
        assert {"lo"} <= {x["name"] for x in facts["interfaces"]}
        assert facts["machine"]["disks"]["tmp"]["files"] >= 0
        assert [(3,)] == [f.ranks for f in found if f.ranks]
        assert any("GPU 0 does not answer" in f.summary for f in found)

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
            (ToolOutput(None, "", ""), "dmesg: not done within 5.0 s"),
            (ToolOutput(1, "", "not\npermitted"), "dmesg: not permitted"),
            (ToolOutput(2, "", ""), "dmesg: prints nothing"),
        ],
    )
    def test_tool_fails(self, tools, tmp_path, output, reason):
        """
        A tool that fails costs its own fact only.
        """
        tools["dmesg"] = output

        facts, missing = self.facts(tmp_path)

        assert "machine" in facts
        ((what, why),) = missing
        assert "kernel of node" == what
        assert reason in why.split("; ")

    def test_no_tool(self, tools, tmp_path):
        """
        A node without GPUs lacks nothing; without the kernel's log, that.
        """
        tools.clear()

        facts, ((what, why),) = self.facts(tmp_path)

        assert facts["gpus"] is None
        assert "kernel of node" == what
        assert "dmesg: not installed" in why

    def test_nothing_to_say(self, tools, tmp_path, monkeypatch):
        """
        An error without a text is told by its name.
        """
        monkeypatch.setattr(
            node_module, "_machine", lambda _: int("x") or None
        )
        monkeypatch.setattr(node_module, "_kernel_messages", fail_silently)

        _, missing = self.facts(tmp_path)

        assert [
            ("machine of node", NO_INTEGER),
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
