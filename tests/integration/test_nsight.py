"""
Workers of a real Ray under a real nsys.

The Ray is a copy by hard links, so that patching it also shows that links are
broken; no ``python`` is on its PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from distdebug.causes import Cause
from distdebug.nsight import (
    check_nsys,
    collect_nsys_reports,
    find_nsys_reports,
    patch_ray_nsight,
    ray_nsight_status,
    raylet_findings,
    summarize_report,
)
from distdebug.nsight.doctor import (
    find_orphaned_agents,
    nsys_version,
    supported_options,
)
from distdebug.nsight.runtime_env import (
    StepRange,
    check_options,
    default_options,
)

from .living import wait_until as wait


PROGRAM = Path(__file__).parent / "programs" / "nsight_ray.py"
SOURCE = Path(__file__).parents[2] / "src"
TOOLS = ("bash", "sh", "sed", "tr", "mkdir", "rm", "uname")
# The path of a socket may have 107 characters.
FOLDER = "/tmp"

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing"),
    pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is missing"),
    pytest.mark.timeout(400),
]


def wait_until(condition):
    """
    Wait as long as nsys may take to end on a machine with much else to do.
    """
    return wait(condition, seconds=150)


def having(text):
    """
    Other processes with this text in their command line, their environment,
    or the paths of their open files: a title hides the first two.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environ = process.environ().items()
            words = [*process.cmdline(), *(f"{k}={v}" for k, v in environ)]
            words += [file.path for file in process.open_files()]
            if any(text in word for word in words):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


class Node:
    """
    A folder with a Ray of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        installed = Path(find_spec("ray").origin).parent
        self.package = folder / "site" / "ray"
        try:
            shutil.copytree(installed, self.package, copy_function=os.link)
        except shutil.Error:  # it lies on another file system
            shutil.rmtree(self.package)
            shutil.copytree(installed, self.package)
        self.installed = installed / "_private" / "runtime_env" / "nsight.py"
        tools = folder / "bin"
        tools.mkdir()
        for name in (*TOOLS, "nsys"):
            (tools / name).symlink_to(shutil.which(name))
        paths = [folder / "site", SOURCE, *filter(None, sys.path)]
        self.environ = {
            **{k: v for k, v in os.environ.items() if "NSYS" not in k},
            "PATH": str(tools),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "RAY_TMPDIR": str(folder),
            "RAY_AUTH_MODE": "disabled",
            "TMPDIR": str(folder),
        }

    def play(self, case):
        """
        Play a case in a process of its own; what it saw.
        """
        ended = subprocess.run(
            [sys.executable, str(PROGRAM), case, str(self.folder / "out")],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        # Ray prints what its workers say, maybe after that.
        lines = [x for x in ended.stdout.splitlines() if x.startswith("{")]
        assert lines, ended.stdout[-2000:] + ended.stderr[-2000:]
        return json.loads(lines[-1])

    def reports(self, session):
        """
        The reports of a session, by worker.
        """
        return {r.worker: r for r in find_nsys_reports(session)}

    def stop(self):
        """
        End all that is left, and remove it.
        """
        while left := having(str(self.folder)):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, 10)
        shutil.rmtree(self.folder)


@pytest.fixture
def node():
    """
    A Ray that nobody else uses, and that is not patched.
    """
    node = Node(Path(tempfile.mkdtemp(prefix="nsight-", dir=FOLDER)))
    if ray_nsight_status(node.package).state != "needs_patch":
        node.stop()
        pytest.skip("this Ray starts the right Python")
    yield node
    node.stop()


class TestInstalled:
    def test_help(self):
        """
        The options that we give are known to the nsys that is installed.
        """
        known = supported_options(shutil.which("nsys"))

        assert {"t", "trace", "s", "sample", "o", "capture-range"} <= set(
            known
        )
        check_options(default_options(StepRange(start=1, stop=2)))
        assert nsys_version(shutil.which("nsys"))

    def test_doctor(self):
        """
        The node is looked at within seconds.
        """
        health = check_nsys()

        assert {"nsys", "importer"} <= {check.name for check in health.checks}
        assert next(c for c in health.checks if c.name == "nsys").ok


def test_by_python(node):
    """
    Without any patch, workers start under nsys, and leave reports however
    they end.
    """
    seen = node.play("endings")

    assert ["kept"] * 6 == seen["kept"]
    assert ("kept", "3:6") == (seen["there"]["kept"], seen["there"]["steps"])
    whole = wait_until(
        lambda: set(seen["pids"]) <= set(node.reports(seen["session"]))
    )
    reports = node.reports(seen["session"])
    assert whole, (sorted(reports), seen)
    assert seen["pids"] == {name: reports[name].pid for name in seen["pids"]}
    assert {"Worker"} == {reports[name].actor for name in seen["pids"]}
    assert all(len(reports[name].logs) == 2 for name in seen["pids"])

    # Nothing of nsys goes on when its workers are gone, but for agents whose
    # nsys was killed by a Ray that ended: those are found.
    assert wait_until(
        lambda: {p.pid for p in nsys_of(node)} <= {*find_orphaned_agents()}
    ), nsys_of(node)

    done = collect_nsys_reports(
        reports.values(), node.folder / "kept", settle_s=0
    )
    assert (6, ()) == (len(done.copied), done.missing)

    report = reports["policy-kill"]
    summary = summarize_report(report.path, timeout_s=60)
    assert "" == summary.problem
    if nvtx_is_old():
        assert ["a range of ours"] == [row.name for row in summary.ranges]
    assert "needs_patch" == ray_nsight_status(node.package).state


def test_node_dies(node):
    """
    Also if its node is killed, a worker leaves a report, and nsys ends.
    """
    seen = node.play("node_dies")

    assert wait_until(lambda: node.reports(seen["session"]))
    assert seen["pid"] == node.reports(seen["session"])["policy"].pid
    assert wait_until(lambda: not nsys_of(node)), nsys_of(node)


def nvtx_is_old():
    """
    Whether what writes ranges here is known to nsys of Debian 12, too.
    """
    try:
        version = metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return False
    return tuple(map(int, version.split(".")[:3])) <= (0, 2, 11)


def nsys_of(node):
    """
    Processes of nsys that belong to this node.
    """
    found = []
    for process in having(str(node.folder)):
        with suppress(psutil.Error):
            if process.name().startswith(("nsys", "QdstrmImporter")):
                found.append(process)
    return found


def test_wrong_python(node):
    """
    Unpatched, workers under Ray's plugin never start: the log of the raylet
    tells why, and who patches too late is told so.
    """
    seen = node.play("wrong_python")

    assert 0 == seen["ready"]
    assert "needs_patch" == seen["before"]["state"]
    assert ("patched", True) == (
        seen["after"]["state"],
        seen["after"]["changed"],
    )
    assert 1 == len(seen["after"]["stale_agents"])
    assert not seen["after"]["fine"]
    assert "restart Ray" in seen["after"]["remedy"]
    assert "needs_patch" == ray_nsight_status(node.installed).state

    logs = Path(seen["session"], "logs")
    (finding,), _ = raylet_findings(logs)
    assert Cause.NSIGHT_WRONG_PYTHON == finding.cause
    assert "certain" == finding.confidence
    assert "no 'python' on the PATH" in finding.summary


def test_patched(node):
    """
    Patched before Ray starts, its plugin starts the worker's own Python with
    its options.
    """
    status = patch_ray_nsight(node.package)

    seen = node.play("plugin")

    assert status.is_fine
    assert "kept" == seen["kept"]
    assert wait_until(lambda: node.reports(seen["session"])), nsys_of(node)
    report = node.reports(seen["session"])["policy"]
    assert (seen["pid"], "") == (report.pid, report.node)
    assert socket.gethostname() not in report.path
    logs = Path(seen["session"], "logs")
    assert () == raylet_findings(logs)[0]
    assert wait_until(lambda: not nsys_of(node)), nsys_of(node)
    assert "needs_patch" == ray_nsight_status(node.installed).state
