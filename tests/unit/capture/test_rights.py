"""
What is in the way of looking into processes, and how that is reported
beforehand.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from types import SimpleNamespace

import psutil
import pytest

from distdebug.capture import Check, capture_process, check_capture
from distdebug.processes import read_state


pytestmark = pytest.mark.process


STATUS = "/proc/self/status"


@pytest.fixture
def check(kernel, tools):
    """
    Gives the result of one check.
    """
    return lambda name: {c.name: c for c in check_capture()}[name]


def asking(tools, question, answer):
    """
    Let a program of Python that asks something end in this way.
    """
    (tools.folder / "python").unlink()
    real = os.path.realpath("/proc/self/exe")
    tools.write(
        "python",
        f'case "$*" in *"{question}"*) {answer};; esac\nexec {real} "$@"',
    )


class TestCheckCapture:
    def test_all(self):
        """
        Everything is reported once, in little time, and no process is left.
        """
        before = psutil.Process().children()
        begin = time.monotonic()

        checks = check_capture()

        names = [check.name for check in checks]
        assert len(set(names)) == len(names)
        assert {"Python stacks", "attaching", "py-spy", "Yama"} <= set(names)
        assert all(check.detail for check in checks)
        assert all(c.remedy for c in checks if c.ok is False)
        assert time.monotonic() - begin < 10
        assert before == psutil.Process().children()

    def test_not_linux(self, monkeypatch):
        """
        Elsewhere nothing of this works.
        """
        monkeypatch.setattr(sys, "platform", "darwin")

        (check,) = check_capture()

        assert check.ok is False

    def test_late(self, kernel, tools, tmp_path, monkeypatch):
        """
        A check that does not end is not waited for.
        """
        # No user can set how long that is.
        rights = "distdebug.capture.capture_checks"
        monkeypatch.setattr(f"{rights}._TIMEOUT_S", 0.5)
        kernel.hang(tmp_path / "pipe")
        kernel.link("/proc/sys/kernel/core_pattern", tmp_path / "pipe")

        *_, last = check_capture()

        assert ("checks", False) == (last.name, last.ok)


class TestChecks:
    @pytest.mark.parametrize(
        ("mask", "uid", "ok"),
        [("80000", 0, True), ("0", 1000, None), ("0", 0, False)],
    )
    def test_capability(self, check, kernel, mask, uid, ok):
        """
        Without the capability, only processes of this user can be seen; and
        those of root have rights that root itself then lacks.
        """
        kernel.run_as(uid)
        kernel.answers[STATUS] = f"CapEff:\t{mask}\n"

        found = check("CAP_SYS_PTRACE")

        assert ok is found.ok
        assert ok or "--cap-add SYS_PTRACE" in found.remedy

    @pytest.mark.parametrize(
        ("scope", "mask", "ok"),
        [
            (0, "0", True),
            ("?", "?", True),
            (1, "80000", True),
            (1, "0", False),
            (3, "80000", False),
        ],
    )
    def test_yama(self, check, kernel, scope, mask, ok):
        """
        Yama is in the way of processes that have no right of their own.
        """
        kernel.answers |= {
            STATUS: f"CapEff:\t{mask}\n",
            "/proc/sys/kernel/yama/ptrace_scope": f"{scope}\n",
        }

        found = check("Yama")

        assert (ok, not ok) == (found.ok, "ptrace_scope" in found.remedy)

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ("exit 101", "refuses ptrace"),  # EPERM
            ("kill -31 $$", "refuses ptrace"),
            ("exit 103", "sudo does not"),  # ESRCH: it was asked
            ("exit 1", "sudo does not"),
        ],
    )
    def test_seccomp(self, check, kernel, tools, answer, expected):
        """
        Only a filter that refuses ptrace is in the way; a call that can only
        fail in one way shows whether it does.
        """
        asking(tools, "ptrace(17", answer)
        kernel.answers[STATUS] = "Seccomp:\t2\nNoNewPrivs:\t1\n"

        found = check("seccomp")

        assert ("refuses" not in expected) == found.ok
        assert expected in found.detail

    def test_no_seccomp(self, check, kernel, tools):
        """
        Where there is no filter, nothing is tried.
        """
        asking(tools, "ptrace(17", "exit 101")
        kernel.answers[STATUS] = "Seccomp:\t0\n"

        assert "no filter" == check("seccomp").detail

    @pytest.mark.parametrize(
        ("link", "ourselves", "detail"),
        [
            ("pid:[4026531836]", None, "of the node"),
            ("pid:[7]", None, "of a container"),
            ("pid:[7]", "1", "another one"),
        ],
    )
    def test_namespace(self, check, kernel, link, ourselves, detail):
        """
        In a container only its own processes can be seen.
        """
        kernel.link("/proc/self/ns/pid", link)
        if ourselves:
            kernel.link("/proc/self", ourselves)

        found = check("PID namespace")

        assert (ourselves is None) == found.ok
        assert detail in found.detail

    @pytest.mark.parametrize(("uid", "ok"), [(7, None), (0, True)])
    def test_hidepid(self, check, kernel, uid, ok):
        """
        Processes of others may be hidden from users other than root.
        """
        mounts = "proc /proc proc rw,hidepid=invisible 0 0\n"
        kernel.answers["/proc/self/mounts"] = mounts
        kernel.run_as(uid)

        assert ok is check("/proc").ok

    @pytest.mark.parametrize(
        ("memory", "free"), [(8 << 20, 1 << 40), (8, 1 << 40), (8 << 20, 9)]
    )
    def test_space(self, check, kernel, monkeypatch, memory, free):
        """
        Tools need some space and memory.
        """
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        kernel.answers["/proc/meminfo"] = f"MemAvailable:    {memory} kB\n"

        is_enough = memory > 8 and free > 9
        assert (is_enough or None) is check("space").ok

    def test_no_temporary_folder(self, check, monkeypatch):
        """
        Where no temporary folder can be used, that is reported with a remedy.
        """

        def fail():
            msg = "No usable temporary directory found"
            raise FileNotFoundError(2, msg)

        monkeypatch.setattr(tempfile, "gettempdir", fail)

        found = check("space")

        assert found.ok is False
        assert "No usable temporary directory" in found.detail
        assert "TMPDIR" in found.remedy


@pytest.mark.parametrize(
    "case",
    [
        ("|/lib/collect %P\n", 0, (True, "go to /lib/collect", "")),
        ("core\n", 5, (True, "are written to 'core'", "")),
        ("core\n", 0, (None, "are off: a crash", "ulimit -c unlimited, b")),
    ],
)
def test_core_dumps(kernel, tools, monkeypatch, case):
    """
    Where core dumps go is reported; without them a crash leaves less, but that
    is up to the user.
    """
    pattern, limit, (ok, detail, remedy) = case
    kernel.answers["/proc/sys/kernel/core_pattern"] = pattern
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    (found,) = [c for c in check_capture() if c.name == "core dumps"]

    assert ok is found.ok
    assert found.detail.startswith(detail)
    assert found.remedy.startswith(remedy)


class TestVersions:
    def test_version(self, check, tools):
        """
        The version is reported; that the unwinder of some is broken is known.
        """
        tools.say("gdb", "GNU gdb (Debian 13.1-3) 13.1")
        tools.say("cuda-gdb", "NVIDIA (R) CUDA Debugger\n11.8 release")

        assert Check("gdb", ok=True, detail="13.1") == check("gdb")
        assert check("cuda-gdb").ok
        assert "unwinder is broken" in check("cuda-gdb").detail

    @pytest.mark.parametrize(
        "code", ["#!/bin/sh\necho 1.2; exit 1", "#!/bin/sh\necho ?", "#!/none"]
    )
    def test_broken(self, check, tools, code):
        """
        A tool that does not start is reported.
        """
        tools.write("py-spy", "").write_text(f"{code}\n")

        found = check("py-spy")

        assert (False, "reinstall py-spy") == (found.ok, found.remedy)

    def test_missing(self, check):
        """
        Only py-spy is needed; what the others are for is reported.
        """
        needed, other = check("py-spy"), check("cuda-gdb")

        assert (False, "pip install py-spy") == (needed.ok, needed.remedy)
        assert other.ok is None
        assert "kernels on GPUs" in other.detail
        assert "py-spy is not there" in check("Python stacks").detail


CHECK = """
import sys; sys.executable = sys.argv[1]
from distdebug.capture import check_capture; check_capture()
"""


class TestTrial:
    def test_cannot_start(self, check, kernel, monkeypatch):
        """
        Where no process can be started, that is reported, and nothing is said
        against the filter.
        """
        monkeypatch.setattr(sys, "executable", "/none")
        kernel.answers[STATUS] = "Seccomp:\t2\n"

        assert check("trial").ok is False
        assert check("seccomp").ok

    @pytest.mark.parametrize(
        ("answer", "detail"),
        [
            ("exit 101", "Operation not permitted: no native stacks"),
            # A filter may kill whatever tries.
            ("kill -31 $$", "it was killed: no native stacks"),
        ],
    )
    def test_refused(self, check, kernel, tools, answer, detail):
        """
        What refuses us is reported, with the remedy.
        """
        tools.complain("py-spy", "Error: what?")
        asking(tools, "0x4206", answer)
        kernel.answers |= {
            STATUS: "CapEff:\t0\nSeccomp:\t0\n",
            "/proc/sys/kernel/yama/ptrace_scope": "1\n",
        }

        reading, attaching = check("Python stacks"), check("attaching")

        assert (False, "Error: what?") == (reading.ok, reading.detail)
        assert (False, detail) == (attaching.ok, attaching.detail)
        assert "ptrace_scope is 1" in attaching.remedy

    def test_ends_with_us(self, tools):
        """
        The process that is tried on ends when we are gone.
        """
        path = tools.folder / "pid"
        tools.write(
            "py-spy",
            f"for pid; do :; done\ntest $1 = dump || exit 0\necho $pid >{path}"
            "\nwhile kill -0 $pid; do sleep 0.05; done",
        )
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                CHECK,
                str(tools.folder / "python"),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process:
            while not (path.exists() and path.read_text().strip()):
                time.sleep(0.01)
            pid = int(path.read_text())
            state = read_state(pid)
            process.kill()

        assert state is not None
        while (state := read_state(pid)) and not state.has_ended:
            time.sleep(0.01)


class TestHindrance:
    """
    What keeps tools from being attached, which is found out beforehand.
    """

    @pytest.fixture
    def tried(self, kernel, tools):
        """
        How it went with the first tool; where nothing is in the way, there is
        none.
        """

        def give(pid):
            attempts = capture_process(pid, native=True).attempts
            return next(a for a in attempts if a.tool == "pystack")

        return give

    def test_nothing(self, kernel, tried):
        """
        Nothing is in the way of an ordinary process.
        """
        pid = kernel.rank(0)
        kernel.path(pid, "mem").touch()

        assert "tool_missing" == tried(pid).status

    @pytest.mark.parametrize("is_parent", [False, True])
    def test_never(self, tried, is_parent):
        """
        Nothing is attached to ourselves, or to what waits for us.
        """
        found = tried(os.getppid() if is_parent else os.getpid())

        assert "skipped" == found.status
        assert "name a process of the job" in found.remedy

    @pytest.mark.parametrize("letter", ["T", "Z"])
    def test_state(self, kernel, tried, letter):
        """
        The state comes first.
        """
        expected = {"T": "stopped", "Z": "zombie"}[letter]

        assert expected == tried(kernel.rank(0, state=letter)).status

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            (["1 2", "2"], "uninterruptible"),
            (["1 2", "2", ""], "tool_missing"),
            (["1", "2"], "tool_missing"),
            (["1", "Z"], "zombie"),
        ],
        ids=["stays", "reads a disk", "in turn", "ends"],
    )
    def test_uninterruptible(
        self, kernel, tried, monkeypatch, steps, expected
    ):
        """
        What waits inside the kernel for a moment only is not kept from being
        looked into; what stays there is, and it may end at once.
        """
        pid = kernel.rank(0, threads=["a", "b"])
        kernel.path(pid, "mem").touch()
        left, sleep = list(steps), time.sleep

        def step():
            now = left.pop(0) if len(left) > 1 else left[0]
            for path, is_it in (
                ("stat", "Z" in now),
                (f"task/{pid + 1}/stat", "1" in now),
                (f"task/{pid + 2}/stat", "2" in now),
            ):
                file = kernel.path(pid, path)
                letter = ("Z" if path == "stat" else "D") if is_it else "S"
                fields = file.read_text().rsplit(") ", 1)
                new = file.with_name("new")
                new.write_text(f"{fields[0]}) {letter}{fields[1][1:]}")
                new.replace(file)  # it may be read at this moment

        def pause(seconds):
            if seconds == 0.05:
                step()
            else:
                sleep(seconds)

        step()
        monkeypatch.setattr(time, "sleep", pause)

        assert expected == tried(pid).status

    def test_container(self, kernel, tried):
        """
        A missing right comes before another namespace; of a process in a
        container it is said how one comes in there.
        """
        pid = kernel.rank(0)
        kernel.path(pid, "mem").touch()
        kernel.change(
            f"/proc/{pid}/status", f"NSpid:\t{pid}", f"NSpid:\t{pid}\t3"
        )

        inside = tried(pid)
        kernel.answers |= {
            f"/proc/{pid}/mem": PermissionError(13, "no"),
            "/proc/sys/kernel/yama/ptrace_scope": "3\n",
        }
        denied = tried(pid)
        kernel.link("/proc/self", "1")

        assert "other_namespace" == inside.status
        assert f"nsenter -t {pid} -p -m" in inside.remedy
        assert "yama" == denied.status
        assert "other_namespace" == tried(pid).status

    @pytest.mark.parametrize("uid", [0, 7])
    def test_enter(self, kernel, tools, sleeper, uid):
        """
        A process of a container is looked into from there, by root; threads
        keep the numbers that they have here.
        """
        pid, log = sleeper.pid, tools.folder / "log"
        kernel.run_as(uid)
        for path in (f"/proc/{pid}/status", f"/proc/{pid}/task/{pid}/status"):
            kernel.change(path, f"NSpid:\t{pid}", f"NSpid:\t{pid}\t3")
        gdb = tools.write("elsewhere", "")
        kernel.link(f"/proc/{pid}/root/usr/bin/gdb", gdb)
        tools.say(
            "nsenter",
            "Thread 1 (LWP 3):\n#0  0x01 in poll () from /lib/libc.so.6\n\n"
            "Thread 2 (LWP 4):\n#0  0x01 in poll () from /lib/libc.so.6",
            f'echo "$@" >{log}',
        )

        got = capture_process(pid, native=True)

        native = [t.thread_id for t in got.stacks.threads if t.native]
        if uid:
            assert "tool_missing" in {a.status for a in got.attempts}
            assert [] == native
            assert not log.exists()
        else:
            assert [pid, 4] == native
            enter = f"-t {pid} -p -m -- /usr/bin/gdb "
            assert log.read_text().startswith(enter)
            assert log.read_text().endswith("-p 3\n")
