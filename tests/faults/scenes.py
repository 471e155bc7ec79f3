"""
What does each public function reach, and how is it called on a small scale?

`REACH` sorts all public names; `SCENES` has one small, whole use of each that
reaches files, processes, or the network.  A scene prepares what is there, and
returns what is done to it, so that only the latter meets faults.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import distdebug

from distdebug.debugger.inside.arming import disarm
from distdebug.flight_recorder.enable import disable_flight_recorder
from distdebug.nsight.patch import application
from distdebug.nsight.reports.model import NsysReport
from distdebug.stacks.parse import parse_stacks
from distdebug.testing import SimulatedJob, make_dumps


DATA = Path(__file__).parents[1] / "data"
STACKS = DATA / "stacks"
SESSION = next(iter((DATA / "ray_sessions/2.60.0/deaths").glob("session_*")))
LOG = """\
[rank0]:[E1122 03:19:12.000000 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog \
caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, \
NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds \
before timing out.
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in train
    step()
RuntimeError: CUDA out of memory
"""

# What a function reaches outside of its arguments.  "files" means to read,
# "writes" to write as well.
REACH: dict[str, tuple[str, ...]] = {
    "analyze_dumps": ("files",),
    "apply_ray_nsight_patch": ("files", "writes"),
    "arm": ("files", "writes", "network"),
    "capture_node": ("files", "writes", "processes"),
    "capture_process": ("files", "processes"),
    "check_environment": ("files", "processes"),
    "check_node": ("files", "processes", "network"),
    "check_nsys": ("files", "processes"),
    "check_ray_debugger": ("files", "processes", "network"),
    "collect_nsys_reports": ("files", "writes"),
    "collective_findings": (),
    "connect": ("files", "network"),
    "detect_phase": ("files",),
    "diagnose": ("files",),
    "dump_flight_recorder": ("files", "writes"),
    "enable_flight_recorder": ("files", "writes"),
    "explain_stacks": ("files",),
    "find_actor_logs": ("files",),
    "find_deaths": ("files",),
    "find_nsys_reports": ("files", "processes"),
    "find_ray_sessions": ("files",),
    "find_workers": ("files", "processes"),
    "fold_ranks": (),
    "launch_json": (),
    "match_worker": (),
    "merge_runtime_env": (),
    "merge_stacks": (),
    "nsight_runtime_env": (),
    "nvtx": (),
    "parse_ranks": (),
    "patch_ray_nsight": ("files", "writes", "processes"),
    "post_mortem": ("files", "writes", "network"),
    "preflight": ("files", "processes"),
    "ray_debug_sessions": ("processes", "network"),
    "ray_nsight_status": ("files", "processes"),
    "read_collective_logs": ("files",),
    "read_dumps": ("files",),
    "read_stacks": ("files",),
    "request_dumps": ("files", "writes"),
    "revert_ray_nsight": ("files", "writes", "processes"),
    "run_on_nodes": ("files", "processes"),
    "scan_logs": ("files",),
    "scope": (),
    "set_trace": ("files", "writes", "network"),
    "snapshot": ("files", "writes", "processes"),
    "watch": ("files", "processes"),
    "write_launch_json": ("files", "writes"),
}

# What runs in the job that it is about: the world may not make it raise.
IN_JOB = (
    *("apply_ray_nsight_patch", "arm", "enable_flight_recorder"),
    *("post_mortem", "set_trace", "watch"),
)

# Each of these starts a Ray of its own, for seconds; their tests are beside
# them (test_ray_debugger_check.py, test_ray_debugger_cluster.py).
ELSEWHERE = ("check_ray_debugger", "ray_debug_sessions")

Act = Callable[[], object]
Scene = Callable[[Path, int], Act]


def dumps(folder: Path) -> Path:
    """
    The dumps of a job of two ranks, one of which is behind.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])
    make_dumps(folder / "dumps", job)
    return folder / "dumps"


def log(folder: Path) -> Path:
    """
    The log of a rank that waited in vain.
    """
    path = folder / "rank0.log"
    path.write_text(LOG)
    return path


def stacks(folder: Path) -> Path:
    """
    The stacks of a process.
    """
    return Path(shutil.copy(STACKS / "pyspy_gloo.txt", folder))


def session(folder: Path) -> Path:
    """
    A few logs of a session of Ray.
    """
    target = folder / SESSION.name
    (target / "logs").mkdir(parents=True)
    for name in ("gcs_server.out", "raylet.out"):
        shutil.copy(SESSION / "logs" / name, target / "logs")
    for path in sorted((SESSION / "logs").glob("worker-*"))[:4]:
        shutil.copy(path, target / "logs")
    return target


def plugin(folder: Path) -> Path:
    """
    An installation of Ray with the plugin as it was published.
    """
    path = folder / "ray/_private/runtime_env/nsight.py"
    path.parent.mkdir(parents=True)
    shutil.copy(DATA / "ray_nsight/ray-2.50.1.txt", path)
    (folder / "ray/__init__.py").write_text("")
    return folder / "ray"


def recording_torch() -> ModuleType:
    """
    As much of torch as a dump needs.
    """
    torch = ModuleType("torch")
    torch.__version__ = "2.13.0"  # type: ignore[attr-defined]
    torch._C = SimpleNamespace(  # type: ignore[attr-defined]
        _distributed_c10d=SimpleNamespace(
            _dump_fr_trace=lambda *_: b"record", _dump_fr_trace_json=None
        )
    )
    return torch


def report(folder: Path) -> NsysReport:
    """
    A report that was written a while ago.
    """
    path = folder / "node/policy_4711.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"report")
    os.utime(path, (time.time() - 60,) * 2)
    (found,) = distdebug.find_nsys_reports(path).reports
    return found


def _apply(folder: Path, target: int) -> Act:
    # Never what is installed here.
    change = functools.partial(distdebug.patch_ray_nsight, plugin(folder))

    def act() -> object:
        with (
            mock.patch.object(application, "patch_ray_nsight", change),
            mock.patch.object(application, "_done", []),
            mock.patch.object(application, "_WAIT_S", 0.2),
        ):
            return distdebug.apply_ray_nsight_patch()

    return act


def _enable(folder: Path, target: int) -> Act:
    def act() -> object:
        try:
            return distdebug.enable_flight_recorder(dump_dir=folder / "new")
        finally:
            disable_flight_recorder()

    return act


def _dump(folder: Path, target: int) -> Act:
    sys.modules["torch"] = recording_torch()
    return lambda: distdebug.dump_flight_recorder(folder / "dump")


def _arm(folder: Path, target: int) -> Act:
    def act() -> object:
        try:
            return distdebug.arm(dir=folder / "new")
        finally:
            disarm()

    return act


def _watch(folder: Path, target: int) -> Act:
    def act() -> object:
        with distdebug.watch(output_dir=folder / "hang", log_dir=folder) as it:
            it.step()
            return it

    return act


def _set_trace(folder: Path, target: int) -> Act:
    return distdebug.set_trace  # unarmed, it says so and goes on


def _post_mortem(folder: Path, target: int) -> Act:
    @distdebug.post_mortem()
    def fail() -> None:
        raise ZeroDivisionError

    def act() -> None:
        with suppress(ZeroDivisionError):
            fail()

    return act


def _collect(folder: Path, target: int) -> Act:
    found = report(folder)
    return lambda: distdebug.collect_nsys_reports([found], folder / "kept")


def _connect(folder: Path, target: int) -> Act:
    (folder / "sockets").mkdir(mode=0o700)

    def act() -> object:
        with distdebug.connect(folder / "sockets", timeout_s=0.2) as client:
            return client

    return act


def _explain(folder: Path, target: int) -> Act:
    found = parse_stacks(stacks(folder).read_text())
    return lambda: distdebug.explain_stacks(found)


def _deaths(folder: Path, target: int) -> Act:
    sessions = distdebug.find_ray_sessions(session(folder))
    return lambda: distdebug.find_deaths(sessions)


def _requests(folder: Path, target: int) -> Act:
    os.mkfifo(folder / "1-1_nccl_0.pipe")
    return lambda: distdebug.request_dumps(folder / "1-1_nccl_", timeout_s=0.1)


def _reverted(folder: Path, target: int) -> Act:
    path = plugin(folder)
    distdebug.patch_ray_nsight(path)
    return lambda: distdebug.revert_ray_nsight(path, wait_s=0.2)


def _launch(folder: Path, target: int) -> Act:
    (folder / "launch.json").write_text(json.dumps({"version": "0.2.0"}))
    launch = {"version": "0.2.0", "configurations": [{"name": "rank 0"}]}
    launch["compounds"] = []
    path = folder / "launch.json"
    return lambda: distdebug.write_launch_json(path, launch)


def _on(
    make: Callable[[Path], object],
    act: Callable[..., object],
    **options: object,
) -> Scene:
    """
    The scene of a function that takes what was made, and nothing else.
    """

    def scene(folder: Path, target: int) -> Act:
        given = make(folder)
        return lambda: _all(act(given, **options))

    return scene


def _at(act: Callable[[Path, int], object]) -> Scene:
    """
    The scene of a function that takes a folder, or a process.
    """
    return lambda folder, target: lambda: _all(act(folder, target))


def _all(result: object) -> object:
    is_lazy = isinstance(result, Iterable) and not hasattr(result, "__len__")
    return list(result) if is_lazy else result


_SHORT = {"timeout_s": 5.0, "interval_s": 0.01, "looks": 1}

SCENES: dict[str, Scene] = {
    "analyze_dumps": _on(dumps, distdebug.analyze_dumps),
    "apply_ray_nsight_patch": _apply,
    "arm": _arm,
    "capture_node": _at(
        lambda folder, pid: distdebug.capture_node(
            folder / "out", pids=[pid], **_SHORT
        )
    ),
    "capture_process": _at(
        lambda _, pid: distdebug.capture_process(pid, **_SHORT)
    ),
    "check_environment": _at(
        lambda _, pid: distdebug.check_environment([pid])
    ),
    "check_node": _at(
        lambda folder, pid: distdebug.check_node(
            pids=[pid], folders=[folder], timeout_s=2.0
        )
    ),
    "check_nsys": _on(
        session, lambda x: distdebug.check_nsys(raylet_logs=[x])
    ),
    "collect_nsys_reports": _collect,
    "connect": _connect,
    "detect_phase": _on(log, distdebug.detect_phase),
    "diagnose": _on(
        lambda folder: (dumps(folder), log(folder)),
        lambda paths: distdebug.diagnose(*paths),
    ),
    "dump_flight_recorder": _dump,
    "enable_flight_recorder": _enable,
    "explain_stacks": _explain,
    "find_actor_logs": _on(
        session, lambda x: distdebug.find_actor_logs("Worker", x)
    ),
    "find_deaths": _deaths,
    "find_nsys_reports": _on(
        lambda folder: report(folder) and folder, distdebug.find_nsys_reports
    ),
    "find_ray_sessions": _on(session, distdebug.find_ray_sessions),
    "find_workers": _at(lambda *_: distdebug.find_workers(["python"])),
    "patch_ray_nsight": _on(plugin, distdebug.patch_ray_nsight, wait_s=0.2),
    "post_mortem": _post_mortem,
    "preflight": _at(lambda *_: distdebug.preflight()),
    "ray_nsight_status": _on(plugin, distdebug.ray_nsight_status),
    "read_collective_logs": _on(log, distdebug.read_collective_logs),
    "read_dumps": _on(dumps, distdebug.read_dumps),
    "read_stacks": _on(stacks, distdebug.read_stacks),
    "request_dumps": _requests,
    "revert_ray_nsight": _reverted,
    "run_on_nodes": _at(
        lambda *_: distdebug.run_on_nodes(["true"], timeout_s=10.0)
    ),
    "scan_logs": _on(log, distdebug.scan_logs),
    "set_trace": _set_trace,
    "snapshot": _at(
        lambda folder, pid: distdebug.snapshot(
            folder / "hang", pids=[pid], timeout_s=5.0
        )
    ),
    "watch": _watch,
    "write_launch_json": _launch,
}
