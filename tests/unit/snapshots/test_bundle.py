"""
What a snapshot looks like on disk.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess

import psutil
import pytest

from distdebug.errors import BundleError
from distdebug.findings import Missing
from distdebug.health import Gpu, check_node_json, parse_node_json
from distdebug.snapshots import (
    Manifest,
    NodeEntry,
    new_bundle,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from distdebug.snapshots.node_files import (
    find_worker_logs,
    save_log_tails,
    save_node_facts,
)


NODE = {"host": "n1", "status": "ok", "seconds": 1.0, "reason": ""}
MANIFEST = Manifest(
    version="1.2.3",
    created=1.7e9,
    job="run 7",
    nodes=(NodeEntry(host="n1", status="partial", seconds=2.5, files=3),),
    skipped=(Missing(what="log", reason="gone", rank=3, source="a.log"),),
)


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
        What cannot be parsed is refused by a typed error.
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

    def test_too_large(self, tmp_path):
        """
        A file that no snapshot leaves is not read into memory.
        """
        os.truncate(write_manifest(tmp_path, MANIFEST), (1 << 26) + 1)

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
    def test_tail(self, tmp_path):
        """
        The last MiB of a log is kept, and logs of one name do not collide.
        """
        logs = [tmp_path / name for name in ("a/x.log", "b/x.log", "rank_0")]
        for log in logs:
            log.parent.mkdir(exist_ok=True)
            log.write_text("step 7".ljust(1 << 20) + log.parent.name[0])

        files, missing = save_log_tails(logs, tmp_path / "logs")

        assert [] == missing
        assert ["x.log", "x.2.log", "rank_0.log"] == [f.name for f in files]
        assert [1 << 20] * 3 == [f.stat().st_size for f in files]
        assert ["tep 7", "tep 7"] == [f.read_text()[:5] for f in files[:2]]
        assert ["a", "b"] == [f.read_text()[-1] for f in files[:2]]

    def test_not_kept(self, tmp_path):
        """
        Every log fails alone, and says why; also what cannot be the name of
        a file.
        """
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "good.out").write_text("fine")
        names = ["pipe", "gone.log", "a\0b", *["gone"] * 252, "good.out"]

        files, missing = save_log_tails(
            [tmp_path / name for name in [*names, "good.out"]],
            tmp_path / "logs",
        )

        assert ["good.out"] == [f.name for f in files]
        reasons = [m.reason for m in missing]
        assert [
            "it is not a file",
            "No such file or directory",
        ] == reasons[:2]
        assert "null" in reasons[2]
        assert "only 256 logs are kept" == reasons[-1]
        assert 256 == len(reasons)

    @pytest.mark.process
    def test_own(self, tmp_path, process):
        """
        The files that processes print into are found, each once.
        """
        log = tmp_path / "rank0.log"
        with log.open("wb") as out, (tmp_path / "gone").open("wb") as gone:
            (tmp_path / "gone").unlink()
            one = process(stdout=out, stderr=out)
            other = process(stdout=gone, stderr=subprocess.DEVNULL)

            found = find_worker_logs([one, other, 1 << 22])

        assert [log] == found


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """
    Installs tools that print something; there are no others, and no other
    way to the kernel's log.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    real = os.open
    shell, cat, sleep = (
        shutil.which(name, path="/usr/bin:/bin")
        for name in ("sh", "cat", "sleep")
    )

    def open_file(path, *args, **options):
        if str(path).startswith(("/dev/kmsg", "/var/log/")):
            raise PermissionError(errno.EPERM, "not for us")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", open_file)

    def install(name, text, *, status=0, complaint="", seconds=0):
        (folder / f"{name}.txt").write_text(text)
        (folder / f"{name}.err").write_text(complaint)
        (folder / name).write_text(
            f"#!{shell}\ncd '{folder}'\n{cat} {name}.txt\n"
            f"{cat} {name}.err >&2\n{sleep} {seconds}\nexit {status}\n"
        )
        (folder / name).chmod(0o755)

    install("dmesg", "[1.5] Linux version 6.1\n")
    return install


@pytest.fixture(name="gpus")
def _gpus(monkeypatch):
    """
    Let the driver of the node have these GPUs.
    """

    def gpus(*found):
        path = "distdebug.snapshots.node_files.read_gpus"
        monkeypatch.setattr(path, lambda **_: found)

    return gpus


@pytest.fixture(name="facts")
def _facts(tmp_path):
    """
    Writes facts, and reads them.
    """

    def facts(pids=(), seconds=5.0):
        files, missing = save_node_facts(pids, tmp_path / "node.json", seconds)
        (path,) = files
        return json.loads(path.read_text()), [
            (m.what, m.reason) for m in missing
        ]

    return facts


class TestNode:
    @pytest.mark.process
    def test_machine(self, tools, facts):
        """
        Memory, load, and disks are there.
        """
        got, missing = facts()

        assert [] == missing
        assert got["machine"]["memory"]["total"] > 0
        assert got["machine"]["disks"]["bundle"]["total"] > 0
        assert got["machine"]["disks"]["tmp"]["files"] >= 0
        assert {"lo"} <= {x["name"] for x in got["interfaces"]}
        assert got["gpus"] is None

    @pytest.mark.process
    def test_gpus(self, tools, facts, gpus):
        """
        What the driver says of a GPU is kept, and can be read again.
        """
        gpu = Gpu(index=0, name="NVIDIA H200", utilization=100)
        gpus(gpu)

        got, _ = facts()

        assert (gpu,) == parse_node_json(got, host="n1").gpus

    @pytest.mark.process
    def test_kernel(self, tools, facts):
        """
        Of the kernel's messages the last about trouble are kept, as text.
        """
        lines = [
            *["[7.5] Out of memory: Killed process 1"] * 50,
            "[8.5] usb 1-1: new device",
            "[9.5] NVRM: Xid (PCI:0000:01:00): 79, \x1b[31mfallen off",
            "[9.7] oom-kill:constraint=CONSTRAINT_NONE",
        ]
        tools("dmesg", "\n".join([*lines, ""]))

        got, _ = facts()

        assert 50 == len(got["kernel"])
        assert "79, fallen off" in got["kernel"][-2]
        assert "oom-kill" in got["kernel"][-1]

    @pytest.mark.process
    def test_judged(self, tools, facts, gpus):
        """
        The facts that are kept show later what was wrong with which GPU.
        """
        tools(
            "dmesg",
            "[7.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, fallen off\n",
        )
        lost = Gpu(index=0, bus_id="0000:3B:00.0", problem="GPU is lost")
        gpus(lost)

        got, missing = facts()
        found = check_node_json(got, host="n1", ranks={7: 3})

        assert [] == missing
        assert [(3,)] == [f.ranks for f in found if f.ranks]
        assert any("GPU 0 does not answer" in f.summary for f in found)

    @pytest.mark.process
    def test_variables(self, tools, facts, process):
        """
        Workers with the same variables are listed together.
        """
        alike = [
            process({"NCCL_DEBUG": "INFO", **more})
            for more in ({"HOME": "/x"}, {})
        ]
        other = process({"NCCL_DEBUG": "WARN"})

        got, _ = facts([*alike, other, 1 << 22])

        assert [
            {"pids": alike, "variables": {"NCCL_DEBUG": "INFO"}},
            {"pids": [other], "variables": {"NCCL_DEBUG": "WARN"}},
        ] == got["variables"]

    @pytest.mark.process
    def test_secrets(self, tools, facts, process):
        """
        Nothing that may be a secret is kept.
        """
        pid = process(
            {
                "NCCL_DEBUG": "INFO\x1b[31m",
                "TORCH_API_KEY": "hush",
                "NCCL_AUTH_TOKEN": "hush",
                "TORCH_HOME": "https://me:hush@example.org/",
                "HF_TOKEN": "hush",
                "CUDA_VISIBLE_DEVICES": "0,1",
            }
        )

        got, _ = facts([pid])

        assert [{"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO"}] == [
            row["variables"] for row in got["variables"]
        ]
        assert "hush" not in json.dumps(got)

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("status", "complaint", "reason"),
        [
            (1, "not\npermitted\n", "dmesg: not permitted"),
            (2, "", "dmesg: prints nothing"),
        ],
    )
    def test_tool_fails(self, tools, facts, *, status, complaint, reason):
        """
        A tool that fails costs its own fact only.
        """
        tools("dmesg", "", status=status, complaint=complaint)

        got, ((what, why),) = facts()

        assert "machine" in got
        assert "kernel of node" == what
        assert reason in why.split("; ")

    @pytest.mark.process
    def test_slow_tool(self, tools, facts):
        """
        A tool that does not end is left in time.
        """
        tools("dmesg", "", seconds=600)

        got, ((what, why),) = facts(seconds=0.3)

        assert "machine" in got
        assert "kernel of node" == what
        assert "dmesg: not done within 0." in why

    def test_no_tool(self, tools, facts, monkeypatch):
        """
        A node without GPUs lacks nothing; without the kernel's log, that.
        """
        monkeypatch.setenv("PATH", "/none")

        got, ((what, why),) = facts()

        assert got["gpus"] is None
        assert "kernel of node" == what
        assert "dmesg: not installed" in why

    @pytest.mark.process
    @pytest.mark.parametrize("reason", ["", "no such field"])
    def test_nothing_to_say(self, tools, facts, monkeypatch, reason):
        """
        An error without a text is reported by its name.
        """

        def fail():
            raise ValueError(reason)

        monkeypatch.setattr(psutil, "virtual_memory", fail)

        _, missing = facts()

        assert [("machine of node", reason or "ValueError")] == missing

    @pytest.mark.process
    def test_not_written(self, tools, tmp_path):
        """
        A folder that vanished costs the file, and nothing else.
        """
        files, (lost, *_) = save_node_facts((), tmp_path / "gone" / "x", 5.0)

        assert [] == files
        assert lost.reason
