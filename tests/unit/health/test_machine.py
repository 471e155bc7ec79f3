"""
Memory, disks, pressure, limits, and processes that are stuck.
"""

from __future__ import annotations

import os
import threading
import time

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.findings import Missing
from distdebug.health import check_node_json


GIB = 1 << 30


@pytest.fixture
def groups(node, tmp_path):
    """
    Puts process 7 and this one into cgroups below a folder.
    """

    def make(cgroup, files, mount="30 29 0:27 / {} rw - cgroup2 cgroup2 rw"):
        top = tmp_path / "cg"
        mounts = f"broken\n{mount.format(top)}"
        node.write("/proc/self", {"mountinfo": mounts})
        node.proc.add(7, "python", start=5000)
        for pid in (7, os.getpid()):
            node.write(f"/proc/{pid}", {"cgroup": cgroup})
        for name, text in files.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(f"{text}\n")
        return top

    return make


@pytest.fixture
def own_group(groups):
    """
    Puts this process into one group, with what it may use and did.
    """

    def make(**files):
        known = {f"memory.{name}": text for name, text in files.items()}
        known |= {"cgroup.procs": 7}
        groups("0::/job", {f"job/{k}": text for k, text in known.items()})

    return make


class TestGroups:
    def test_version_2(self, node, groups):
        """
        The group of a process, and those around it, have limits and counters
        of kills.
        """
        top = groups(
            "0::/job_1/task_0",
            {
                "job_1/memory.max": 4096,
                "job_1/memory.current": 3000,
                "job_1/memory.events": "low 0\noom 2\noom_kill 2",
                "job_1/memory.stat": "anon 1\ninactive_file 1000",
                "job_1/task_0/memory.max": "max",
                "job_1/task_0/memory.current": 100,
                "job_1/task_0/memory.events": "oom_kill 0",
                "job_1/task_0/cgroup.procs": "7\n8",
            },
        )
        job, started = f"{top}/job_1", 5000 / os.sysconf("SC_CLK_TCK")

        found = node.check(pids=[7, 7]).facts.memory.groups

        assert [
            (f"{job}/task_0", True, None, 100, 0, False, started),
            (job, False, 4096, 2000, 2, False, None),
        ] == list(map(attrs.astuple, found))

    def test_version_1(self, node, groups):
        """
        In a container the mount shows a part of the tree only; where no
        process is killed, all wait.
        """
        top = groups(
            "5:cpu,cpuacct:/x\n4:memory:/docker/abc\nbroken",
            {
                "memory.limit_in_bytes": 9223372036854771712,
                "memory.usage_in_bytes": 500,
                "memory.oom_control": "oom_kill_disable 1\nunder_oom 1\n"
                "oom_kill 3",
            },
            "30 29 0:27 /docker/abc {} rw - cgroup cgroup rw,memory",
        )

        (group,) = node.check(pids=[7, 8]).facts.memory.groups

        expected = (str(top), True, None, 500, 3, True, None)
        assert expected == attrs.astuple(group)
        assert ["host_out_of_memory certain"] == node.found(pids=[7, 8])

    @pytest.mark.parametrize(
        ("cgroup", "files", "expected"),
        [
            (
                "0::/a/b",
                {"a/memory.current": 2, "a/b/memory.current": 1},
                {"a/b": (True, 1), "a": (True, 2)},
            ),
            ("0::/../../elsewhere", {"memory.current": 5}, {".": (True, 5)}),
        ],
        ids=["inner first", "not below"],
    )
    def test_own(self, node, groups, cgroup, files, expected):
        """
        A group that holds a process and is around another is one of its own;
        one that is not found below the mount is taken for the mount itself.
        """
        top = groups(cgroup, files)
        node.write("/proc/8", {"cgroup": "0::/a"})

        found = node.check(pids=[7, 8]).facts.memory.groups

        assert expected == {
            os.path.relpath(x.path, top): (x.is_own, x.used) for x in found
        }

    @pytest.mark.parametrize(
        ("begins", "log_begins", "confidence"),
        [
            (100.0, None, ["likely"]),
            (9000.0, None, ["possible"]),
            (None, None, ["possible"]),
            (199_400.0, 190_000.0, []),
            (199_400.0, 199_990.0, ["possible"]),
            (199_400.0, 5.0, []),
        ],
        ids=[
            *("new container", "old container", "unknown"),
            *("log of the job", "log too short", "log since boot"),
        ],
    )
    def test_kills(self, node, own_group, begins, log_begins, confidence):
        """
        A counter shows kills where the kernel log does not reach back; the
        age of the group is all that shows when.
        """
        own_group(events="oom_kill 2")
        since = None if begins is None else node.booted + begins
        node.records = None
        if log_begins is not None:
            node.records = [f"6,1,{log_begins * 1e6:.0f},-;Linux\n".encode()]

        found = node.check(since=since).findings

        assert confidence == [x.confidence for x in found]
        assert all("killed 2 processes" in x.summary for x in found)

    def test_around(self, node, own_group, tmp_path):
        """
        A group around that of the job counts strangers, unless it is limited.
        """
        own_group(current=1)
        (tmp_path / "cg" / "memory.events").write_text("oom_kill 1\n")
        node.records = None

        without = node.check().findings
        (tmp_path / "cg" / "memory.max").write_text(f"{GIB}\n")
        (found,) = node.check().findings

        assert () == without
        assert "killed a process" in found.summary

    def test_limit(self, node, own_group):
        """
        A job near its limit may be the next to be killed.
        """
        own_group(max=100 * GIB, current=99 * GIB)

        (found,) = node.check().findings

        assert "99.0 GiB of the 100 GiB" in found.summary


class TestMemory:
    def test_read(self, node):
        """
        The kernel counts in KiB.
        """
        text = (
            "MemTotal: 100 kB\nMemAvailable: 40 kB\n"
            "SwapTotal: 10 kB\nSwapFree: 4 kB\nHugePages_Total: 0\nx"
        )
        node.write("/proc", {"meminfo": text})

        memory = node.check().facts.memory

        assert (102_400, 40_960, 10_240, 6144, ()) == attrs.astuple(memory)

    def test_little_known(self, node, tmp_path):
        """
        What an old kernel leaves out is unknown, and memory is named as
        missing if nothing can be read at all.
        """
        node.write("/proc", {"meminfo": "MemTotal: 100 kB"})
        little = node.check()
        (tmp_path / "proc" / "meminfo").unlink()
        nothing = node.check()

        assert () == little.findings
        assert (102_400, *[None] * 3, ()) == attrs.astuple(little.facts.memory)
        assert nothing.facts.memory is None
        assert (
            Missing(what="memory", reason="/proc/meminfo cannot be read"),
        ) == nothing.missing

    def test_hostile(self, node):
        """
        A file system in place of the kernel may hold anything.
        """
        memory = f"MemTotal: ² kB\nMemAvailable: {'9' * 5000} kB\nSwapTotal:\n"
        node.write("/proc", {"meminfo": memory, "loadavg": "x 1 2"})
        stat = "nr_periods 5\nnr_throttled x"
        node.write("/sys/fs/cgroup", {"cpu.stat": stat})
        port = {"state": "4: ACTIVE"}
        node.write("/sys/class/infiniband/mlx5:0/ports/²", port)

        health = node.check()

        facts = health.facts
        assert (None, None) == (facts.memory.total, facts.memory.available)
        assert (None, None) == (facts.pressure.load, facts.pressure.throttled)
        assert ((), ()) == (facts.ib_ports, health.missing)

    @pytest.mark.parametrize(
        ("left", "confidence"),
        [(0.001, ["likely"]), (0.015, ["possible"]), (0.2, [])],
    )
    def test_node(self, left, confidence):
        """
        The less memory is left on the node, the surer the finding.
        """
        total = 100 * GIB
        memory = {"total": total, "available": int(left * total)}

        found = check_node_json({"machine": {"memory": memory}}, host="n1")

        assert confidence == [x.confidence for x in found]
        assert all(x.summary.startswith("n1: only ") for x in found)


class TestDisks:
    def test_read(self, node, tmp_path):
        """
        Folders of the job are asked as well as those of every job.
        """
        node.disks["/c"] = {"free": 7}

        health = node.check(folders=["/c", tmp_path / "no"])

        known = {x.path: attrs.astuple(x) for x in health.facts.disks}
        assert known.keys() > {"/tmp", "/dev/shm"}
        assert ("/c", 1 << 40, 7, 10_000, 9000, False, True, "") == (
            known["/c"][1:]
        )
        assert (
            Missing(
                what="disk",
                reason="No such file or directory",
                source=str(tmp_path / "no"),
            ),
        ) == health.missing

    def test_absent(self, node):
        """
        A place that a container does not have is no news.
        """
        node.disks.clear()

        health = node.check()

        assert ((), ()) == (health.facts.disks, health.missing)

    def test_hangs(self, node):
        """
        A file system that does not answer costs no more than its time.
        """
        never = threading.Event()
        node.disks["/mnt"] = never.wait
        begin = time.monotonic()

        health = node.check(folders=["/mnt"], timeout_s=0.3)
        never.set()

        (found,) = health.findings
        assert time.monotonic() - begin < 20
        assert Cause.IO_WAIT is found.cause
        assert "/mnt does not answer" in found.summary

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"free": 0}, "disk_full certain: is full: 0 B of 1.0 TiB"),
            ({"free_files": 0}, "disk_full certain: no more files"),
            ({"free_files": 9}, "disk_full possible: only 9 more files"),
            ({"free": 100 << 20}, "disk_full possible: nearly full: 100 MiB"),
            ({"is_read_only": True}, "node_misconfigured likely: read-only"),
            (
                {"total": 64 << 20, "free": 64 << 20},
                "node_misconfigured possible: has only 64.0 MiB",
            ),
            ({}, ""),
            ({"total": 0, "free": 0}, ""),
            ({"total": 5 << 30, "free": GIB, "files": 0, "free_files": 0}, ""),
        ],
        ids=[
            *("full", "no files", "few files", "nearly", "read-only", "small"),
            *("usual", "none", "counts no files"),
        ],
    )
    def test_judge(self, node, change, expected):
        """
        What hinders a job is a finding; file systems without a size, or that
        count no files, are fine.
        """
        node.disks["/dev/shm"] = change

        findings = node.check().findings

        cause, _, says = expected.partition(": ")
        assert cause == " ".join(
            f"{x.cause.value} {x.confidence}" for x in findings
        )
        assert all(says in x.summary for x in findings)

    def test_small(self, node):
        """
        A small file system is fine where no memory is shared by it.
        """
        node.disks["/c"] = {"total": 1 << 20, "free": 1 << 19}

        assert [] == node.found(folders=["/c"])


def some(avg10, kind="some"):
    """
    A line of the kernel about the time that is lost by waiting.
    """
    return f"{kind} avg10={avg10:.2f} avg60=1.00 avg300=0.10 total=1"


class TestPressure:
    @pytest.fixture
    def eight_cpus(self, node, monkeypatch):
        """
        A node with eight processors.
        """
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        return node

    def test_read(self, node):
        """
        Shares of lost time, and how often a container was held, are read.
        """
        node.write(
            "/proc/pressure",
            {
                "io": f"{some(12.5)}\n{some(10, 'full')}",
                "memory": some(1),
                "cpu": "nonsense",
            },
        )
        node.write("/proc", {"loadavg": "3.50 2.0 1.0 1/2 3"})
        stat = "usage_usec 5\nnr_periods 10\nnr_throttled 4"
        node.write("/sys/fs/cgroup", {"cpu.stat": stat})

        pressure = node.check().facts.pressure

        shares, cpus = (None, 1.0, None, 12.5, 10.0), os.cpu_count()
        assert (*shares, 3.5, cpus, 0.4, False) == attrs.astuple(pressure)

    @pytest.mark.parametrize(
        ("pressure", "load", "lost", "found"),
        [
            ({"memory": some(30, "full")}, 1, 0, "host_out_of_memory likely"),
            ({"memory": some(50)}, 1, 0, "host_out_of_memory likely"),
            ({"io": some(80, "full")}, 1, 0, "io_wait possible"),
            ({"cpu": some(90)}, 99, 0, "node_misconfigured possible"),
            ({}, 1, 5, "node_misconfigured possible"),
            ({"cpu": some(70), "io": some(40, "full")}, 9, 1, None),
        ],
        ids=["memory full", "memory some", "io", "cpu", "throttled", "busy"],
    )
    def test_judge(self, eight_cpus, pressure, load, lost, found):
        """
        Waiting for too long is a finding; a node at work is busy.
        """
        node = eight_cpus
        node.write("/proc/pressure", pressure)
        node.write("/proc", {"loadavg": f"{load}.00 2.0 1.0 1/2 3"})
        stat = f"nr_periods 10\nnr_throttled {lost}"
        node.write("/sys/fs/cgroup", {"cpu.stat": stat})

        assert ([found] if found else []) == node.found()

    @pytest.mark.parametrize(
        ("periods", "lost", "found"),
        [
            (20, 14, ["likely: 90 % of the periods just now"]),
            (20, 5, []),
            (10, 5, ["possible: 50 % of the periods since it started"]),
        ],
        ids=["now", "not any more", "idle"],
    )
    def test_throttled(self, node, monkeypatch, periods, lost, found):
        """
        What a container may use is judged by the last moment, and by the time
        since its start only if nothing ran in that moment.
        """

        def write(periods, lost):
            stat = f"nr_periods {periods}\nnr_throttled {lost}"
            node.write("/sys/fs/cgroup", {"cpu.stat": stat})

        write(10, 5)
        monkeypatch.setattr(time, "sleep", lambda _: write(periods, lost))

        health = node.check()

        assert found == [
            f"{x.confidence}: {x.summary.partition('time in ')[2]}"
            for x in health.findings
        ]


class TestBlocked:
    @pytest.fixture(autouse=True)
    def between(self, monkeypatch):
        """
        What happens between two looks, instead of waiting.
        """
        actions = []
        monkeypatch.setattr(
            time, "sleep", lambda seconds: [action() for action in actions]
        )
        return actions

    def stuck(self, node, pid, where="", state="D"):
        """
        Add a process in a state.
        """
        folder = node.add_process(pid)
        stat = folder / "task" / str(pid) / "stat"
        stat.write_text(stat.read_text().replace(") S", f") {state}"))
        stat.with_name("wchan").write_text(f"{where or 0}")
        return stat

    def test_read(self, node, between):
        """
        Only what stays in state D counts, and no thread of the kernel.
        """
        self.stuck(node, 7, "nfs_wait\0")
        self.stuck(node, 8, state="S")
        kernel = self.stuck(node, 9).parents[2] / "status"
        kernel.write_text(kernel.read_text().replace("VmSize:\t10 kB\n", ""))
        stat = self.stuck(node, 10)
        text = stat.read_text().replace(") D", ") R")
        between.append(lambda: stat.write_text(text))

        found = node.check().facts.blocked

        assert [(7, "python", "nfs_wait")] == [*map(attrs.astuple, found)]

    def test_threads(self, node):
        """
        Of the job, all threads are looked at.
        """
        folder = node.proc.add(7, "python", threads=["loader"])
        task = folder / "task" / "8" / "stat"
        task.write_text(task.read_text().replace(") S", ") D"))
        status = folder / "status"
        status.write_text(f"{status.read_text()}VmSize:\t10 kB\n")

        (found,) = node.check(pids=[7, 99]).facts.blocked

        assert (7, "") == (found.pid, found.where)

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
    def test_judge(self, node, where, cause, says):
        """
        The place where processes wait shows what they wait for.
        """
        for pid in (7, 8):
            self.stuck(node, pid, where)

        (ours,) = node.check(ranks={7: 3}).findings

        assert [f"{cause} likely 3"] == node.found(ranks={7: 3})
        assert [f"{cause} possible"] == node.found()
        assert says in ours.summary
        assert "8" not in ours.summary.partition(": ")[2]


def limits(files="1024", locked="65536"):
    """
    A file of the kernel with the limits of a process.
    """
    return (
        "Limit                     Soft Limit           Hard Limit  Units\n"
        f"Max open files            {files:20} 4096        files\n"
        f"Max locked memory         {locked:20} 65536       bytes\n"
        "Max processes             unlimited            unlimited   processes\n"
    )


class TestLimits:
    def add(self, node, pid, *, open_files=0, **known):
        """
        Add a process with limits.
        """
        folder = node.add_process(pid, limits=limits(**known))
        for number in range(open_files):
            (folder / "fd" / str(number)).write_text("")
        return folder

    def test_read(self, node):
        """
        Limits, rights, and what is used are read.
        """
        self.add(node, 7, open_files=3)
        other = self.add(node, 8, files="unlimited") / "status"
        other.write_text(f"{other.read_text()}CapEff:\t0000000000004000\n")

        found = node.check(pids=[7, 8, 9]).facts.limits

        assert (
            (7, 1024, 3, 65_536, False),
            (8, None, None, 65_536, True),
        ) == tuple(map(attrs.astuple, found))

    def test_files(self, node):
        """
        A process near its limit of files is a finding.
        """
        self.add(node, 7, files="100", open_files=97)
        self.add(node, 8, files="100", open_files=10)

        (found,) = node.check(pids=[7, 8], ranks={7: 3}).findings

        assert (Cause.NODE_MISCONFIGURED, (3,)) == (found.cause, found.ranks)
        assert "97 of 100 files" in found.summary
        assert "process 8" not in found.summary

    def test_locked(self, node):
        """
        Adapters for RDMA need locked memory, unless a right gives it.
        """
        self.add(node, 7)
        able = self.add(node, 8) / "status"
        able.write_text(f"{able.read_text()}CapEff:\t0000000000004000\n")
        self.add(node, 9, locked="unlimited")

        without = node.check(pids=[7, 8, 9]).findings
        node.write(
            "/sys/class/infiniband/mlx5_0/ports/1", {"state": "4: ACTIVE"}
        )
        (found,) = node.check(pids=[7, 8, 9]).findings

        assert () == without
        assert "64.0 KiB" in found.summary
        assert "(process 7)" in found.summary
