"""
What is in the way of a profile?
"""

from __future__ import annotations

import json
import os
import tempfile

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.nsight import check_nsys, patch_ray_nsight, raylet_findings


LATE = (
    "[2026-11-20 10:15:33,250 W 100 100] (raylet) worker_pool.cc:586: Some "
    "workers of the worker process(47) have not registered within the "
    "timeout. The process is dead, probably it crashed during start."
)
NO_PYTHON = "Program not found: python"
NO_RAY = "ModuleNotFoundError: No module named 'ray'"
REPORT = "\t/tmp/ray/session_x/logs/nsight/policy_47.nsys-rep"
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
DEBIAN = "/usr/lib/nsight-systems/host-linux-x64"


@pytest.fixture(autouse=True)
def nsys(monkeypatch, tmp_path, program):
    """
    A node with nsys and its importer, where CPUs may be sampled.
    """
    path = Path(
        program("echo version 2025.1.2.3-abc", "o/target-linux-x64/nsys")
    )
    host = tmp_path / "o" / "host-linux-x64"
    host.mkdir()
    (host / "QdstrmImporter").touch()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "paranoid").write_text("2\n")
    real = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *args, **known: real(
            tmp_path / "paranoid" if self == PARANOID else self, *args, **known
        ),
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def check(health, name):
    """
    The check of this name.
    """
    (found,) = (c for c in health.checks if c.name == name)
    return found


class TestDoctor:
    @pytest.mark.process
    def test_well(self, make_ray, tmp_path):
        """
        Where all is well, every check says so.
        """
        make_ray(tmp_path)
        patch_ray_nsight(tmp_path)

        health = check_nsys(ray=tmp_path)

        assert health.is_ready
        assert {True} == {c.ok for c in health.checks}
        assert "2025.1.2.3" in str(health)
        assert json.loads(json.dumps(health.to_dict()))["ready"]

    def test_no_nsys(self, monkeypatch):
        """
        Without nsys, nothing can be profiled.
        """
        monkeypatch.setenv("PATH", "/nowhere")

        (finding,) = check_nsys().findings

        assert Cause.NODE_MISCONFIGURED == finding.cause
        assert "nsys is not on PATH" in finding.summary
        assert "install" in finding.remedy

    @pytest.mark.process
    def test_no_version(self, nsys):
        """
        An nsys without a version is worth a note.
        """
        nsys.write_text("#!/bin/sh\n")

        assert check(check_nsys(), "nsys").ok is None

    @pytest.mark.process
    def test_no_importer(self, tmp_path, monkeypatch):
        """
        Without its importer, reports stay raw; Debian lacks but a link.
        """
        host = tmp_path / "o" / "host-linux-x64"
        (host / "QdstrmImporter").unlink()
        real, installed = os.path.isfile, set()

        def is_file(path):
            if str(path).startswith(DEBIAN):
                return str(path) in installed
            return real(path)

        monkeypatch.setattr(os.path, "isfile", is_file)

        first = check(check_nsys(), "importer")
        installed.add(f"{DEBIAN}/QdstrmImporter")
        second = check(check_nsys(), "importer")

        assert (False, False) == (first.ok, second.ok)
        assert "install" in first.remedy
        assert f"ln -s {DEBIAN} {host}" == second.remedy

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("text", "ok"), [("1", True), ("4", None), ("x", None), (None, None)]
    )
    def test_sampling(self, text, ok, tmp_path):
        """
        That CPUs may not be sampled is worth a note: by default they are not.
        """
        paranoid = tmp_path / "paranoid"
        paranoid.unlink()
        if text is not None:
            paranoid.write_text(text)

        health = check_nsys()

        assert ok is check(health, "CPU sampling").ok
        assert health.is_ready

    @pytest.mark.process
    def test_twins(self, tmp_path):
        """
        What nsys left among temporary files is a note, with its size.
        """
        for name in ("nsys-report-1.nsys-rep", "nsys-report-2.qdstrm", "x"):
            (tmp_path / "tmp" / name).write_bytes(bytes(1 << 20))

        found = check(check_nsys(), "temporary files")

        assert None is found.ok
        assert "2 of 2.0 MiB" in found.detail
        assert "rm " in str(check_nsys())

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("command", "orphans"), [("nsys", "12"), ("bash", "11 12 13")]
    )
    def test_orphans(self, command, orphans, runs):
        """
        An agent is an orphan if the command that started it is gone; it is a
        problem, with what ends it.
        """
        agent = ("/o/nsys", "--start-agent")
        runs(10, command, "profile", "python")
        runs(11, *agent, "--session-name=profile-python-10")
        runs(12, *agent, "--session-name=profile-a-b-99")
        runs(13, *agent, "--session-name=mine")
        runs(14, "vim", "--start-agent")
        runs(15)
        runs(16, "nsys-launcher", "x")

        (finding,) = check_nsys().findings

        assert f"kill {orphans}" == finding.remedy

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("text", "ok"),
        [(None, True), ("", None), (NO_PYTHON, None)],
        ids=["absent", "needs patch", "unknown"],
    )
    def test_plugin(self, text, ok, make_ray, tmp_path):
        """
        One can do without Ray's own plugin, so it is worth a note.
        """
        if text is not None:
            plugin = make_ray(tmp_path)
            plugin.write_text(text or plugin.read_text("utf-8"))

        health = check_nsys(ray=tmp_path)

        assert ok is check(health, "Ray's nsight plugin").ok
        assert health.is_ready

    @pytest.mark.process
    def test_raylet_logs(self, tmp_path):
        """
        Workers that did not start come first.
        """
        log = tmp_path / "raylet.err"
        log.write_text(f"{NO_PYTHON}\n{LATE}\n")

        (finding,) = check_nsys(raylet_logs=[log]).findings

        assert Cause.NSIGHT_WRONG_PYTHON == finding.cause
        assert (str(log), "line 1") == (
            finding.evidence[0].source,
            finding.evidence[0].location,
        )


class TestRayletLog:
    @pytest.fixture
    def findings(self, tmp_path):
        """
        Looks for findings in lines of a raylet's log.
        """

        def look(lines):
            log = tmp_path / "raylet.err"
            log.write_text("\n".join(lines))
            return raylet_findings(log)[0]

        return look

    @pytest.mark.parametrize(
        ("lines", "expected"),
        [
            ([NO_PYTHON], "likely: no 'python' on the PATH"),
            ([NO_PYTHON, LATE], "certain: no 'python' on the PATH"),
            ([LATE, "Program not found: python3"], "certain: no 'python'"),
            ([NO_RAY, REPORT, LATE], "certain: one without Ray"),
            ([REPORT, NO_RAY], "likely: one without Ray"),
            ([], ""),
            ([LATE], ""),
            ([NO_RAY, LATE], ""),
            ([REPORT, LATE], ""),
            (["Program not found: pythonic-thing"], ""),
            (["The program was not found: python is fine"], ""),
            (["ModuleNotFoundError: No module named 'rayon'", REPORT], ""),
        ],
        ids=[
            *("no python", "and late", "late first", "no Ray", "not yet late"),
            *("nothing", "late", "no nsys", "other reason", "other program"),
            *("other words", "other module"),
        ],
    )
    def test_found(self, lines, expected, findings):
        """
        Either wrong Python is recognized, and what it did is evidence;
        workers that fail otherwise are not the fault of nsys.
        """
        found = findings(lines)

        confidence, _, says = expected.partition(": ")
        wanted = [line for line in lines if line != REPORT]
        assert confidence == " ".join(x.confidence for x in found)
        for finding in found:
            assert Cause.NSIGHT_WRONG_PYTHON == finding.cause
            assert says in finding.summary
            assert "py_executable" in finding.remedy
            assert len(wanted) == len(finding.evidence)

    def test_hostile(self, findings):
        """
        What a log holds is cleaned, and a long one is cut.
        """
        (finding,) = findings([f"\x1b[31m{'x' * 10_000} {NO_PYTHON}\x1b[0m"])

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

    @pytest.mark.process
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
