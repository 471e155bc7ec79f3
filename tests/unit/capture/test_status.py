"""
What tools and the kernel say when a process cannot be looked into.
"""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import pytest

from distdebug.capture.model import CaptureStatus
from distdebug.capture.permission import denial, status
from distdebug.capture.permission.status import (
    explain_failure,
    remedy_for_missing,
    status_of_state,
)
from distdebug.processes import ProcessState, read_state


HERE = os.getpid()
FINE = ProcessState(letter="S", start_ticks=1, pid_inside=HERE)
DENIED = CaptureStatus.YAMA, "lower it"


def state(**changes):
    """
    The state of a process that sleeps, but for the changes.
    """
    return attrs.evolve(FINE, **changes)


@pytest.fixture
def now(monkeypatch):
    """
    Says what the kernel tells of the process after the attempt.
    """

    def tell(after):
        monkeypatch.setattr(status, "read_state", lambda _: after)

    tell(FINE)
    monkeypatch.setattr(status, "why_denied", lambda _: DENIED)
    monkeypatch.setattr(status, "_runs_python", lambda _: False)
    return tell


class TestStatusOfState:
    @pytest.mark.parametrize(
        ("seen", "expected", "remedy"),
        [
            (state(letter="X"), "exited", "exit status"),
            (state(letter="Z"), "zombie", "ps -o ppid= -p 7"),
            (state(letter="T"), "stopped", "kill -CONT 7"),
            (state(letter="t", tracer_pid=99999999), "traced_by_other", "999"),
            (state(letter="D"), "uninterruptible", "/proc/7/stack"),
            (state(uninterruptible=(8,)), "uninterruptible", "dmesg"),
        ],
    )
    def test_hindrances(self, seen, expected, remedy):
        """
        Each state that is in the way is named, with what to do.
        """
        found, advice = status_of_state(seen, 7)

        assert expected == found
        assert remedy in advice

    @pytest.mark.parametrize(
        ("pid", "expected", "remedy"),
        [
            (None, "exited", "exit status"),
            (999_999_999, "exited", "exit status"),
            (HERE, "tool_failed", "ulimit -n"),
        ],
        ids=["no number", "gone", "unread"],
    )
    def test_nothing_told(self, pid, expected, remedy):
        """
        Only who is not there has ended, if the kernel tells nothing.
        """
        found, advice = status_of_state(None, pid)

        assert expected == found
        assert remedy in advice

    @pytest.mark.parametrize("letter", ["R", "S", "I"])
    def test_nothing(self, letter):
        """
        Nothing is in the way of looking at a process that runs or sleeps.
        """
        assert status_of_state(state(letter=letter)) is None

    def test_no_number(self):
        """
        Without a number the remedy has a place for it.
        """
        _, advice = status_of_state(state(letter="T"))

        assert "kill -CONT PID" in advice

    def test_name_of_tracer(self):
        """
        The debugger that is attached already is named.
        """
        _, advice = status_of_state(state(tracer_pid=os.getppid()))

        assert f"process {os.getppid()} (" in advice


# What the tools say, word for word, and what that means when the state of the
# process tells nothing.
TEXTS = [
    (
        "py-spy",
        "Error: Failed to find python version from target process",
        "not_python",
        "runs Python",
    ),
    (
        "py-spy",
        "Error: Failed to find a python interpreter in the .data section",
        "not_python",
        "runs Python",
    ),
    (
        "py-spy",
        "Error: failed to get gil_thread_id",
        "not_python",
        "runs Python",
    ),
    (
        "pystack",
        "Engine error: Could not determine python version from /bin/sleep",
        "not_python",
        "runs Python",
    ),
    (
        "py-spy",
        (
            "Error: Failed to suspend process\nReason: EPERM: Operation not "
            "permitted"
        ),
        "yama",
        "lower it",
    ),
    (
        "py-spy",
        (
            "Permission Denied: Try running again with elevated permissions by "
            "going 'sudo env \"PATH=$PATH\" !!'"
        ),
        "yama",
        "lower it",
    ),
    (
        "py-spy",
        (
            "Error: Failed to get process executable name. Check that the process "
            "is running.\nReason: Permission denied (os error 13)"
        ),
        "yama",
        "lower it",
    ),
    (
        "pystack",
        (
            "Failed to attach to thread 7: Operation not permitted\nThe specified "
            "process cannot be traced. This could be because"
        ),
        "yama",
        "lower it",
    ),
    ("gdb", "ptrace: Operation not permitted.", "yama", "lower it"),
    (
        "gdb",
        (
            "warning: process 7 is already traced by process 99999999\n"
            "ptrace: Operation not permitted."
        ),
        "traced_by_other",
        "process 99999999",
    ),
    (
        "py-spy",
        "Error: UNW_EBADREG: bad register number",
        "other_namespace",
        "nsenter -t",
    ),
    (
        "gdb",
        (
            "warning: Target and debugger are in different PID namespaces; thread "
            "lists and other data are likely unreliable."
        ),
        "other_namespace",
        "kubectl debug",
    ),
    (
        "py-spy",
        "Error: Failed to get stack traces\nReason: No such file or directory",
        "tool_failed",
        "again",
    ),
    (
        "py-spy",
        "Error: No such process (os error 3)",
        "tool_failed",
        "again",
    ),
    (
        "pystack",
        "Engine error: Could not read the contents of /proc/7/task",
        "tool_failed",
        "again",
    ),
    (
        "gdb",
        "Couldn't get registers: No such process.",
        "tool_failed",
        "again",
    ),
    ("gdb", "Cannot access memory at address 0x7f", "tool_failed", ""),
    ("cuda-gdb", "", "tool_failed", ""),
    (
        "py-spy",
        "/none cannot be run: [Errno 2] No such file",
        "tool_missing",
        "pip install py-spy",
    ),
    (
        "gdb",
        "nsenter: failed to execute /usr/bin/gdb: No such file or directory",
        "tool_missing",
        "apt-get install gdb",
    ),
]


class TestExplainFailure:
    @pytest.mark.parametrize(("tool", "text", "expected", "remedy"), TEXTS)
    def test_texts(self, now, tool, text, expected, remedy):
        """
        What a tool says is understood when the state tells nothing.
        """
        got = explain_failure(tool, HERE, 1, text, FINE)

        assert expected == got.status
        assert remedy in got.remedy
        assert "\n" not in got.detail

    @pytest.mark.parametrize("text", [text for _, text, *_ in TEXTS[:-2]])
    @pytest.mark.parametrize(
        ("after", "expected"),
        [
            (None, "exited"),
            (state(start_ticks=2), "exited"),
            (state(letter="Z"), "zombie"),
        ],
    )
    def test_ended(self, now, text, after, expected):
        """
        Whatever a tool says, a process that has ended meanwhile has ended.
        """
        now(after)

        got = explain_failure("py-spy", 999999999, 1, text, FINE)

        assert expected == got.status

    def test_was_not_there(self, now):
        """
        A process that was not there before is not the same one.
        """
        assert "exited" == explain_failure("gdb", HERE, 1, "", None).status

    def test_hidden(self, now, monkeypatch):
        """
        A process that is not shown any more need not have ended.
        """
        now(None)
        hidden = CaptureStatus.OTHER_USER, "hidepid"
        monkeypatch.setattr(status, "why_hidden", lambda _: hidden)

        got = explain_failure("py-spy", HERE, 1, "", FINE)

        assert ("other_user", "hidepid") == (got.status, got.remedy)

    @pytest.mark.parametrize(
        ("before", "expected"),
        [
            (state(letter="T"), "stopped"),
            (state(letter="t", tracer_pid=99999999), "traced_by_other"),
            (state(uninterruptible=(HERE,)), "yama"),
        ],
    )
    def test_state_before(self, now, before, expected):
        """
        The state tells why, unless threads only read from a disk.
        """
        text = (
            "Error: Failed to get stack traces\nFailed to suspend process\n"
            "EPERM: Operation not permitted"
        )

        got = explain_failure("py-spy", HERE, 1, text, before)

        assert expected == got.status

    def test_stopped_and_no_python(self, now):
        """
        Being stopped does not make a process one of Python.
        """
        text = "Error: Failed to find python version from target process"

        got = explain_failure("py-spy", HERE, 1, text, state(letter="T"))

        assert "not_python" == got.status

    def test_traced_meanwhile(self, now):
        """
        Another debugger may have been quicker.
        """
        now(state(tracer_pid=99999999))

        got = explain_failure("gdb", HERE, 1, "EPERM", FINE)

        assert "traced_by_other" == got.status

    def test_no_reason(self, now, monkeypatch):
        """
        Where no reason can be found, that it was refused remains.
        """
        monkeypatch.setattr(status, "why_denied", lambda _: None)

        got = explain_failure("gdb", HERE, 1, "EPERM", FINE)

        assert "not_permitted" == got.status
        assert "--cap-add SYS_PTRACE" in got.remedy

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            (FINE, FINE, "timed_out"),
            (FINE, state(letter="D"), "uninterruptible"),
            (FINE, state(letter="R"), "timed_out"),
            (state(letter="D"), FINE, "uninterruptible"),
            (state(letter="T"), FINE, "stopped"),
        ],
    )
    def test_late(self, now, before, after, expected):
        """
        A tool that does not end may wait for the kernel.
        """
        now(after)

        got = explain_failure("py-spy", HERE, None, "", before)

        assert expected == got.status

    @pytest.mark.parametrize("number", [126, 127])
    def test_missing(self, now, number):
        """
        The status of a shell tells that there is no such tool.
        """
        got = explain_failure("pystack", HERE, number, "", FINE)

        assert ("tool_missing", "pip install pystack") == (
            got.status,
            got.remedy,
        )

    def test_other_namespace(self, now):
        """
        A tool that fails on a process of a container is to be run there.
        """
        got = explain_failure("gdb", HERE, 1, "what?", state(pid_inside=3))

        assert "other_namespace" == got.status
        assert "stacks --pid 3" in got.remedy

    def test_half_inside(self, now, monkeypatch):
        """
        With the wrong /proc nothing that is said means anything.
        """
        monkeypatch.setattr(status, "proc_is_foreign", lambda: True)

        got = explain_failure("py-spy", HERE, 1, "(os error 13)", FINE)

        assert "other_namespace" == got.status

    def test_unsupported_python(self, now, monkeypatch):
        """
        A process of Python that a tool does not know has another Python.
        """
        monkeypatch.undo()
        text = "Error: Failed to find python version from target process"

        got = explain_failure("py-spy", HERE, 1, text, read_state(HERE))

        assert "unsupported_python" == got.status
        assert "pip install --upgrade py-spy" in got.remedy

    def test_gist(self, now):
        """
        What tools always say is left out, as is what harms a terminal.
        """
        text = (
            "[New LWP 7]\nBFD: /lib/libc.so.6: unknown type\n"
            "warning: File x\n\nptrace: \x1b[31mOperation not permitted.\n"
            "Stack backtrace:\n   0: EPERM"
        )

        got = explain_failure("gdb", HERE, 1, text, FINE)

        assert "ptrace: Operation not permitted." == got.detail


class TestRunsPython:
    def test_embedded(self, monkeypatch):
        """
        A program of another name runs Python if it has loaded it.
        """
        monkeypatch.setattr(status, "read_link", lambda _: "/opt/app/server")
        maps = b"7f00-7f01 r-xp 0 0 0 /lib/libpython3.12.so.1.0\n"
        monkeypatch.setattr(status, "read_proc", lambda *_, **__: maps)

        assert status._runs_python(HERE)

        monkeypatch.setattr(status, "read_proc", lambda *_, **__: None)

        assert not status._runs_python(HERE)


def test_remedy_for_missing():
    """
    There is something to do also about a tool that is not known.
    """
    assert "install other, or put it on PATH" == remedy_for_missing("other")


class TestWhyHidden:
    def test_others(self, monkeypatch):
        """
        A process to which no signal may be sent is there.
        """

        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(denial.os, "kill", refuse)

        found, advice = denial.why_hidden(1)

        assert "other_user" == found
        assert "hidepid" in advice

    @pytest.mark.parametrize(
        "pid", [999999999, 1 << 80], ids=["large", "huge"]
    )
    def test_nobody(self, pid):
        """
        Nobody is hidden who is not there.
        """
        assert denial.why_hidden(pid) is None

    def test_unread(self):
        """
        One of ours that could not be read is there, and files are few.
        """
        found, advice = denial.why_hidden(HERE)

        assert "tool_failed" == found
        assert "ulimit -n" in advice


ROOT = {"Uid": "0\t0\t0\t0", "CapEff": "0", "CapPrm": "0"}
USER = {"Uid": "7\t7\t7\t7", "CapEff": "0", "CapPrm": "0"}
MIGHTY = {"Uid": "0\t0\t0\t0", "CapEff": "80000", "CapPrm": "80000"}


class TestWhyDenied:
    @pytest.mark.parametrize(
        ("ours", "theirs", "scope", "expected", "remedy"),
        [
            (MIGHTY, USER, 3, "yama", "nobody may attach"),
            (MIGHTY, USER, 0, "not_permitted", "nsenter"),
            (USER, ROOT, 0, "other_user", "sudo -u '#0'"),
            (ROOT, USER, 0, "no_capability", "--cap-add SYS_PTRACE"),
            (ROOT, MIGHTY, 0, "no_capability", "kubectl debug"),
            (
                USER,
                USER,
                1,
                "yama",
                "sysctl -w kernel.yama.ptrace_scope=0",
            ),
            (ROOT, ROOT, 2, "yama", "ptrace_scope is 2"),
            (USER, USER, 0, "not_permitted", "sudo python"),
        ],
    )
    def test_reasons(self, ours, theirs, scope, expected, remedy):
        """
        The kernel's own questions, in its own order, give the reason.
        """
        found, advice = denial._reason(999999999, ours, theirs, scope)

        assert expected == found
        assert remedy in advice

    def test_secret(self, monkeypatch):
        """
        A process of ours whose files are root's does not want to be seen.
        """
        monkeypatch.setattr(denial, "_keeps_secrets", lambda _: True)

        found, _ = denial._reason(1, USER, USER, 1)

        assert "not_dumpable" == found

    def test_keeps_secrets(self, monkeypatch, tmp_path):
        """
        Whose files are root's is asked of the kernel.
        """
        (tmp_path / "file").touch()
        other = os.stat_result([0o100600, 1, 1, 1, 0, 0, 0, 0, 0, 0])
        monkeypatch.setattr(denial.os, "stat", lambda _: other)

        assert denial._keeps_secrets(1)

        monkeypatch.undo()

        assert not denial._keeps_secrets(999999999)

    def test_not_there(self):
        """
        A process that has ended is not denied.
        """
        assert "exited" == denial.why_denied(999999999)[0]

    def test_filter(self, monkeypatch):
        """
        Where ptrace is filtered, nothing can attach to anybody.
        """
        monkeypatch.setattr(denial, "ptrace_is_filtered", lambda: True)

        found, advice = denial.why_denied(os.getppid())

        assert "seccomp" == found
        assert "seccomp=unconfined" in advice

    def test_refused(self, monkeypatch):
        """
        The reason is looked up when opening the memory is refused.
        """
        monkeypatch.setattr(denial, "_may_not_open", lambda _: 13)
        monkeypatch.setattr(denial, "yama_scope", lambda: 3)

        assert "yama" == denial.why_denied(HERE)[0]

    def test_yama_and_children(self, monkeypatch):
        """
        Yama lets us look into our children, but not the tools that we start.
        """
        monkeypatch.setattr(denial, "_may_not_open", lambda _: None)
        monkeypatch.setattr(denial, "yama_scope", lambda: 1)
        monkeypatch.setattr(denial, "can_trace", lambda _: False)
        with subprocess.Popen(["sleep", "600"]) as child:
            found = denial.why_denied(child.pid)
            child.kill()

        assert "yama" == found[0]
        assert denial.why_denied(os.getppid()) is None

    def test_number_that_is_none(self, monkeypatch):
        """
        What the kernel does not tell counts as nothing.
        """
        monkeypatch.setattr(denial, "read_proc", lambda _: b"?")

        assert 0 == denial.yama_scope()
        assert not denial.can_trace({"CapEff": "?"})


class TestFilter:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch):
        denial.ptrace_is_filtered.cache_clear()
        yield
        denial.ptrace_is_filtered.cache_clear()

    def test_none(self, monkeypatch):
        """
        Where there is no filter, nothing is tried.
        """
        monkeypatch.setattr(denial, "read_proc", lambda _: b"Seccomp:\t0\n")

        assert not denial.ptrace_is_filtered()

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("raise SystemExit(101)", True),  # EPERM
            ("raise SystemExit(103)", False),  # ESRCH: it was asked
            ("import os; os.kill(os.getpid(), 31)", True),
            ("raise SystemExit(1)", False),
        ],
    )
    def test_answers(self, monkeypatch, code, expected):
        """
        A call that can only fail in one way tells whether it is let through.
        """
        monkeypatch.setattr(denial, "read_proc", lambda _: b"Seccomp:\t2\n")
        monkeypatch.setattr(denial, "_ASK_FILTER", code)

        assert expected == denial.ptrace_is_filtered()

    def test_really(self, monkeypatch):
        """
        It is let through, or refused, here.
        """
        monkeypatch.setattr(denial, "read_proc", lambda _: b"Seccomp:\t2\n")

        assert denial.ptrace_is_filtered() in {True, False}

    def test_cannot_ask(self, monkeypatch):
        """
        Where no process can be started, nothing is said against it.
        """
        monkeypatch.setattr(denial, "read_proc", lambda _: b"Seccomp:\t2\n")
        monkeypatch.setattr(sys, "executable", "/none")

        assert not denial.ptrace_is_filtered()
