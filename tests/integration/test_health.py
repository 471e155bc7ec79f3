"""
Real trouble of a real node, as far as this machine lets us make it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from distdebug.causes import Cause
from distdebug.health import (
    check_environment,
    check_node,
    read_interfaces,
    read_kernel_log,
)
from distdebug.health.host import read_blocked_processes
from distdebug.health.memory import check_memory, read_memory
from distdebug.health.node import check_ray_node, read_ray_node

from .living import end_all, having, wait_until


LIMIT = 64 << 20
# Says that it is ready, and waits until it is told to go on.
EATER = """
import sys
print(flush=True)
sys.stdin.readline()
memory = []
while True:
    memory.append(bytearray(b"x" * (1 << 20)))
"""
WAIT = "import time; print(flush=True); time.sleep(600)"
# Waits inside the kernel for a child that never becomes another program.
FORK = (
    "import ctypes; libc = ctypes.CDLL(None); print(flush=True); "
    "libc.vfork() or libc.pause()"
)


def start(program):
    """
    A process that has said that it is ready.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    process.stdout.readline()
    return process


def end(*processes):
    """
    End processes with all that they started.
    """
    for process in processes:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def group():
    """
    A cgroup that may use little memory.
    """
    name = f"distdebug_{os.getpid()}"
    first = Path("/sys/fs/cgroup/memory")
    second = Path("/sys/fs/cgroup")
    is_old = first.is_dir()
    folder = (first if is_old else second) / name
    limit = "memory.limit_in_bytes" if is_old else "memory.max"
    try:
        folder.mkdir()
    except OSError as exc:
        pytest.skip(f"cgroups cannot be made: {exc}")
    try:
        (folder / limit).write_text(str(LIMIT))
        if not is_old:
            (folder / "memory.swap.max").write_text("0")
    except OSError as exc:
        folder.rmdir()
        pytest.skip(f"memory of cgroups cannot be limited: {exc}")
    yield folder
    assert wait_until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


class TestOutOfMemory:
    def test_killed(self, group):
        """
        The kernel kills a rank for its memory; its peer is all right.
        """
        eater, peer = start(EATER), start(WAIT)
        try:
            for process in (eater, peer):
                (group / "cgroup.procs").write_text(str(process.pid))
            eater.stdin.write(b"\n")
            eater.stdin.flush()
            status = eater.wait(60)

            memory = read_memory([peer.pid])
            health = check_node(
                pids=[peer.pid], ranks={eater.pid: 1, peer.pid: 0}
            )
        finally:
            end(eater, peer)

        assert -signal.SIGKILL == status
        own = memory.groups[0]
        assert (str(group), LIMIT, 1) == (own.path, own.limit, own.kills)
        booted = psutil.boot_time()
        began = health.facts.taken - booted
        (counted,) = check_memory(memory, begins=began)
        assert Cause.HOST_OUT_OF_MEMORY is counted.cause
        assert "likely" == counted.confidence
        try:
            read_kernel_log()
        except OSError:
            assert ["likely"] == [x.confidence for x in health.findings]
        else:
            found = health.findings[0]
            assert (Cause.HOST_OUT_OF_MEMORY, (1,), "certain") == (
                found.cause,
                found.ranks,
                found.confidence,
            )
            assert f"process {eater.pid} (python" in found.summary

    def test_before_the_job(self, group):
        """
        What was killed before the job began is none of its business.
        """
        eater = start(EATER)
        try:
            (group / "cgroup.procs").write_text(str(eater.pid))
            eater.stdin.write(b"\n")
            eater.stdin.flush()
            eater.wait(60)
        finally:
            end(eater)

        later = check_node(since=time.time() + 3600)

        assert not [
            x
            for x in later.findings
            if str(eater.pid) in x.summary or str(group) in str(x.evidence)
        ]


@pytest.fixture
def small_disk(tmp_path):
    """
    A file system of 1 MiB.
    """
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "distdebug", folder],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"file systems cannot be mounted: {exc}")
    yield folder
    subprocess.run(["umount", folder], check=True)


class TestDisk:
    def test_full(self, small_disk):
        """
        A full file system is told, whatever filled it.
        """
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "checkpoint.pt").write_bytes(bytes(2 << 20))

        health = check_node(folders=[small_disk])

        (found,) = [x for x in health.findings if x.cause is Cause.DISK_FULL]
        assert "certain" == found.confidence
        assert str(small_disk) in found.summary
        assert not health.is_healthy

    def test_read_only(self, small_disk):
        """
        So is one that may not be written to any more.
        """
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

        health = check_node(folders=[small_disk])

        assert [Cause.NODE_MISCONFIGURED] == [
            x.cause for x in health.findings if str(small_disk) in x.summary
        ]

    def test_empty(self, small_disk):
        """
        One with room is not.
        """
        health = check_node(folders=[small_disk])

        assert not [x for x in health.findings if str(small_disk) in x.summary]


def test_uninterruptible():
    """
    A process that stays in the kernel is found, with its threads.
    """
    stuck, well = start(FORK), start(WAIT)
    try:
        assert wait_until(
            lambda: psutil.Process(stuck.pid).status() == "disk-sleep"
        )
        found = read_blocked_processes([stuck.pid, well.pid])
        health = check_node(pids=[stuck.pid], ranks={stuck.pid: 6})
    finally:
        end(stuck, well)

    assert [stuck.pid] == [x.pid for x in found]
    (finding,) = [x for x in health.findings if x.ranks == (6,)]
    assert Cause.UNINTERRUPTIBLE is finding.cause


class TestNetwork:
    def worker(self, **variables):
        """
        A process with these variables.
        """
        return subprocess.Popen(
            [sys.executable, "-c", WAIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "NCCL_DEBUG": "WARN", **variables},
        )

    def check(self, **variables):
        """
        What is found of such a process.
        """
        worker = self.worker(**variables)
        try:
            worker.stdout.readline()
            return check_environment([worker.pid])
        finally:
            end(worker)

    def test_real_names(self):
        """
        Interfaces of this machine are right; others are not.
        """
        good = next(x.name for x in read_interfaces() if x.is_up)

        right = self.check(
            NCCL_SOCKET_IFNAME=f"={good}", GLOO_SOCKET_IFNAME=good
        )
        wrong = self.check(
            NCCL_SOCKET_IFNAME="nosuch", GLOO_SOCKET_IFNAME=good[:-1]
        )

        assert right.is_healthy
        assert ["certain", "certain"] == [x.confidence for x in wrong.findings]

    def test_without_address(self):
        """
        An interface that is there, and has no address, is of no use.
        """
        name = f"dd{os.getpid() % 100_000}"
        kinds = ("dummy", "bridge", "veth", "ifb")
        made = shutil.which("ip") and any(
            subprocess.run(
                ["ip", "link", "add", name, "type", kind],
                capture_output=True,
            ).returncode
            == 0
            for kind in kinds
        )
        if not made:
            pytest.skip("network interfaces cannot be made")

        try:
            health = self.check(GLOO_SOCKET_IFNAME=name)
        finally:
            subprocess.run(["ip", "link", "del", name], check=True)

        (found,) = health.findings
        assert "is down or has no address" in found.summary


@pytest.fixture
def ray_head():
    """
    The head of a Ray cluster: its folder.
    """
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    # The path of a socket may have 107 characters.
    folder = tempfile.mkdtemp(prefix="dd_", dir="/tmp")
    environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "HOME": folder}
    try:
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start"),
                *("--head", "--port=0", f"--temp-dir={folder}"),
                *("--num-cpus=1", "--include-dashboard=false"),
                "--disable-usage-stats",
            ],
            env=environ,
            check=True,
            capture_output=True,
            timeout=120,
        )
        yield Path(folder)
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def test_ray(ray_head):
    """
    A Ray node lives, is stopped, and dies; each is told.
    """
    logs = ray_head / "session_latest" / "logs"
    assert wait_until((logs / "debug_state.txt").is_file, seconds=60)

    alive = read_ray_node(ray_head)
    health = check_node(ray_sessions=[ray_head])
    (pid,) = alive.raylets
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: psutil.Process(pid).status() == "stopped")
    stopped = list(check_ray_node(read_ray_node(ray_head)))
    psutil.Process(pid).kill()
    assert wait_until(lambda: not read_ray_node(ray_head).raylets)
    later = time.time() + 60
    dead = list(check_ray_node(read_ray_node(ray_head, now=later)))
    for process in having(str(ray_head)):
        with suppress(psutil.Error):
            process.kill()
    assert wait_until(lambda: read_ray_node(ray_head).gcs == "refused")
    later = time.time() + 60
    gone = list(check_ray_node(read_ray_node(ray_head, now=later)))

    assert [] == list(check_ray_node(alive))
    assert "answers" == alive.gcs
    assert alive.cluster_version == alive.node_version != ""
    assert (alive.name,) == tuple(x.name for x in health.facts.ray)
    assert [Cause.STOPPED] == [x.cause for x in stopped]
    assert Cause.DEAD in {x.cause for x in dead}
    assert "is gone" in dead[0].summary
    assert ["DEAD", "DEAD"] == [x.cause.name for x in gone]
    assert "nothing listens" in gone[1].summary
