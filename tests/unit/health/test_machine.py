"""
Memory, disks, pressure, limits, and processes that are stuck.
"""

from __future__ import annotations

import os
import threading
import time

import attrs
import pytest

from distdebug.findings import Cause
from distdebug.health import disks as disks_module
from distdebug.health.blocked import Blocked, judge_blocked, read_blocked
from distdebug.health.disks import Disk, judge_disks, read_disks
from distdebug.health.limits import Limits, judge_limits, read_limits
from distdebug.health.memory.cgroups import MemoryGroup, read_groups
from distdebug.health.memory.judge import judge_memory
from distdebug.health.memory.read import Memory, read_memory
from distdebug.health.pressure import Pressure, judge_pressure, read_pressure


GIB = 1 << 30


def write(folder, **files):
    """
    Write files of the kernel; two underlines stand for a dot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


class TestGroups:
    def proc(self, tmp_path, mounts, cgroup):
        """
        A process in some control groups.
        """
        proc = tmp_path / "proc"
        write(proc / "self", mountinfo=mounts)
        write(proc / "7", cgroup=cgroup, stat=stat(7, 1000))
        return str(proc)

    def test_version_2(self, tmp_path):
        """
        The group of the process, and those around it, tell limits and kills.
        """
        top = tmp_path / "cg"
        proc = self.proc(
            tmp_path,
            f"broken\n30 29 0:27 / {top} rw - cgroup2 cgroup2 rw",
            "0::/job_1/task_0",
        )
        write(
            top / "job_1",
            memory__max=4096,
            memory__current=3000,
            memory__events="low 0\noom 2\noom_kill 2",
            memory__stat="anon 1\ninactive_file 1000",
        )
        write(
            top / "job_1" / "task_0",
            memory__max="max",
            memory__current=100,
            memory__events="oom_kill 0",
            cgroup__procs="7\n8",
        )

        task, job = read_groups([7, 7], proc=proc)

        ticks = os.sysconf("SC_CLK_TCK")
        assert (
            MemoryGroup(
                path=f"{top}/job_1/task_0",
                is_own=True,
                used=100,
                kills=0,
                started=1000 / ticks,
            )
            == task
        )
        assert (
            MemoryGroup(
                path=f"{top}/job_1",
                is_own=False,
                limit=4096,
                used=2000,
                kills=2,
            )
            == job
        )

    def test_version_1(self, tmp_path):
        """
        In a container the mount shows a part of the tree only.
        """
        top = tmp_path / "memory"
        proc = self.proc(
            tmp_path,
            f"30 29 0:27 /docker/abc {top} rw - cgroup cgroup rw,memory",
            "5:cpu,cpuacct:/x\n4:memory:/docker/abc\nbroken",
        )
        write(
            top,
            **{
                "memory.limit_in_bytes": 9223372036854771712,
                "memory.usage_in_bytes": 500,
                "memory.oom_control": "oom_kill_disable 1\nunder_oom 1\n"
                "oom_kill 3",
            },
        )

        (group,) = read_groups([7, 8], proc=proc)

        assert (str(top), True, None, 3, True) == (
            group.path,
            group.is_own,
            group.limit,
            group.kills,
            group.waits,
        )

    def test_inner_first_seen_from_below(self, tmp_path):
        """
        A group that holds a process and is around another is one of its own.
        """
        top = tmp_path / "cg"
        proc = self.proc(
            tmp_path,
            f"30 29 0:27 / {top} rw - cgroup2 cgroup2 rw",
            "0::/a/b",
        )
        write(tmp_path / "proc" / "8", cgroup="0::/a", stat=stat(8, 1))
        write(top / "a", memory__current=2)
        write(top / "a" / "b", memory__current=1)

        groups = read_groups([7, 8], proc=proc)

        assert {f"{top}/a/b": True, f"{top}/a": True} == {
            x.path: x.is_own for x in groups
        }

    def test_gone(self, tmp_path):
        """
        A group that cannot be found below the mount is taken for the mount
        itself.
        """
        top = tmp_path / "cg"
        proc = self.proc(
            tmp_path,
            f"30 29 0:27 / {top} rw - cgroup2 cgroup2 rw",
            "0::/../../elsewhere",
        )
        write(top, memory__current=5)

        (group,) = read_groups([7], proc=proc)

        assert (str(top), 5) == (group.path, group.used)

    def test_none(self, tmp_path):
        """
        Without control groups there is nothing to tell.
        """
        assert () == read_groups([7], proc=str(tmp_path))


def stat(pid, start):
    """
    A file ``stat`` of a process.
    """
    return f"{pid} (a) S 1 {' '.join(['0'] * 9)} 1 1 0 0 20 0 1 0 {start} 1 1"


class TestMemory:
    def test_read(self, tmp_path):
        """
        The kernel counts in KiB.
        """
        write(
            tmp_path,
            meminfo="MemTotal: 100 kB\nMemAvailable: 40 kB\n"
            "SwapTotal: 10 kB\nSwapFree: 4 kB\nHugePages_Total: 0\nx",
        )

        memory = read_memory(proc=str(tmp_path))

        assert (
            Memory(
                total=102_400,
                available=40_960,
                swap_total=10_240,
                swap_used=6144,
            )
            == memory
        )

    def test_little_told(self, tmp_path):
        """
        What an old kernel does not tell is not known.
        """
        write(tmp_path, meminfo="MemTotal: 100 kB")

        assert Memory(total=102_400) == read_memory(proc=str(tmp_path))
        with pytest.raises(OSError, match="cannot be read"):
            read_memory(proc=str(tmp_path / "no"))

    @pytest.mark.parametrize(
        ("left", "confidence"),
        [(0.001, ["likely"]), (0.015, ["possible"]), (0.2, [])],
    )
    def test_node(self, left, confidence):
        """
        What is left of the memory of the node tells how sure it is.
        """
        total = 100 * GIB
        memory = Memory(total=total, available=int(left * total))

        found = judge_memory(memory, host="n1")

        assert confidence == [x.confidence for x in found]
        assert all(x.summary.startswith("n1: only ") for x in found)

    def test_unknown(self):
        """
        Nothing known, nothing found.
        """
        assert () == judge_memory(Memory())

    @pytest.mark.parametrize(
        ("about", "confidence"),
        [
            ({"begins": 100.0}, ["likely"]),
            ({"begins": 9000.0}, ["possible"]),
            ({}, ["possible"]),
            ({"begins": 100.0, "is_log_whole": True}, []),
        ],
        ids=["new container", "old container", "unknown", "log knows better"],
    )
    def test_kills(self, about, confidence):
        """
        A counter does not tell when: the age of its group has to do.
        """
        group = MemoryGroup(path="/cg/a", is_own=True, kills=2, started=50.0)

        found = judge_memory(Memory(groups=(group,)), **about)

        assert confidence == [x.confidence for x in found]
        assert all("killed 2 processes" in x.summary for x in found)

    def test_around(self):
        """
        A group around that of the job counts strangers, unless it is limited.
        """
        around = MemoryGroup(path="/cg", is_own=False, kills=9)
        limited = attrs.evolve(around, limit=GIB, kills=1, used=10)

        assert () == judge_memory(Memory(groups=(around,)))
        (found,) = judge_memory(Memory(groups=(limited,)))
        assert "killed a process" in found.summary

    def test_limit(self):
        """
        A job near its limit may be the next to be killed.
        """
        group = MemoryGroup(
            path="/cg", is_own=True, limit=100 * GIB, used=99 * GIB
        )

        (found,) = judge_memory(Memory(groups=(group,)))

        assert "99.0 GiB of the 100 GiB" in found.summary

    def test_waits(self):
        """
        Where nobody is killed, everybody waits.
        """
        group = MemoryGroup(path="/cg", is_own=True, waits=True)

        (found,) = judge_memory(Memory(groups=(group,)))

        assert (Cause.HOST_OUT_OF_MEMORY, "certain") == (
            found.cause,
            found.confidence,
        )


class TestDisks:
    def test_read(self, tmp_path):
        """
        Folders of the job are asked as well as those of every job.
        """
        disks = read_disks([tmp_path, tmp_path / "no"])

        known = {x.path: x for x in disks}
        here = known[str(tmp_path)]
        assert here.total >= here.free > 0
        assert "No such file" in known[str(tmp_path / "no")].problem
        assert "tmp" in {x.name for x in disks}

    def test_absent(self, tmp_path):
        """
        A place that a container does not have is no news.
        """
        assert () == read_disks(places={"shm": str(tmp_path / "no")})

    def test_hangs(self, monkeypatch):
        """
        A file system that does not answer costs no more than its time.
        """
        never = threading.Event()
        monkeypatch.setattr(
            disks_module.os, "statvfs", lambda path: never.wait()
        )
        begin = time.monotonic()

        (disk,) = read_disks(["/mnt"], timeout_s=0.1, places={})
        never.set()
        (found,) = judge_disks([disk])

        assert time.monotonic() - begin < 20
        assert not disk.answers
        assert Cause.IO_WAIT is found.cause
        assert "/mnt does not answer" in found.summary

    @pytest.mark.parametrize(
        ("change", "cause", "confidence", "says"),
        [
            ({"free": 0}, "disk_full", "certain", "is full: 0 B of 1.0 TiB"),
            (
                {"files": 100, "free_files": 0},
                "disk_full",
                "certain",
                "no more files",
            ),
            (
                {"files": 10_000, "free_files": 9},
                "disk_full",
                "possible",
                "only 9 more files",
            ),
            (
                {"free": 100 << 20},
                "disk_full",
                "possible",
                "nearly full: 100 MiB",
            ),
            (
                {"is_read_only": True},
                "node_misconfigured",
                "likely",
                "read-only",
            ),
            (
                {"name": "shm", "total": 64 << 20, "free": 64 << 20},
                "node_misconfigured",
                "possible",
                "only 64.0 MiB",
            ),
        ],
        ids=["full", "no files", "few files", "nearly", "ro", "shm"],
    )
    def test_unwell(self, change, cause, confidence, says):
        """
        What hinders a job is told.
        """
        well = Disk(
            name="/c",
            path="/c",
            total=1 << 40,
            free=1 << 38,
            files=10_000,
            free_files=9000,
        )

        (found,) = judge_disks([attrs.evolve(well, **change)], host="n1")

        assert (Cause(cause), confidence) == (found.cause, found.confidence)
        assert says in found.summary
        assert () == judge_disks([well])

    @pytest.mark.parametrize(
        "disk",
        [
            Disk(name="a", path="/a", problem="gone"),
            Disk(name="a", path="/a", total=0, free=0),
            Disk(name="a", path="/a", total=5 << 30, free=GIB, files=0),
            Disk(name="a", path="/a", total=1 << 20, free=1 << 19),
        ],
        ids=["problem", "none", "counts no files", "small"],
    )
    def test_well(self, disk):
        """
        File systems without a size, or that count no files, are fine.
        """
        assert () == judge_disks([disk])


class TestPressure:
    def test_read(self, tmp_path):
        """
        The kernel tells shares of time, and how often a container was held.
        """
        write(
            tmp_path / "pressure",
            io="some avg10=12.50 avg60=1.00 avg300=0.10 total=1\n"
            "full avg10=10.00 avg60=1.00 avg300=0.10 total=1",
            memory="some avg10=1.00 avg60=1.00 avg300=0.10 total=1",
            cpu="nonsense",
        )
        write(tmp_path, loadavg="3.50 2.0 1.0 1/2 3")
        write(
            tmp_path / "cg",
            cpu__stat="usage_usec 5\nnr_periods 10\nnr_throttled 4",
        )

        found = read_pressure(proc=str(tmp_path), cgroup=str(tmp_path / "cg"))

        assert (
            Pressure(
                io_some=12.5,
                io_full=10.0,
                memory_some=1.0,
                load=3.5,
                cpus=os.cpu_count(),
                throttled=0.4,
            )
            == found
        )

    def test_nothing(self, tmp_path):
        """
        Old kernels and containers tell nothing.
        """
        empty = read_pressure(proc=str(tmp_path), cgroup=str(tmp_path))

        assert Pressure(cpus=os.cpu_count()) == empty
        assert () == judge_pressure(empty)

    @pytest.mark.parametrize(
        ("known", "cause", "confidence"),
        [
            ({"memory_full": 30.0}, "host_out_of_memory", "likely"),
            ({"memory_some": 50.0}, "host_out_of_memory", "likely"),
            ({"io_full": 80.0}, "io_wait", "possible"),
            (
                {"cpu_some": 90.0, "load": 99.0, "cpus": 8},
                "node_misconfigured",
                "possible",
            ),
            ({"throttled": 0.5}, "node_misconfigured", "possible"),
        ],
        ids=["memory full", "memory some", "io", "cpu", "throttled"],
    )
    def test_unwell(self, known, cause, confidence):
        """
        Waiting for too long is told.
        """
        (found,) = judge_pressure(Pressure(**known), host="n1")

        assert (Cause(cause), confidence) == (found.cause, found.confidence)

    def test_busy(self):
        """
        A node at work is busy.
        """
        busy = Pressure(
            cpu_some=70.0, load=9.0, cpus=8, io_full=40.0, throttled=0.1
        )

        assert () == judge_pressure(busy)


class TestBlocked:
    def test_read(self, fake_proc):
        """
        Only who stays in state D counts, and no thread of the kernel.
        """
        for pid, state in ((7, "D"), (8, "S"), (9, "D")):
            folder = fake_proc.add(pid, "python", state=state)
            if pid != 9:
                status = folder / "status"
                status.write_text(f"{status.read_text()}VmSize:\t10 kB\n")
            (folder / "task" / str(pid) / "wchan").write_text("nfs_wait\0")

        found = read_blocked(proc=fake_proc.root, apart_s=0)

        assert (
            Blocked(pid=7, name="python", where="nfs_wait\0"[:8]),
        ) == found

    def test_threads(self, fake_proc):
        """
        Of the job, all threads are looked at.
        """
        folder = fake_proc.add(7, "python", threads=["loader"])
        task = folder / "task" / "8" / "stat"
        task.write_text(task.read_text().replace(") S", ") D"))
        status = folder / "status"
        status.write_text(f"{status.read_text()}VmSize:\t10 kB\n")

        (found,) = read_blocked([7, 99], proc=fake_proc.root, apart_s=0)

        assert (7, "") == (found.pid, found.where)

    def test_gone(self, fake_proc):
        """
        Who is gone is not blocked.
        """
        assert () == read_blocked([5], proc=fake_proc.root, apart_s=0)

    @pytest.mark.parametrize(
        ("where", "cause", "says"),
        [
            ("nvidia_ioctl", "gpu_fault", "driver of the GPU"),
            ("nfs_wait_bit_killable", "io_wait", "for a file system"),
            ("do_something", "uninterruptible", "in do_something"),
            ("", "uninterruptible", "stuck in the kernel"),
        ],
        ids=["gpu", "nfs", "other", "unknown"],
    )
    def test_judge(self, where, cause, says):
        """
        Where they wait tells for what.
        """
        stuck = [Blocked(pid=p, name="python", where=where) for p in (7, 8)]

        (ours,) = judge_blocked(stuck, ranks={7: 3})
        (others,) = judge_blocked(stuck)

        assert (Cause(cause), (3,), "likely") == (
            ours.cause,
            ours.ranks,
            ours.confidence,
        )
        assert says in ours.summary
        assert "8" not in ours.summary
        assert ("possible", ()) == (others.confidence, others.ranks)


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 4096                 files
Max locked memory         65536                65536                bytes
Max processes             unlimited            unlimited            processes
"""


class TestLimits:
    def test_read(self, fake_proc):
        """
        The kernel tells limits, rights, and what is used.
        """
        folder = fake_proc.add(7, "python")
        (folder / "limits").write_text(LIMITS)
        for number in range(3):
            (folder / "fd" / str(number)).write_text("")
        other = fake_proc.add(8, "python")
        (other / "limits").write_text(LIMITS.replace("1024 ", "unlimited "))
        status = other / "status"
        status.write_text(f"{status.read_text()}CapEff:\t0000000000004000\n")

        found = read_limits([7, 8, 9], proc=fake_proc.root)

        assert (
            Limits(pid=7, files=1024, open_files=3, locked=65_536),
            Limits(pid=8, locked=65_536, may_lock=True),
        ) == found

    def test_files(self):
        """
        Who is near its limit of files is told.
        """
        near = Limits(pid=7, files=1024, open_files=1000)
        far = Limits(pid=8, files=1024, open_files=10)

        (found,) = judge_limits([near, far], ranks={7: 3}, host="n1")

        assert (Cause.NODE_MISCONFIGURED, (3,)) == (found.cause, found.ranks)
        assert "1000 of 1024 files" in found.summary
        assert "process 8" not in found.summary

    def test_locked(self):
        """
        Adapters for RDMA need locked memory, unless a right gives it.
        """
        limits = [
            Limits(pid=7, locked=65_536),
            Limits(pid=8, locked=65_536, may_lock=True),
            Limits(pid=9),
        ]

        (found,) = judge_limits(limits, has_rdma=True)

        assert "64.0 KiB" in found.summary
        assert "(process 7)" in found.summary
        assert () == judge_limits(limits)
