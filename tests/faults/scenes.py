"""
What does each public function reach, and how is it called on a small scale?

`REACH` sorts all public functions, and what else acts on the world;  `SCENES`
has one small, whole use of each that reaches files, processes, or the network.
A scene prepares what is there, and returns what is done to it, so that only the
latter meets faults.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import psutil

import distdebug

from distdebug.__main__ import main
from distdebug.debugger.inside.arming import disarm
from distdebug.flight_recorder.enable import disable_flight_recorder
from distdebug.nsight import patch
from distdebug.nsight.reports import NsysReport
from distdebug.snapshots import collect
from distdebug.stacks import parse_stacks
from distdebug.testing import SimulatedJob, make_dumps
from distdebug.watching import HangReason, command_hook, webhook_hook


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
    "cli.watch.watch": ("files", "writes", "processes"),
    "collect_nsys_reports": ("files", "writes"),
    "collective_findings": (),
    "connect": ("files", "network"),
    "DebugClient.eval": ("files", "network"),
    "DebugClient.interrupt": ("files", "network"),
    "DebugClient.list": ("files", "network"),
    "DebugClient.stack": ("files", "processes", "network"),
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
    "HangDebugConfig.from_file": ("files",),
    "launch_json": (),
    "match_worker": (),
    "merge_runtime_env": (),
    "merge_stacks": (),
    "monarch_setup": ("files", "writes", "network"),
    "nsight_runtime_env": (),
    "nvtx": (),
    "parse_ranks": (),
    "patch_ray_nsight": ("files", "writes", "processes"),
    "post_mortem": ("files", "writes", "network"),
    "preflight": ("files", "processes"),
    "ray_debug_sessions": ("processes", "network"),
    "ray_debugger_env": (),
    "ray_debugger_setup": ("files", "writes", "network"),
    "ray_nsight_status": ("files", "processes"),
    "read_collective_logs": ("files",),
    "read_dumps": ("files",),
    "read_stacks": ("files",),
    "report_html": ("files",),
    "request_dumps": ("files", "writes"),
    "revert_ray_nsight": ("files", "writes", "processes"),
    "run_on_nodes": ("files", "processes"),
    "scan_logs": ("files",),
    "scope": (),
    "set_trace": ("files", "writes", "network"),
    "snapshot": ("files", "writes", "processes"),
    "watch": ("files", "processes"),
    "Watch.hangs": ("files", "writes", "processes"),
    "watching.hooks.command_hook": ("processes",),
    "watching.hooks.webhook_hook": ("files", "network"),
    "write_launch_json": ("files", "writes"),
    "write_replay": ("files", "writes"),
    "write_report": ("files", "writes"),
    "write_timeline": ("files", "writes"),
}

# What runs in the job that it is about: the world may not make it raise.
IN_JOB = (
    *("apply_ray_nsight_patch", "arm", "enable_flight_recorder"),
    *("monarch_setup", "post_mortem", "ray_debugger_setup", "set_trace"),
    *("watch", "Watch.hangs"),
)

# What is made anew by whoever raises nothing: to keep quiet about an error would
# be to lie.  The others tell in their results what they could not write.
MAKES = {
    "dump_flight_recorder": "dump*",
    "write_launch_json": "launch.json",
    "write_replay": "repro.py",
    "write_report": "report.html",
}

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
    (found,) = distdebug.nsight.find_nsys_reports(path).reports
    return found


# It sleeps, and listens in the folder that is named last.  Where who started it
# is killed, nobody else would end it.
RANK = """
import os, sys, time, distdebug
distdebug.arm(dir=sys.argv[1])
parent = os.getppid()
print("ready", flush=True)
while parent == os.getppid():
    time.sleep(0.02)
"""


@contextmanager
def start_rank() -> Iterator[subprocess.Popen[bytes]]:
    """
    A process to be looked at, and asked.
    """
    root = str(Path(distdebug.__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="dd") as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, f"{folder}/sockets"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": root},
        )
        try:
            assert process.stdout is not None
            assert b"ready\n" == process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.communicate()


def _apply(folder: Path, target: int) -> Act:
    # Never what is installed here.
    change = functools.partial(
        distdebug.nsight.patch_ray_nsight, plugin(folder)
    )

    def act() -> object:
        with (
            mock.patch.object(patch, "patch_ray_nsight", change),
            mock.patch.object(
                patch, "_apply_once", patch._apply_once.__wrapped__
            ),
            mock.patch.object(patch, "_WAIT_S", 0.2),
        ):
            return distdebug.nsight.apply_ray_nsight_patch()

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


def _arming(arm: Callable[[], object]) -> Scene:
    """
    A scene of a rank that listens, and is asked; that may fail, arming not.
    """

    def scene(folder: Path, target: int) -> Act:
        environ = {"DISTDEBUG_DIR": str(folder / "new")}
        absent = {"monarch": None, "ray": None}  # which takes seconds to load

        def act() -> None:
            with (
                mock.patch.dict(os.environ, environ),
                mock.patch.dict(sys.modules, absent),
            ):
                try:
                    arm()
                    with (
                        suppress(distdebug.DistdebugError),
                        _client(folder / "new") as client,
                    ):
                        client.list()
                finally:
                    disarm()

        return act

    return scene


def _watch(folder: Path, target: int) -> Act:
    def act() -> object:
        with distdebug.watch(output_dir=folder / "hang", log_dir=folder) as it:
            it.step()
            return it

    return act


def _watch_hangs(folder: Path, target: int) -> Act:
    config = {"enabled": True, "wait_seconds": 0.1}
    limits = {"poll_s": 0.05, "timeout_s": 5.0}

    def act() -> None:
        told = threading.Event()
        with distdebug.watch(
            config,
            output_dir=folder / "hang",
            on_hang=lambda _: told.set(),
            **limits,
        ):
            told.wait(6.0)

    return act


def _command(folder: Path, target: int) -> Act:
    words = ["watch", "--pid", str(target), "--wait-seconds", "0.1"]

    def act() -> int:
        with _quick_looks(), redirect_stdout(io.StringIO()):
            return main([*words, "--output-dir", str(folder / "hang")])

    return act


def _hang(folder: Path) -> distdebug.watching.Hang:
    reason = HangReason(kind="wait", elapsed_s=1.0, pids=())
    verdict = {"cause": "sleeping", "summary": "rank 3 sleeps"}
    data = {"verdict": verdict}
    return distdebug.watching.Hang(reason=reason, folder=folder, data=data)


def _command_hook(folder: Path, target: int) -> Act:
    hook, hang = command_hook(["true"], timeout_s=5.0), _hang(folder)
    return lambda: hook(hang)


def _webhook(folder: Path, target: int) -> Act:
    hang, address = _hang(folder), folder / "address"
    address.write_text("http://127.0.0.1:9/hook\n")  # nobody is there
    address.chmod(0o600)
    return lambda: webhook_hook(address, timeout_s=1.0)(hang)


def _snapshot(folder: Path, target: int) -> Act:
    def act() -> object:
        with _quick_looks():
            return distdebug.snapshot(
                folder / "hang", pids=[target], timeout_s=5.0
            )

    return act


@contextmanager
def _quick_looks() -> Iterator[None]:
    """
    A snapshot looks once, in place of three times within two seconds.
    """
    look = functools.partial(distdebug.capture_node, samples=1)
    with mock.patch.object(collect, "capture_node", look):
        yield


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
    return lambda: distdebug.nsight.collect_nsys_reports(
        [found], folder / "kept"
    )


def _connect(folder: Path, target: int) -> Act:
    (folder / "sockets").mkdir(mode=0o700)

    def act() -> object:
        with distdebug.connect(folder / "sockets", timeout_s=0.2) as client:
            return client

    return act


def _client(folder: Path) -> distdebug.debugger.DebugClient:
    return distdebug.connect(folder, timeout_s=0.5)


def _asking(ask: Callable[[distdebug.debugger.DebugClient], object]) -> Scene:
    """
    A scene in which a rank is asked; the target listens as one.
    """

    def scene(folder: Path, target: int) -> Act:
        sockets = Path(psutil.Process(target).cmdline()[-1])
        with _client(sockets) as client:
            client.resume()  # what another scene has stopped

        def act() -> object:
            with _client(sockets) as client:
                return ask(client)

        return act

    return scene


def _diagnosed(folder: Path) -> tuple[Path, distdebug.Diagnosis]:
    (folder / "report.html").write_text("an earlier report")
    return folder / "report.html", distdebug.diagnose(dumps(folder))


def _timeline(folder: Path, target: int) -> Act:
    path, dumped = folder / "timeline.json.gz", dumps(folder)
    distdebug.write_timeline(dumped, path)
    return lambda: distdebug.write_timeline(dumped, path, stack_traces=True)


def _job_file(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text("debug:\n  enabled: true\n  wait_seconds: [60]\n")
    return path


def _explain(folder: Path, target: int) -> Act:
    found = parse_stacks(stacks(folder).read_text())
    return lambda: distdebug.explain_stacks(found)


def _deaths(folder: Path, target: int) -> Act:
    sessions = distdebug.ray.find_ray_sessions(session(folder))
    return lambda: distdebug.ray.find_deaths(sessions)


def _requests(folder: Path, target: int) -> Act:
    os.mkfifo(folder / "1-1_nccl_0.pipe")
    return lambda: distdebug.request_dumps(folder / "1-1_nccl_", timeout_s=0.1)


def _reverted(folder: Path, target: int) -> Act:
    path = plugin(folder)
    distdebug.nsight.patch_ray_nsight(path)
    return lambda: distdebug.nsight.revert_ray_nsight(path, wait_s=0.2)


def _launch(folder: Path, target: int) -> Act:
    (folder / "launch.json").write_text(json.dumps({"version": "0.2.0"}))
    launch = {"version": "0.2.0", "configurations": [{"name": "rank 0"}]}
    launch["compounds"] = []
    path = folder / "launch.json"
    return lambda: distdebug.ray.write_launch_json(path, launch)


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


_SHORT = {"timeout_s": 5.0, "interval_s": 0.01, "samples": 1}

SCENES: dict[str, Scene] = {
    "analyze_dumps": _on(dumps, distdebug.analyze_dumps),
    "apply_ray_nsight_patch": _apply,
    "arm": _arming(distdebug.arm),
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
        session, lambda x: distdebug.nsight.check_nsys(raylet_logs=[x])
    ),
    "collect_nsys_reports": _collect,
    "cli.watch.watch": _command,
    "connect": _connect,
    "DebugClient.eval": _asking(lambda x: x.eval(None, "1 + 1", wait_s=0.5)),
    "DebugClient.interrupt": _asking(
        lambda x: (x.interrupt(wait_s=0.5), x.cast(None, "p 1"), x.resume())
    ),
    "DebugClient.list": _asking(lambda x: x.list()),
    "DebugClient.stack": _asking(lambda x: x.stack()),
    "detect_phase": _on(log, distdebug.detect_phase),
    "diagnose": _on(
        lambda folder: (dumps(folder), log(folder)),
        lambda paths: distdebug.diagnose(*paths),
    ),
    "dump_flight_recorder": _dump,
    "enable_flight_recorder": _enable,
    "explain_stacks": _explain,
    "find_actor_logs": _on(
        session, lambda x: distdebug.ray.find_actor_logs("Worker", x)
    ),
    "find_deaths": _deaths,
    "find_nsys_reports": _on(
        lambda folder: report(folder) and folder,
        distdebug.nsight.find_nsys_reports,
    ),
    "find_ray_sessions": _on(session, distdebug.ray.find_ray_sessions),
    "find_workers": _at(lambda *_: distdebug.find_workers(["python"])),
    "HangDebugConfig.from_file": _on(
        _job_file, distdebug.HangDebugConfig.from_file
    ),
    "monarch_setup": _arming(distdebug.debugger.monarch_setup),
    "patch_ray_nsight": _on(
        plugin, distdebug.nsight.patch_ray_nsight, wait_s=0.2
    ),
    "post_mortem": _post_mortem,
    "preflight": _at(lambda *_: distdebug.preflight()),
    "ray_debugger_setup": _arming(distdebug.debugger.ray_debugger_setup),
    "ray_nsight_status": _on(plugin, distdebug.nsight.ray_nsight_status),
    "read_collective_logs": _on(log, distdebug.read_collective_logs),
    "read_dumps": _on(dumps, distdebug.read_dumps),
    "read_stacks": _on(stacks, distdebug.read_stacks),
    "report_html": _on(
        lambda folder: _diagnosed(folder)[1], distdebug.report_html
    ),
    "request_dumps": _requests,
    "revert_ray_nsight": _reverted,
    "run_on_nodes": _at(
        lambda *_: distdebug.run_on_nodes(["true"], timeout_s=10.0)
    ),
    "scan_logs": _on(log, distdebug.scan_logs),
    "set_trace": _set_trace,
    "snapshot": _snapshot,
    "watch": _watch,
    "Watch.hangs": _watch_hangs,
    "watching.hooks.command_hook": _command_hook,
    "watching.hooks.webhook_hook": _webhook,
    "write_launch_json": _launch,
    "write_report": _on(
        _diagnosed, lambda x: distdebug.write_report(x[1], x[0])
    ),
    "write_replay": _on(
        dumps, lambda x: distdebug.write_replay(x, x.with_name("repro.py"))
    ),
    "write_timeline": _timeline,
}
