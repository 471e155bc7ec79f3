"""
Snapshots of a real job that hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug import Cause, diagnose, snapshot
from distdebug.snapshots.bundle import read_manifest

from .living import wait_for


SOURCE = Path(distdebug.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "snapshot_rank.py"
ENVIRON = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(
    shutil.which("py-spy") is None
    and not Path(sys.executable).with_name("py-spy").exists(),
    reason="py-spy is not installed",
)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """
    Four ranks of which one never arrives: their dumps and their numbers.
    """
    pytest.importorskip("torch.distributed")
    folder = tmp_path_factory.mktemp("job")
    os.mkfifo(folder / "shard")
    arguments = [folder / name for name in ("dumps", "store", "shard")]
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(4):
            process = subprocess.Popen(
                [sys.executable, PROGRAM, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **ENVIRON,
                    "RANK": str(rank),
                    "WORLD_SIZE": "4",
                    "NCCL_DEBUG": "INFO",
                    "HF_TOKEN": "hush",
                },
            )
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in ranks:
            assert "ready\n" == process.stdout.readline()
        yield folder / "dumps", [process.pid for process in ranks]


def assert_explained(diagnosis):
    """
    The verdict names rank, collective, cause, and line.
    """
    verdict = diagnosis.verdict
    assert Cause.RANK_NOT_ARRIVED == verdict.cause
    assert (2,) == verdict.ranks
    assert "all_reduce" == verdict.collective.op
    assert Cause.IO_WAIT == verdict.detail_cause
    assert "read_shard" == verdict.location.function
    assert "snapshot_rank.py" in verdict.location.file


def argv(job, output_dir):
    """
    The command that takes a snapshot.
    """
    dump_dir, pids = job
    start = [sys.executable, "-m", "distdebug", "snapshot", "--json"]
    who = [part for pid in pids for part in ("--pid", str(pid))]
    return [*start, *who, "--dump-dir", dump_dir, output_dir]


@pytest.mark.smoke
def test_snapshot(job, tmp_path):
    """
    One call explains the hang, and the folder alone does so too.
    """
    dump_dir, pids = job
    log = tmp_path / "train.log"
    log.write_text("step 3\n")

    taken = snapshot(
        tmp_path / "hang", dump_dir=dump_dir, pids=pids, logs=[log]
    )

    assert_explained(taken.diagnosis)
    assert_explained(diagnose(taken.folder))
    assert taken.manifest == read_manifest(taken.folder)
    (node,) = taken.manifest.nodes
    assert node.status in {"ok", "partial"}
    assert 4 == len(list(taken.folder.glob("*/flight_recorder/*_rank_?")))
    report = (taken.folder / "REPORT.txt").read_text()
    assert f"{taken.diagnosis}\n" == report
    (facts,) = taken.folder.glob("*/node.json")
    text = facts.read_text()
    groups = json.loads(text)["variables"]
    assert sorted(pids) == sorted(pid for g in groups for pid in g["pids"])
    assert {"INFO"} == {g["variables"]["NCCL_DEBUG"] for g in groups}
    assert "hush" not in text
    assert [] == [p for p in pids if not is_asleep(p)]


def looks(pid, _):
    """
    Whether a snapshot looks at stacks: a tool runs.
    """
    return psutil.Process(pid).children()


def writes(_, hang):
    """
    Whether a snapshot writes.
    """
    # Not by glob, which fails where a folder is renamed meanwhile.
    return [
        name
        for _, _, names in os.walk(hang)
        for name in names
        if name.startswith("pyspy_")
    ]


def kill_at(moment, command, hang):
    """
    Kill a snapshot at some moment.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRON,
    ) as process:
        wait_for(lambda: moment(process.pid, hang), seconds=30)
        process.send_signal(signal.SIGKILL)
        process.wait(20)


@pytest.mark.parametrize("moment", [looks, writes])
def test_killed(job, tmp_path, moment):
    """
    A snapshot that is killed leaves whole files and a job that goes on, and
    the next one does not touch them.
    """
    # On a busy machine, it may be done before it is killed.
    for attempt in range(5):
        hang = tmp_path / f"hang-{attempt}"
        kill_at(moment, argv(job, hang), hang)
        if not (hang / "manifest.json").exists():
            break

    before = [p for p in hang.rglob("*") if p.is_file()]
    assert not (hang / "manifest.json").exists()
    for path in before:
        if path.suffix == ".json":
            json.loads(path.read_text())
    assert [] == [p for p in job[1] if not is_asleep(p)]

    got = subprocess.run(
        argv(job, hang), capture_output=True, text=True, env=ENVIRON
    )

    assert 1 == got.returncode, got.stderr
    data = json.loads(got.stdout)
    assert f"{hang}.2" == data["folder"]
    assert_explained(diagnose(data["folder"]))
    assert before == [p for p in hang.rglob("*") if p.is_file()]


def test_rank_killed(job, tmp_path):
    """
    A rank that is killed in the midst of it costs only its own part.
    """
    hang = tmp_path / "hang"
    with subprocess.Popen(
        argv(job, hang),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRON,
    ) as process:
        wait_for(lambda: looks(process.pid, hang), seconds=30)
        os.kill(job[1][3], signal.SIGKILL)
        data = json.load(process.stdout)

    assert 1 == process.returncode
    (node,) = read_manifest(hang).nodes
    assert "partial" == node.status
    # Which of the two is the root depends on what the dead one left.
    assert set(data["verdict"]["ranks"]) & {2, 3}
    # Its peers may have ended by now, for they lost it.
    states = [Path(f"/proc/{pid}/status").read_text() for pid in job[1]]
    assert [] == [s for s in states if re.search(r"State:\t[Tt]", s)]


def is_asleep(pid):
    """
    Whether a process is neither dead nor stopped nor held by a debugger.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    is_free = "TracerPid:\t0" in status
    return is_free and ("State:\tS" in status or "State:\tR" in status)


def test_side_car(job, tmp_path):
    """
    Who stands beside a job that records learns from the ranks where their
    dumps are, and explains its hang.
    """
    _, pids = job
    who = [part for pid in pids for part in ("--pid", str(pid))]

    got = subprocess.run(
        [
            *(sys.executable, "-m", "distdebug", "watch", "--json", *who),
            *("--wait-seconds", "1", "--floor", "2"),
            *("--output-dir", tmp_path / "hangs"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRON,
    )

    assert 1 == got.returncode, got.stderr
    (line,) = got.stdout.splitlines()
    verdict = json.loads(line)["verdict"]
    assert ("rank_not_arrived", [2]) == (verdict["cause"], verdict["ranks"])
    assert "io_wait" == verdict["detail_cause"]
    assert "read_shard" == verdict["location"]["function"]
    assert "looking at it" in got.stderr
