"""
What is in the way of a profile?
"""

from __future__ import annotations

import json

import psutil
import pytest

from distdebug.findings import Cause
from distdebug.nsight import (
    PatchStatus,
    check_nsys,
    doctor,
    orphans,
    raylet_findings,
)
from distdebug.nsight.raylet_log import nsight_log_findings


LATE = (
    "[2026-11-20 10:15:33,250 W 100 100] (raylet) worker_pool.cc:586: Some "
    "workers of the worker process(47) have not registered within the "
    "timeout. The process is dead, probably it crashed during start."
)
NO_PYTHON = "Program not found: python"
NO_RAY = "ModuleNotFoundError: No module named 'ray'"
REPORT = "\t/tmp/ray/session_x/logs/nsight/policy_47.nsys-rep"


@pytest.fixture(autouse=True)
def node(monkeypatch, tmp_path):
    """
    A node on which all is well.
    """
    target = tmp_path / "o" / "target-linux-x64"
    target.mkdir(parents=True)
    nsys = target / "nsys"
    nsys.write_text("#!/bin/sh\necho version 2025.1.2.3-abc\n")
    nsys.chmod(0o755)
    host = tmp_path / "o" / "host-linux-x64"
    host.mkdir()
    (host / "QdstrmImporter").touch()
    paranoid = tmp_path / "paranoid"
    paranoid.write_text("2\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(doctor, "_PARANOID", paranoid)
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(doctor, "find_orphans", tuple)
    fine = PatchStatus(state="patched", path="/r/nsight.py")
    monkeypatch.setattr(doctor, "ray_nsight_status", lambda path: fine)
    monkeypatch.setenv("PATH", f"{target}:/usr/bin:/bin")
    return tmp_path


def check(health, name):
    """
    The check of this name.
    """
    (found,) = (c for c in health.checks if c.name == name)
    return found


class TestDoctor:
    def test_well(self):
        """
        Where all is well, every check says so.
        """
        health = check_nsys()

        assert health.is_ready
        assert {True} == {c.ok for c in health.checks}
        assert "2025.1.2.3" in str(health)
        assert json.loads(json.dumps(health.to_dict()))["ready"]

    def test_no_nsys(self, monkeypatch):
        """
        Without nsys, nothing can be profiled.
        """
        monkeypatch.setenv("PATH", "/nowhere")

        health = check_nsys()

        (finding,) = health.findings
        assert Cause.NODE_MISCONFIGURED == finding.cause
        assert "nsys is not on PATH" in finding.summary
        assert "install" in finding.remedy

    def test_no_version(self, node):
        """
        An nsys that does not tell its version is worth a note.
        """
        (node / "o" / "target-linux-x64" / "nsys").write_text("#!/bin/sh\n")

        assert check(check_nsys(), "nsys").ok is None

    def test_no_importer(self, node, monkeypatch):
        """
        Without its importer, reports stay raw; Debian lacks but a link.
        """
        (node / "o" / "host-linux-x64" / "QdstrmImporter").unlink()
        debian = node / "debian"
        monkeypatch.setattr(doctor, "_DEBIAN", debian)
        first = check(check_nsys(), "importer")
        (debian / "host-linux-x64").mkdir(parents=True)
        (debian / "host-linux-x64" / "QdstrmImporter").touch()
        second = check(check_nsys(), "importer")

        assert (False, False) == (first.ok, second.ok)
        assert "install" in first.remedy
        host = node / "o" / "host-linux-x64"
        assert f"ln -s {debian}/host-linux-x64 {host}" == second.remedy

    @pytest.mark.parametrize(
        ("text", "ok"), [("1", True), ("4", None), ("x", None), (None, None)]
    )
    def test_sampling(self, text, ok, node):
        """
        That CPUs may not be sampled is worth a note: by default they are not.
        """
        if text is None:
            (node / "paranoid").unlink()
        else:
            (node / "paranoid").write_text(text)

        health = check_nsys()

        assert ok is check(health, "CPU sampling").ok
        assert health.is_ready

    def test_twins(self, node):
        """
        What nsys left among temporary files is told, with its size.
        """
        for name in ("nsys-report-1.nsys-rep", "nsys-report-2.qdstrm", "x"):
            (node / "tmp" / name).write_bytes(bytes(1 << 20))

        found = check(check_nsys(), "temporary files")

        assert None is found.ok
        assert "2 of 2.0 MiB" in found.detail
        assert "rm " in str(check_nsys())

    def test_orphans(self, monkeypatch):
        """
        Agents that nobody needs are a problem, with what ends them.
        """
        monkeypatch.setattr(doctor, "find_orphans", lambda: (47, 48))

        (finding,) = check_nsys().findings

        assert "kill 47 48" == finding.remedy

    @pytest.mark.parametrize(
        ("state", "ok"),
        [("needs_patch", None), ("unknown", None), ("absent", True)],
    )
    def test_plugin(self, state, ok, monkeypatch):
        """
        One can do without Ray's own plugin, so it is worth a note.
        """
        status = PatchStatus(state=state)
        monkeypatch.setattr(doctor, "ray_nsight_status", lambda path: status)

        health = check_nsys()

        assert ok is check(health, "Ray's nsight plugin").ok
        assert health.is_ready

    def test_raylet_logs(self, node):
        """
        Workers that did not start come first.
        """
        log = node / "raylet.err"
        log.write_text(f"{NO_PYTHON}\n{LATE}\n")

        (finding,) = check_nsys(raylet_logs=[log]).findings

        assert Cause.NSIGHT_WRONG_PYTHON == finding.cause
        assert (str(log), "line 1") == (
            finding.evidence[0].source,
            finding.evidence[0].location,
        )


class TestRayletLog:
    @pytest.mark.parametrize(
        ("lines", "confidence", "said"),
        [
            ([NO_PYTHON], "likely", "no 'python' on the PATH"),
            ([NO_PYTHON, LATE], "certain", "no 'python' on the PATH"),
            ([LATE, "Program not found: python3"], "certain", "no 'python'"),
            ([NO_RAY, REPORT, LATE], "certain", "one without Ray"),
            ([REPORT, NO_RAY], "likely", "one without Ray"),
        ],
    )
    def test_found(self, lines, confidence, said):
        """
        Either wrong Python is told apart, and what it did is evidence.
        """
        (finding,) = nsight_log_findings(lines)

        assert Cause.NSIGHT_WRONG_PYTHON == finding.cause
        assert confidence == finding.confidence
        assert said in finding.summary
        assert "py_executable" in finding.remedy
        wanted = [line for line in lines if line != REPORT]
        assert len(wanted) == len(finding.evidence)

    @pytest.mark.parametrize(
        "lines",
        [
            [],
            [LATE],
            [NO_RAY, LATE],
            [REPORT, LATE],
            ["Program not found: pythonic-thing"],
            ["The program was not found: python is fine"],
            ["ModuleNotFoundError: No module named 'rayon'", REPORT],
        ],
        ids=[
            *("nothing", "late", "no nsys", "other reason", "other program"),
            *("other words", "other module"),
        ],
    )
    def test_not_found(self, lines):
        """
        Workers that fail otherwise are not the fault of nsys.
        """
        assert () == nsight_log_findings(lines)

    def test_hostile(self):
        """
        What a log holds is cleaned, and a long one is cut.
        """
        (finding,) = nsight_log_findings(
            [f"\x1b[31m{'x' * 10_000} {NO_PYTHON}\x1b[0m"]
        )

        quote = finding.evidence[0].quote
        assert quote.isprintable()
        assert len(quote) <= 200

    def test_folders(self, tmp_path):
        """
        Both logs of each node are read together, wherever they lie.
        """
        lines = {"raylet.err": [NO_RAY, LATE], "raylet.out.1": [REPORT]}
        for node in ("a", "b"):
            for name, text in lines.items():
                path = tmp_path / node / "logs" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(text))
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "worker.err").write_text(NO_PYTHON)

        found, missing = raylet_findings(tmp_path)

        assert (2, ()) == (len(found), missing)
        assert {"certain"} == {finding.confidence for finding in found}
        alone, _ = raylet_findings(tmp_path / "a" / "logs" / "raylet.err")
        assert () == alone

    def test_unreadable(self, tmp_path):
        """
        What cannot be read is named, and costs nothing of the others.
        """
        wide, damaged, gone = (
            tmp_path / name
            for name in ("raylet.err", "raylet.out.1.gz", "gone")
        )
        wide.write_text(f"{NO_PYTHON}\n{LATE}", "utf-16")
        damaged.write_bytes(b"\x1f\x8b junk")
        (tmp_path / "raylet.out").write_text(f"{NO_PYTHON}\n{LATE}")

        (finding,), missing = raylet_findings(gone, tmp_path)

        assert "certain" == finding.confidence
        assert {
            str(gone): "No such file or directory",
            str(wide): "text in UTF-16: iconv -f UTF-16 -t UTF-8 makes it "
            "readable",
            str(damaged): "damaged: Compressed file ended before the "
            "end-of-stream marker was reached",
        } == {x.source: x.reason for x in missing}

        checks = check_nsys(raylet_logs=[gone, tmp_path]).checks
        assert {f"logs in {x.source}" for x in missing} == {
            check.name for check in checks if check.name.startswith("logs in")
        }


class TestOrphans:
    def test_found(self, monkeypatch):
        """
        An agent is an orphan if the command that started it is gone.
        """
        agent = ("/o/nsys", "--start-agent")
        processes = [
            FakeProcess(10, "nsys", "profile", "python"),
            FakeProcess(11, *agent, "--session-name=profile-python-10"),
            FakeProcess(12, *agent, "--session-name=profile-a-b-99"),
            FakeProcess(13, *agent, "--session-name=mine"),
            FakeProcess(14, "vim", "--start-agent"),
            FakeProcess(15),
            FakeProcess(16, "nsys-launcher", "x"),
        ]
        monkeypatch.setattr(psutil, "process_iter", lambda: processes)
        assert (12,) == orphans.find_orphans()

        processes[0] = FakeProcess(10, "bash")
        assert (11, 12, 13) == orphans.find_orphans()


class FakeProcess:
    """
    A process with this command line; without any, it is gone.
    """

    def __init__(self, pid, *words):
        self.pid, self._words = pid, list(words)

    def cmdline(self):
        """
        Its words.
        """
        if not self._words:
            raise psutil.NoSuchProcess(self.pid)
        return self._words
