"""
What is in the way of looking into processes, and how that is told beforehand.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

from types import SimpleNamespace
from unittest.mock import Mock

import attrs
import pytest

from distdebug.capture import Check, check_capture
from distdebug.capture.model import CaptureStatus
from distdebug.capture.permission import (
    hindrance,
    namespace,
    rights,
    trial,
    versions,
)
from distdebug.capture.permission.hindrance import attach_hindrance
from distdebug.capture.tool import ToolOutput
from distdebug.processes import ProcessState, read_state
from distdebug.stacks import ThreadStack


PARENT = os.getppid()
GONE = FileNotFoundError(2, "No usable temporary directory found")
FINE = ProcessState(letter="S", start_ticks=1, pid_inside=PARENT)


@pytest.fixture
def looks(monkeypatch):
    """
    Says how the process looks, each time it is looked at.
    """

    def tell(*states):
        left = list(states)

        def look(_):
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(hindrance, "read_state", look)

    monkeypatch.setattr(hindrance, "why_never", lambda _: "")
    monkeypatch.setattr(hindrance, "why_denied", lambda _: None)
    monkeypatch.setattr(hindrance, "_BETWEEN_S", 0)
    return tell


def state(**changes):
    """
    The state of a process that sleeps, but for the changes.
    """
    return attrs.evolve(FINE, **changes)


class TestAttachHindrance:
    def test_nothing(self, looks):
        """
        Nothing is in the way of an ordinary process.
        """
        looks(FINE)

        assert attach_hindrance(PARENT) is None

    def test_ourselves(self):
        """
        Nothing is attached to ourselves.
        """
        found, advice = attach_hindrance(os.getpid())

        assert "skipped" == found
        assert "name a process of the job" in advice

    def test_gone(self):
        """
        Nothing can be attached to a process that is not there.
        """
        assert "exited" == attach_hindrance(999999999)[0]

    def test_stopped(self, looks):
        """
        The state comes first.
        """
        looks(state(letter="T"))

        assert "stopped" == attach_hindrance(PARENT)[0]

    def test_reads_a_disk(self, looks):
        """
        Who waits inside the kernel for a moment only is not kept from being
        looked into.
        """
        busy = state(uninterruptible=(5,))

        looks(busy, busy, busy, FINE)

        assert attach_hindrance(PARENT) is None

        looks(busy, busy, state(uninterruptible=(6,)), busy)

        assert attach_hindrance(PARENT) is None

    def test_waits_on(self, looks):
        """
        Who stays inside the kernel cannot be attached to.
        """
        looks(state(uninterruptible=(5, 6)), state(uninterruptible=(5,)))

        assert "uninterruptible" == attach_hindrance(PARENT)[0]

    def test_ends_meanwhile(self, looks):
        """
        Who leaves the kernel may end at once.
        """
        looks(state(letter="D", uninterruptible=(5,)), state(letter="Z"))

        assert "zombie" == attach_hindrance(PARENT)[0]

    def test_denied(self, looks, monkeypatch):
        """
        A missing right comes before another namespace.
        """
        denied = CaptureStatus.YAMA, "lower it"
        looks(state(pid_inside=PARENT + 1))
        monkeypatch.setattr(hindrance, "why_denied", lambda _: denied)

        assert denied == attach_hindrance(PARENT)

    def test_other_namespace(self, looks, monkeypatch):
        """
        A process of a container is told, and how one comes in there.
        """
        looks(state(pid_inside=PARENT + 1))

        found, advice = attach_hindrance(PARENT)

        assert "other_namespace" == found
        assert f"nsenter -t {PARENT} -p -m" in advice

        monkeypatch.setattr(hindrance, "proc_is_foreign", lambda: True)
        looks(FINE)

        assert "other_namespace" == attach_hindrance(PARENT)[0]


class TestNamespace:
    def test_here(self):
        """
        A process of our own namespace is looked into from here.
        """
        found = namespace.argv_inside("sh", PARENT, FINE)

        assert ([shutil.which("sh")], PARENT) == found
        assert namespace.argv_inside("nonsense", PARENT, FINE) is None
        assert not namespace.proc_is_foreign()

    def test_there(self, monkeypatch):
        """
        A process of a container is looked into from there, by root.
        """
        inside = state(pid_inside=3)
        monkeypatch.setattr(namespace, "find_tool", lambda name: f"/x/{name}")
        monkeypatch.setattr(namespace, "_PLACES", ("none", "bin"))
        monkeypatch.setattr(namespace.os, "geteuid", lambda: 0)
        monkeypatch.setattr(
            namespace.os,
            "access",
            lambda path, _: path == f"/proc/{PARENT}/root/bin/gdb",
        )

        found = namespace.argv_inside("gdb", PARENT, inside)

        enter = ["/x/nsenter", "-t", str(PARENT), "-p", "-m", "--"]
        assert ([*enter, "/bin/gdb"], 3) == found
        assert namespace.argv_inside("py-spy", PARENT, inside) is None

        monkeypatch.setattr(namespace.os, "geteuid", lambda: 7)

        assert namespace.argv_inside("gdb", PARENT, inside) is None

    def test_numbers(self):
        """
        Threads keep the numbers that they have here.
        """
        threads = (
            ThreadStack(name="a", frames=(), thread_id=os.getpid()),
            ThreadStack(name="b", frames=(), thread_id=None),
        )

        same = namespace.outer_numbers(threads, os.getpid(), os.getpid())
        found = namespace.outer_numbers(threads, os.getpid(), 3)

        assert threads == same == found

    def test_numbers_inside(self, monkeypatch):
        """
        The numbers of a container are translated, as far as they are known.
        """
        statuses = {71: b"NSpid:\t71\t1\n", 72: None}
        monkeypatch.setattr(namespace, "list_numbers", lambda _: [71, 72])
        monkeypatch.setattr(
            namespace,
            "read_proc",
            lambda path: statuses[int(path.split("/")[4])],
        )
        threads = (
            ThreadStack(name="a", frames=(), thread_id=1),
            ThreadStack(name="b", frames=(), thread_id=2),
        )

        found = namespace.outer_numbers(threads, 71, 1)

        assert [71, 2] == [t.thread_id for t in found]


class TestCheckCapture:
    def test_all(self):
        """
        Everything is told once, in little time.
        """
        begin = time.monotonic()

        checks = check_capture()

        names = [check.name for check in checks]
        assert len(set(names)) == len(names)
        assert {"Python stacks", "attaching", "py-spy", "Yama"} <= set(names)
        assert all(check.detail for check in checks)
        assert all(c.remedy for c in checks if c.ok is False)
        assert time.monotonic() - begin < 10

    def test_not_linux(self, monkeypatch):
        """
        Elsewhere nothing of this works.
        """
        monkeypatch.setattr(sys, "platform", "darwin")

        (check,) = check_capture()

        assert check.ok is False

    def test_late(self, monkeypatch):
        """
        A check that does not end is not waited for.
        """
        monkeypatch.setattr(
            rights, "each", lambda _, todo, **__: [None for _ in todo]
        )

        assert {"checks"} == {check.name for check in check_capture()}


class TestChecks:
    @pytest.fixture
    def proc(self, monkeypatch):
        """
        Says what the kernel tells.
        """
        files = {}
        monkeypatch.setattr(
            rights, "read_proc", lambda path: files.get(path.split("/")[-1])
        )
        return files

    @pytest.mark.parametrize(("uid", "ok"), [(1000, None), (0, False)])
    def test_capability(self, proc, monkeypatch, uid, ok):
        """
        Without the capability, only processes of this user can be seen; and
        those of root have rights that root itself then lacks.
        """
        monkeypatch.setattr(rights.os, "geteuid", lambda: uid)
        proc["status"] = b"CapEff:\t0000000000080000\n"

        assert rights._check_capability().ok

        proc["status"] = b"CapEff:\t0\n"
        check = rights._check_capability()

        assert ok is check.ok
        assert "--cap-add SYS_PTRACE" in check.remedy

    @pytest.mark.parametrize(
        ("scope", "mask", "ok"),
        [
            (0, b"0", True),
            (1, b"80000", True),
            (1, b"0", False),
            (3, b"80000", False),
        ],
    )
    def test_yama(self, proc, monkeypatch, scope, mask, ok):
        """
        Yama is in the way of those who have no right of their own.
        """
        proc["status"] = b"CapEff:\t" + mask + b"\n"
        monkeypatch.setattr(rights, "yama_scope", lambda: scope)

        check = rights._check_yama()

        assert (ok, not ok) == (check.ok, "ptrace_scope" in check.remedy)

    @pytest.mark.parametrize(
        ("text", "filtered", "expected"),
        [
            (b"Seccomp:\t0\n", False, "no filter"),
            (b"Seccomp:\t2\nNoNewPrivs:\t1\n", False, "sudo does not"),
            (b"Seccomp:\t2\n", True, "refuses ptrace"),
        ],
    )
    def test_seccomp(self, proc, monkeypatch, text, filtered, expected):
        """
        Only a filter that refuses ptrace is in the way.
        """
        proc["status"] = text
        monkeypatch.setattr(rights, "ptrace_is_filtered", lambda: filtered)

        check = rights._check_seccomp()

        assert filtered != check.ok
        assert expected in check.detail

    @pytest.mark.parametrize(
        ("link", "foreign", "ok", "detail"),
        [
            ("pid:[4026531836]", False, True, "of the node"),
            ("pid:[7]", False, True, "of a container"),
            ("pid:[7]", True, False, "another one"),
        ],
    )
    def test_namespace(self, monkeypatch, link, foreign, ok, detail):
        """
        In a container only its own processes can be seen.
        """
        monkeypatch.setattr(rights, "read_link", lambda _: link)
        monkeypatch.setattr(rights, "proc_is_foreign", lambda: foreign)

        check = rights._check_namespace()

        assert ok == check.ok
        assert detail in check.detail

    def test_hidepid(self, proc, monkeypatch):
        """
        Processes of others may be hidden from those who are not root.
        """
        proc["mounts"] = b"proc /proc proc rw,hidepid=invisible 0 0\n"
        monkeypatch.setattr(rights.os, "geteuid", lambda: 7)

        assert rights._check_proc().ok is None

        monkeypatch.setattr(rights.os, "geteuid", lambda: 0)

        assert rights._check_proc().ok

    def test_space(self, proc, monkeypatch):
        """
        Tools need some space and memory.
        """
        monkeypatch.setattr(
            rights.shutil,
            "disk_usage",
            lambda _: SimpleNamespace(free=1 << 40),
        )
        proc["meminfo"] = b"MemAvailable:    8388608 kB\n"

        assert rights._check_space().ok

        proc["meminfo"] = b""

        assert rights._check_space().ok is None

    @pytest.mark.parametrize(
        ("pattern", "limit", "expected"),
        [
            (b"|/lib/collect %P\n", 0, (True, "go to /lib/collect")),
            (b"core\n", 5, (True, "are written to 'core'")),
        ],
    )
    def test_core_dumps(self, proc, monkeypatch, pattern, limit, expected):
        """
        Where core dumps go is told.
        """
        proc["core_pattern"] = pattern
        monkeypatch.setattr(
            rights.resource, "getrlimit", lambda _: (limit, limit)
        )

        check = rights._check_core_dumps()

        assert expected == (check.ok, check.detail)

    def test_no_core_dumps(self, proc, monkeypatch):
        """
        Without core dumps a crash leaves less, but that is up to the user.
        """
        proc["core_pattern"] = b"core\n"
        monkeypatch.setattr(rights.resource, "getrlimit", lambda _: (0, 0))

        check = rights._check_core_dumps()

        assert check.ok is None
        assert "ulimit -c unlimited" in check.remedy


class TestVersions:
    @pytest.fixture
    def says(self, monkeypatch):
        """
        Says what the tool answers.
        """

        def tell(answer):
            def run(*_, **__):
                if isinstance(answer, Exception):
                    raise answer
                return answer

            monkeypatch.setattr(versions, "find_tool", lambda _: "/bin/tool")
            monkeypatch.setattr(versions, "run_tool", run)

        return tell

    def test_version(self, says):
        """
        The version is told.
        """
        says(ToolOutput(0, "GNU gdb (Debian 13.1-3) 13.1\n", ""))

        assert Check("gdb", ok=True, detail="13.1") == versions.tool_check(
            "gdb"
        )

    def test_broken_unwinder(self, says):
        """
        That the unwinder of some versions is broken is known.
        """
        text = "NVIDIA (R) CUDA Debugger\n11.8 release\n"
        says(ToolOutput(0, text, ""))

        check = versions.tool_check("cuda-gdb")

        assert check.ok
        assert "unwinder is broken" in check.detail

    @pytest.mark.parametrize(
        "answer",
        [ToolOutput(1, "1.2", ""), ToolOutput(0, "?", ""), OSError("no")],
    )
    def test_broken(self, says, answer):
        """
        A tool that does not start is told.
        """
        says(answer)

        check = versions.tool_check("py-spy")

        assert (False, "reinstall py-spy") == (check.ok, check.remedy)

    def test_missing(self, monkeypatch):
        """
        Only py-spy is needed; what the others are for is told.
        """
        monkeypatch.setattr(versions, "find_tool", lambda _: None)

        needed = versions.tool_check("py-spy")
        other = versions.tool_check("cuda-gdb")

        assert (False, "pip install py-spy") == (needed.ok, needed.remedy)
        assert other.ok is None
        assert "kernels on GPUs" in other.detail


class TestTrial:
    def test_cannot_start(self, monkeypatch):
        """
        Where no process can be started, that is told.
        """
        monkeypatch.setattr(sys, "executable", "/none")

        (check,) = trial.trial_checks()

        assert check.ok is False

    def test_no_tool(self, monkeypatch):
        """
        Without py-spy there is nothing to try it with.
        """
        monkeypatch.setattr(trial, "find_tool", lambda _: None)

        reading, _ = trial.trial_checks()

        assert reading.ok is False
        assert "py-spy is not there" in reading.detail

    def test_refused(self, monkeypatch):
        """
        What refuses us is told, with the remedy.
        """
        refused = CaptureStatus.YAMA, "lower it"
        answers = {
            "dump": ToolOutput(1, "", "Error: what?"),
            "-I": ToolOutput(101, "", ""),
        }
        monkeypatch.setattr(
            trial, "run_tool", lambda argv, **_: answers[argv[1]]
        )
        monkeypatch.setattr(trial, "find_tool", lambda name: name)
        monkeypatch.setattr(trial, "why_denied", lambda _: refused)

        reading, attaching = trial.trial_checks()

        assert (False, "Error: what?") == (reading.ok, reading.detail)
        assert (False, "lower it") == (attaching.ok, attaching.remedy)
        assert "Operation not permitted" in attaching.detail

    def test_killed(self, monkeypatch):
        """
        A filter may kill whoever tries.
        """
        killed = ToolOutput(-signal.SIGSYS, "", "")
        monkeypatch.setattr(trial, "run_tool", lambda *_, **__: killed)

        check = trial._try_attaching(PARENT)

        assert "it was killed: no native stacks" == check.detail

    def test_nobody_is_left(self):
        """
        The process that is tried on is gone afterwards.
        """
        with trial._child() as pid:
            assert read_state(pid) is not None

        assert read_state(pid) is None

    def test_ends_with_us(self):
        """
        The process that is tried on ends when nobody needs it.
        """
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", trial._CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            process.stdout.readline()
            process.stdin.close()

            assert 0 == process.wait(60)


def test_no_temporary_folder(monkeypatch):
    """
    Where no temporary folder can be used, that is told with a remedy.
    """
    monkeypatch.setattr(rights.tempfile, "gettempdir", Mock(side_effect=GONE))

    found = rights._check_space()

    assert ("space", False) == (found.name, found.ok)
    assert "No usable temporary directory" in found.detail
    assert "TMPDIR" in found.remedy
