"""
``nsight``: patterns, the plugin of Ray, reports, and what is in the way.
"""

from __future__ import annotations

import json
import os
import time

from pathlib import Path

import psutil
import pytest

from distdebug.__main__ import main
from distdebug.capture import Check
from distdebug.causes import Cause
from distdebug.findings import Finding
from distdebug.nodes import NodeResult, NodeStatus, Ray, Slurm
from distdebug.nsight import NsysHealth


DATA = Path(__file__).parents[2] / "data" / "ray_nsight"


@pytest.fixture(autouse=True)
def quiet_node(monkeypatch):
    """
    A node without processes and variables.
    """
    monkeypatch.setattr(psutil, "process_iter", list)
    for name in list(os.environ):
        if "_NSYS_" in name:
            monkeypatch.delenv(name)


@pytest.fixture
def plugin(tmp_path):
    """
    A copy of Ray's plugin.
    """
    path = tmp_path / "nsight.py"
    path.write_bytes((DATA / "ray-2.50.1.txt").read_bytes())
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """
    A folder with one report that was written a while ago.
    """
    path = tmp_path / "in" / "policy_3-6_4711.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"report")
    os.utime(path, (time.time() - 60,) * 2)
    return path.parent


class TestPlugin:
    def test_there_and_back(self, plugin, capsys):
        """
        The status of the commands is that of the plugin.
        """
        statuses = [
            main(["nsight", what, "--path", plugin])
            for what in ("status", "patch", "patch", "status", "revert")
        ]

        assert [1, 0, 0, 0, 0] == statuses
        assert 1 == main(["nsight", "status", "--path", plugin])

    def test_json(self, plugin, capsys):
        """
        JSON has the agreed layout.
        """
        assert 0 == main(["nsight", "patch", "--json", "--path", plugin])

        got = json.loads(capsys.readouterr().out)
        assert ("nsight patch", "patched", True, True) == (
            *(got["command"], got["state"]),
            *(got["changed"], got["fine"]),
        )

    @pytest.mark.parametrize("what", ["patch", "status", "revert"])
    def test_absent(self, what, tmp_path, capsys):
        """
        Where there is no Ray, nothing could be looked at.
        """
        assert 2 == main(["nsight", what, "--path", str(tmp_path)])
        assert "not installed" in capsys.readouterr().out

    def test_unknown(self, plugin, capsys):
        """
        A text that is not known is no success.
        """
        Path(plugin).write_text("pass\n")

        for what in ("patch", "revert", "status"):
            assert 1 == main(["nsight", what, "--path", plugin])


class TestNodes:
    @pytest.fixture
    def nodes(self, monkeypatch):
        """
        Two nodes, on which something was done.
        """
        asked = []

        def run_on_nodes(work, *, engine, tell):
            asked.append(engine)
            tell(1, 2)
            value = work()
            if isinstance(engine, Slurm):
                value = {**value, "stale_agents": [4]}
                yield NodeResult(
                    host="a", status=NodeStatus.DEAD, reason="it is gone"
                )
            yield NodeResult(host="b", status=NodeStatus.OK, value=value)

        monkeypatch.setattr("distdebug.nodes.run_on_nodes", run_on_nodes)
        return asked

    def test_ray(self, nodes, plugin, capsys):
        """
        On the nodes of a cluster of Ray.
        """
        argv = ["--path", plugin, "--ray", "auto"]

        statuses = [
            main(["nsight", what, *argv])
            for what in ("status", "patch", "revert")
        ]

        assert [1, 0, 0] == statuses
        assert isinstance(nodes[0], Ray)
        assert [
            "b: needs_patch",
            "b: patched, changed just now",
            "b: needs_patch, changed just now",
        ] == capsys.readouterr().out.splitlines()

    def test_slurm(self, nodes, plugin, capsys):
        """
        A node that does not answer is named, and is no success; so are agents
        that do not know it yet.
        """
        argv = ["nsight", "patch", "--path", plugin, "--slurm", "7"]

        assert 1 == main(argv)
        assert [
            "a: dead: it is gone",
            "b: patched, changed just now, agents that do not know it",
        ] == capsys.readouterr().out.splitlines()
        assert 1 == main([*argv, "--json"])
        got = json.loads(capsys.readouterr().out)
        assert [("a", None), ("b", "patched")] == [
            (node["host"], node["plugin"] and node["plugin"]["state"])
            for node in got["nodes"]
        ]


class TestReports:
    def test_list(self, folder, tmp_path, monkeypatch, capsys):
        """
        The reports of a folder are listed, or those of all sessions here.
        """
        logs = tmp_path / "ray" / "session_1" / "logs"
        logs.mkdir(parents=True)
        (logs / "nsight").symlink_to(folder)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))

        for places in ([str(folder)], []):
            assert 0 == main(["nsight", "reports", *places])
            assert "policy" in capsys.readouterr().out

    @pytest.mark.process
    def test_summary(self, folder, tmp_path, monkeypatch, capsys):
        """
        Each report that is one has its summary, which may not take too long.
        """
        (folder / "raw_47.qdstrm").write_bytes(b"")
        nsys = tmp_path / "bin" / "nsys"
        nsys.parent.mkdir()
        nsys.write_text(
            '#!/bin/sh\ncase "$*" in *--help*) exit;; esac\nexec sleep 600\n'
        )
        nsys.chmod(0o755)
        monkeypatch.setenv("PATH", str(nsys.parent), prepend=os.pathsep)
        argv = ["nsight", "reports", str(folder), "--summary"]

        assert 1 == main([*argv, "--timeout", "0.2"])
        assert "nsys was not done in time" in capsys.readouterr().out
        nsys.write_text("#!/bin/sh\necho none at all >&2; exit 1\n")
        assert 1 == main([*argv, "--json"])
        got = json.loads(capsys.readouterr().out)
        (summary,) = got["summaries"]
        assert 2 == len(got["reports"])
        assert "none at all" in summary["problem"]

    @pytest.mark.parametrize("what", ["reports", "collect"])
    def test_nothing(self, what, tmp_path, capsys):
        """
        Where there is no report, nothing is said to be well.
        """
        more = ["--output-dir", str(tmp_path / "out")]
        argv = ["nsight", what, str(tmp_path)]

        assert 2 == main(argv + (more if what == "collect" else []))
        assert "there is no report" in capsys.readouterr().err

    def test_collect(self, folder, tmp_path, capsys):
        """
        Reports are copied; one that is being written is named.
        """
        argv = ["nsight", "collect", str(folder), "--output-dir"]
        argv.append(str(tmp_path / "out"))

        assert 0 == main(argv)
        assert "1 copied" in capsys.readouterr().out
        (folder / "new_1.nsys-rep").write_bytes(b"x")
        assert 1 == main([*argv, "--json"])
        got = json.loads(capsys.readouterr().out)
        assert (1, 1) == (len(got["present"]), len(got["left"]))


class TestDoctor:
    def test_status(self, monkeypatch, capsys):
        """
        The status says whether something is in the way.
        """
        good = NsysHealth(checks=(Check("nsys", ok=True, detail="here"),))
        finding = Finding(
            cause=Cause.NODE_MISCONFIGURED, ranks=(), summary="no nsys"
        )
        answers = [good, NsysHealth(checks=(), findings=(finding,))]
        # What is in the way here depends on the machine.
        monkeypatch.setattr(
            "distdebug.nsight.check_nsys",
            lambda raylet_logs: answers.pop(0),
        )

        assert 0 == main(["nsight", "doctor"])
        assert "here" in capsys.readouterr().out
        assert 1 == main(["nsight", "doctor", "--json"])
        assert not json.loads(capsys.readouterr().out)["ready"]

    @pytest.mark.process
    def test_places(self, tmp_path, capsys):
        """
        The logs of raylets are looked through; a place that is none is
        refused.
        """
        logs = tmp_path / "logs"
        logs.mkdir()
        (logs / "raylet.err").write_text("Program not found: python\n")

        assert 1 == main(["nsight", "doctor", str(tmp_path)])
        assert "nsight_wrong_python" in capsys.readouterr().out
        assert 2 == main(["nsight", "doctor", str(tmp_path / "none")])
        assert "there is no" in capsys.readouterr().err


class TestMatch:
    def test_status(self, monkeypatch, capsys):
        """
        The status says whether a pattern matches.
        """
        argv = ["nsight", "match", "dtensor_policy_worker"]

        assert 1 == main(argv)
        monkeypatch.setenv("NRL_NSYS_WORKER_PATTERNS", "*vllm*,*policy*")
        assert 0 == main(argv)
        assert 1 == main([*argv, "--patterns", "x"])
        assert [
            "no pattern matches 'dtensor_policy_worker'",
            "'dtensor_policy_worker' matches '*policy*'",
            "no pattern matches 'dtensor_policy_worker'",
        ] == capsys.readouterr().out.splitlines()
        assert 0 == main([*argv, "--json"])
        assert "*policy*" == json.loads(capsys.readouterr().out)["pattern"]

    def test_nothing_asked(self, capsys):
        """
        Without saying what, it says what there is.
        """
        with pytest.raises(SystemExit, match="2"):
            main(["nsight"])
        assert "required: WHAT" in capsys.readouterr().err

        with pytest.raises(SystemExit, match="0"):
            main(["nsight", "--help"])
        text = capsys.readouterr().out
        for what in (
            *("patch", "status", "revert", "reports"),
            *("collect", "doctor", "match"),
        ):
            assert f"\n    {what} " in text
