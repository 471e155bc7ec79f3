"""
What if the machine itself is in a bad way?

Disks are full, folders are read-only, files and memory are few, somebody ends
us in the middle, or the program forks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import distdebug

from .checking import IS_THOROUGH, contents, goes_on, objection, outcome
from .scenes import IN_JOB, REACH, SCENES, dumps, log


PLAY = Path(__file__).parent / "programs" / "play.py"
WRITERS = sorted(name for name in SCENES if "writes" in REACH[name])
# Root without the right to write where modes forbid it.
UNABLE = (
    ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    if os.geteuid() == 0
    else ()
)
LIMIT_S = 1200 if IS_THOROUGH else 120
MARK = "DISTDEBUG_BENCH"
ALL = sorted(SCENES)
FORKING = sorted({*IN_JOB} - {"Watch.hangs"})  # that takes long
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ENDED = (
    *("snapshot", "capture_node", "cli.watch.watch", "diagnose", "check_node"),
    *("preflight", "run_on_nodes", "check_nsys", "DebugClient.list"),
    *("patch_ray_nsight", "write_report", "write_timeline", "find_deaths"),
    *("dump_flight_recorder", "enable_flight_recorder", "Watch.hangs"),
)
# Each by one signal; with DISTDEBUG_FAULTS=all by each one, and often.
ENDINGS = [
    (name, end, moment)
    for number, name in enumerate(ENDED)
    for which, end in enumerate(SIGNALS)
    for moment in range(5 if IS_THOROUGH else 1)
    if IS_THOROUGH or number < 2 or which == number % 3
]


# 0.4 MB each.
CROWD, CROWD_S = (10_000, 120.0) if IS_THOROUGH else (1000, 60.0)
FORKS = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        signal.pause()
print("ready", flush=True)
signal.pause()
"""
LOOKING_AROUND = (
    *("capture_node", "check_environment", "check_node", "check_nsys"),
    *("cli.watch.watch", "DebugClient.stack", "find_nsys_reports"),
    *("find_workers", "patch_ray_nsight", "preflight", "snapshot", "watch"),
)


def play(folder, names, target, *options, before=(), environ=None):
    """
    Start scenes in processes of their own.
    """
    root = str(Path(distdebug.__file__).parents[1])
    line = [sys.executable, PLAY, ",".join(names), folder, str(target)]
    return subprocess.Popen(
        [*before, *line, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root, **(environ or {})},
    )


def verdicts(process):
    """
    What speaks against how scenes ended, by name.
    """
    printed, complaint = process.communicate(timeout=LIMIT_S)
    assert 0 == process.returncode, complaint[-2000:]
    told = [json.loads(x) for x in printed.splitlines() if x[:1] == "{"]
    found = {x["name"]: x for x in told if "error" in x}
    return {
        x["name"]: objection_to(x, found.get(x["name"]), complaint)
        for x in told
        if "status" in x
    }


def objection_to(end, told, complaint):
    """
    What speaks against how one scene ended, if anything does.
    """
    if end["status"] or told is None:
        return f"it ended with {end['status']}: {complaint[-2000:]}"
    if told["error"] is None:
        return ""
    is_ours = "DistdebugError" in told["bases"]
    if told["name"] in IN_JOB or not is_ours:
        return told["error"]
    return "" if told["remedy"] else f"no remedy: {told['error']}"


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """
    A disk of 1 MiB in memory; only root may have one.
    """
    line = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """
    Leave no byte on a disk.
    """
    with suppress(OSError), (folder / "rest").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


@pytest.mark.parametrize("name", WRITERS)
def test_full_disk(name, target, tmp_path):
    """
    On a disk that is full to the brim nothing is lost, and it is told.
    """
    with mounted(tmp_path) as folder:
        act = SCENES[name](folder, target)
        (folder / "earlier").write_text("evidence")
        fill(folder)
        before = contents(folder)

        error = outcome(act)

        after = contents(folder)
        assert "" == objection(error, in_job=name in IN_JOB)
        assert before == {x: after.get(x) for x in before} or error is None
        assert before["earlier"] == after["earlier"]


@pytest.mark.parametrize("names", [ALL[::2], ALL[1::2]], ids=["one", "two"])
def test_few_files(names, target, tmp_path):
    """
    Where few files can be open, and none may grow, a job goes on, and others
    get a result or an error of ours.
    """
    process = play(tmp_path, names, target, "nofile=16", "fsize=0")

    assert dict.fromkeys(names, "") == verdicts(process)


def test_little_memory(target, tmp_path):
    """
    Where there is hardly any memory left, a job goes on.
    """
    process = play(tmp_path, IN_JOB, target, "memory=48")

    assert dict.fromkeys(IN_JOB, "") == verdicts(process)


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="nobody can take from root that it may write everywhere",
)
def test_read_only(target, tmp_path):
    """
    Who may write nowhere gets an error of ours, or a result.
    """
    process = play(tmp_path, WRITERS, target, "readonly", before=UNABLE)

    told = verdicts(process)

    for path in (x for x in tmp_path.rglob("*") if x.is_dir()):
        path.chmod(0o755)  # from above to below
    assert dict.fromkeys(WRITERS, "") == told


def test_fork_in_the_middle(target, tmp_path):
    """
    A program that forks while we are at work is not hurt, nor are children.
    """
    process = play(tmp_path, FORKING, target, "fork")

    assert dict.fromkeys(FORKING, "") == verdicts(process)


def marked(mark: str) -> list[str]:
    """
    What is left of the processes that somebody of ours started.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                told = process.status(), process.cpu_times(), process.cmdline()
                found.append(f"{process.pid} {told}")
    return found


@pytest.mark.parametrize(
    ("name", "end", "moment"),
    [
        pytest.param(n, end, i, id=f"{n}-{end.name}-{i}")
        for n, end, i in ENDINGS
    ],
)
def test_ended_in_the_middle(name, end, moment, target, tmp_path):
    """
    Whoever ends us at any moment: what was written stays, the process that
    was looked at goes on, and nobody is left.
    """
    mark = uuid.uuid4().hex
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    log(earlier), dumps(earlier)
    before = contents(earlier)
    process = play(tmp_path, [name], target, "again", environ={MARK: mark})
    assert "ready\n" == process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    # Any moment is as good as another.
    time.sleep(random.Random(f"{name} {end} {moment}").uniform(0.0, 1.0))

    process.send_signal(end)
    process.communicate(timeout=LIMIT_S)

    # Who loses its caller has the CPU time that it was given, 7 s; beside other
    # tests that takes several times as long.
    deadline = time.monotonic() + 60
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [] == marked(mark)
    assert before == contents(earlier)
    assert goes_on(target)
    for manifest in tmp_path.rglob("manifest.json"):
        json.loads(manifest.read_text())


def add_process(root: Path, pid: int, title: str, environ: str = "") -> None:
    """
    Add a process to what looks like ``/proc``.
    """
    folder = root / str(pid)
    folder.mkdir()
    zeros = " ".join(["0"] * 9)
    (folder / "stat").write_text(
        f"{pid} (python) S 1 {zeros} 1 1 0 0 20 0 1 0 {pid} 1000 10\n"
    )
    (folder / "status").write_text(
        f"Name:\tpython\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0\n"
        f"NSpid:\t{pid}\n"
    )
    (folder / "cmdline").write_text(title.replace(" ", "\0") + "\0")
    (folder / "environ").write_text(environ)


@contextmanager
def crowd(number: int) -> Iterator[int]:
    """
    So many processes that do nothing.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FORKS, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert b"ready\n" == process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_crowded_node(target, tmp_path):
    """
    Among many real processes, all that look at a node still end soon.
    """
    took = {}
    with crowd(CROWD):
        for name in LOOKING_AROUND:
            folder = tmp_path / name
            folder.mkdir()
            act, start = SCENES[name](folder, target), time.monotonic()
            told = objection(outcome(act), in_job=name in IN_JOB)
            took[name] = (told, time.monotonic() - start < CROWD_S)

    assert dict.fromkeys(LOOKING_AROUND, ("", True)) == took


def test_many_processes(tmp_path):
    """
    Among 10,000 processes, some of which cannot be read, the ranks are found.
    """
    for pid in range(1000, 11_000):
        add_process(tmp_path, pid, f"sleep {pid}")
    for rank in range(8):
        ours = f"RANK={rank}\0WORLD_SIZE=8\0MASTER_ADDR=a\0"
        add_process(tmp_path, 20_000 + rank, "python train.py", ours)
    for pid in range(1000, 1100):
        (tmp_path / str(pid) / "stat").unlink()
        (tmp_path / str(pid) / "stat").mkdir()  # no reader gets past this
    start = time.monotonic()

    workers = distdebug.find_workers(["train"], root=str(tmp_path))

    assert list(range(20_000, 20_008)) == [x.pid for x in workers]
    assert time.monotonic() - start < 60.0
