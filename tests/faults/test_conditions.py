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

from .checking import contents, objection, outcome
from .scenes import IN_JOB, REACH, SCENES, dumps, log


PLAY = Path(__file__).parent / "programs" / "play.py"
WRITERS = sorted(name for name in SCENES if "writes" in REACH[name])
# Root without the right to write where modes forbid it.
UNABLE = (
    ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    if os.geteuid() == 0
    else ()
)
LIMIT_S = 120
MARK = "DISTDEBUG_BENCH"
SEED = random.Random(7)
ENDED = tuple(
    name
    for name in ("capture_node", "snapshot", "diagnose", "read_dumps")
    for _ in range(3)
)


def play(folder, name, target, *options, before=(), environ=None):
    """
    Start a scene in a process of its own.
    """
    root = str(Path(distdebug.__file__).parents[1])
    return subprocess.Popen(
        [*before, sys.executable, PLAY, name, folder, str(target), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root, **(environ or {})},
    )


def verdict(process, name):
    """
    What speaks against how a scene ended, if anything does.
    """
    printed, complaint = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        return f"it ended with {process.returncode}: {complaint[-2000:]}"
    told = json.loads(printed.splitlines()[-1])
    if told["error"] is None:
        return ""
    if name in IN_JOB or "DistdebugError" not in told["bases"]:
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


@pytest.mark.parametrize("name", sorted({*SCENES} - {"snapshot"}))
def test_few_files(name, target, tmp_path):
    """
    Where few files can be open, and none may grow, a job goes on, and others
    get a result or an error of ours.
    """
    process = play(tmp_path, name, target, "nofile=16", "fsize=0")

    assert "" == verdict(process, name)


@pytest.mark.parametrize("name", IN_JOB)
def test_little_memory(name, target, tmp_path):
    """
    Where there is hardly any memory left, a job goes on.
    """
    process = play(tmp_path, name, target, "memory=48")

    assert "" == verdict(process, name)


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="nobody can take from root that it may write everywhere",
)
@pytest.mark.parametrize("name", WRITERS)
def test_read_only(name, target, tmp_path):
    """
    Who may write nowhere gets an error of ours, or a result.
    """
    process = play(tmp_path, name, target, "wait", before=UNABLE)
    assert "ready\n" == process.stdout.readline()
    folders = [tmp_path, *(p for p in tmp_path.rglob("*") if p.is_dir())]
    for path in folders:
        path.chmod(0o555)

    process.stdin.write("\n")
    process.stdin.flush()
    told = verdict(process, name)

    for path in folders:
        path.chmod(0o755)
    assert "" == told


@pytest.mark.parametrize("name", IN_JOB)
def test_fork_in_the_middle(name, target, tmp_path):
    """
    A program that forks while we are at work is not hurt, nor are children.
    """
    process = play(tmp_path, name, target, "fork")

    assert "" == verdict(process, name)


def marked(mark: str) -> set[int]:
    """
    The processes that somebody of ours started.
    """
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.add(process.pid)
    return found


@pytest.mark.parametrize(
    "end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
)
@pytest.mark.parametrize(
    ("name", "number"), [(n, i) for i, n in enumerate(ENDED)]
)
def test_ended_in_the_middle(name, number, end, target, tmp_path):
    """
    Whoever ends us at any moment: what was written stays, the process that
    was looked at goes on, and nobody is left.
    """
    mark = uuid.uuid4().hex
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    log(earlier), dumps(earlier)
    before = contents(earlier)
    process = play(
        tmp_path, name, target, "wait", "again", environ={MARK: mark}
    )
    assert "ready\n" == process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    time.sleep(SEED.uniform(0.0, 1.0))  # any moment is as good as another

    process.send_signal(end)
    process.communicate(timeout=LIMIT_S)

    deadline = time.monotonic() + 20
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set() == marked(mark)
    assert before == contents(earlier)
    assert psutil.Process(target).status() == psutil.STATUS_SLEEPING
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
