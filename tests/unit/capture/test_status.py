"""
What tools and the kernel say when a process cannot be looked into.
"""

from __future__ import annotations

import os
import re

import pytest

from distdebug.capture import capture_process
from distdebug.capture.blockers import explain_failure
from distdebug.processes import read_state


YAMA = "/proc/sys/kernel/yama/ptrace_scope"
NO_PYTHON = "Error: Failed to find python version from target process"


@pytest.fixture
def pid(kernel):
    """
    A process that sleeps, runs no Python, and may not be looked into.
    """
    pid = kernel.rank(0)
    kernel.answers |= {
        YAMA: "3\n",
        f"/proc/{pid}/mem": PermissionError(13, "no"),
        "/proc/self/status": "Uid:\t0\t0\t0\t0\nSeccomp:\t0\n",
    }
    return pid


@pytest.fixture
def become(kernel, pid):
    """
    Lets the process be different from now on.
    """

    def give(letter="S", tracer=0, inside=0, start=5):
        file = kernel.path(pid, "stat")
        if letter == "gone":
            file.unlink()
            return
        head, tail = file.read_text().rsplit(") S", 1)
        file.write_text(
            f"{head}) {letter}{tail}".replace(" 5 1000", f" {start} 1000")
        )
        file = kernel.path(pid, "status")
        text = file.read_text().replace(
            "TracerPid:\t0", f"TracerPid:\t{tracer}"
        )
        if inside:
            text = text.replace(f"NSpid:\t{pid}", f"NSpid:\t{pid}\t{inside}")
        file.write_text(text)

    return give


@pytest.mark.process
class TestState:
    @pytest.mark.parametrize(
        ("changes", "expected", "remedy"),
        [
            ({"letter": "X"}, "exited", "exit status"),
            ({"letter": "Z"}, "zombie", "ps -o ppid= -p "),
            ({"letter": "T"}, "stopped", "kill -CONT "),
            ({"letter": "t", "tracer": 99999999}, "traced_by_other", "9999"),
            ({"letter": "D"}, "uninterruptible", "dmesg"),
        ],
    )
    def test_hindrances(self, pid, become, changes, expected, remedy):
        """
        Each state that is in the way is named, with what to do.
        """
        become(**changes)

        got = capture_process(pid)

        assert expected == got.status
        assert remedy in got.remedy
        assert not remedy.endswith(" ") or f"{remedy}{pid}" in got.remedy

    def test_name_of_tracer(self, kernel, pid, become):
        """
        The debugger that is attached already is named.
        """
        kernel.fake_proc.add(77, "/x/g\x1b[31mdb")
        become(letter="t", tracer=77)

        assert "process 77 (gdb) is att" in capture_process(pid).remedy


# What the tools say, word for word, and what that means when the state of the
# process tells nothing.
TEXTS = """
py-spy: not_python: runs Python
  Error: Failed to find python version from target process
py-spy: not_python: runs Python
  Error: Failed to find a python interpreter in the .data section
py-spy: not_python: runs Python
  Error: failed to get gil_thread_id
pystack: not_python: runs Python
  Engine error: Could not determine python version from /bin/sleep
py-spy: yama: ptrace_scope is 3
  Error: Failed to suspend process
  Reason: EPERM: Operation not permitted
py-spy: yama: ptrace_scope is 3
  Permission Denied: Try running again with elevated permissions by going \
'sudo env "PATH=$PATH" !!'
py-spy: yama: ptrace_scope is 3
  Error: Failed to get process executable name. Check that the process is \
running.
  Reason: Permission denied (os error 13)
pystack: yama: ptrace_scope is 3
  Failed to attach to thread 7: Operation not permitted
  The specified process cannot be traced. This could be because
gdb: yama: ptrace_scope is 3
  ptrace: Operation not permitted.
gdb: traced_by_other: process 99999999
  warning: process 7 is already traced by process 99999999
  ptrace: Operation not permitted.
py-spy: other_namespace: nsenter -t
  Error: UNW_EBADREG: bad register number
gdb: other_namespace: kubectl debug
  warning: Target and debugger are in different PID namespaces; thread \
lists and other data are likely unreliable.
py-spy: tool_failed: again
  Error: Failed to get stack traces
  Reason: No such file or directory
py-spy: tool_failed: again
  Error: No such process (os error 3)
pystack: tool_failed: again
  Engine error: Could not read the contents of /proc/7/task
gdb: tool_failed: again
  Couldn't get registers: No such process.
gdb: tool_failed:
  Cannot access memory at address 0x7f
cuda-gdb: tool_failed:
py-spy: tool_missing: pip install py-spy
  /none cannot be run: [Errno 2] No such file
gdb: tool_missing: apt-get install gdb
  nsenter: failed to execute /usr/bin/gdb: No such file or directory
"""


def told():
    """
    Each of these texts: the tool, the text, the status, and the remedy.
    """
    for part in re.split(r"\n(?! )", TEXTS.strip()):
        head, *lines = part.splitlines()
        tool, status, remedy = map(str.strip, head.split(":"))
        text = "\n".join(map(str.strip, lines))
        yield tool, text, status, remedy


class TestExplainFailure:
    @pytest.mark.parametrize(("tool", "text", "expected", "remedy"), [*told()])
    def test_texts(self, pid, tool, text, expected, remedy):
        """
        What a tool says is understood when the state says nothing.
        """
        got = explain_failure(tool, pid, 1, text, read_state(pid))

        assert expected == got.status
        assert remedy in got.remedy
        assert "\n" not in got.detail

    @pytest.mark.parametrize("text", [text for _, text, *_ in [*told()][:-2]])
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"letter": "gone"}, "exited"),
            ({"start": 6}, "exited"),
            ({"letter": "Z"}, "zombie"),
        ],
    )
    def test_ended(self, pid, become, text, changes, expected):
        """
        Whatever a tool says, a process that has ended meanwhile has ended.
        """
        before = read_state(pid)
        become(**changes)

        got = explain_failure("py-spy", pid, 1, text, before)

        assert expected == got.status

    def test_was_not_there(self, pid):
        """
        A process that was not there before is not the same one.
        """
        assert "exited" == explain_failure("gdb", pid, 1, "", None).status

    @pytest.mark.parametrize("number", [999_999_999, 1 << 80])
    def test_hidden(self, monkeypatch, number):
        """
        A process that is not shown any more need not have ended; of one that
        is not there nothing is said to be hidden.
        """
        ended = explain_failure("py-spy", number, 1, "", None)

        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(os, "kill", refuse)
        hidden = explain_failure("py-spy", number, 1, "", None)

        assert "exited" == ended.status
        assert "other_user" == hidden.status
        assert "hidepid" in hidden.remedy

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"letter": "T"}, "stopped"),
            ({"letter": "t", "tracer": 99999999}, "traced_by_other"),
            ({"letter": "D"}, "yama"),
        ],
    )
    def test_state_before(self, pid, become, changes, expected):
        """
        The state gives the reason, unless threads only read from a disk; but
        it does not make a process one of Python.
        """
        text = (
            "Error: Failed to get stack traces\nFailed to suspend process\n"
            "EPERM: Operation not permitted"
        )
        become(**changes)
        before = read_state(pid)

        got = explain_failure("py-spy", pid, 1, text, before)
        no_python = explain_failure("py-spy", pid, 1, NO_PYTHON, before)

        assert expected == got.status
        assert "not_python" == no_python.status

    def test_traced_meanwhile(self, pid, become):
        """
        Another debugger may have been quicker.
        """
        before = read_state(pid)
        become(tracer=99999999)

        got = explain_failure("gdb", pid, 1, "EPERM", before)

        assert "traced_by_other" == got.status

    def test_no_reason(self, kernel, pid):
        """
        Where no reason can be found, that it was refused remains.
        """
        kernel.answers |= {YAMA: "?\n", f"/proc/{pid}/mem": ""}

        got = explain_failure("gdb", pid, 1, "EPERM", read_state(pid))

        assert "not_permitted" == got.status
        assert "--cap-add SYS_PTRACE" in got.remedy

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            ("S", "S", "timed_out"),
            ("S", "D", "uninterruptible"),
            ("S", "R", "timed_out"),
            ("D", "S", "uninterruptible"),
            ("T", "S", "stopped"),
        ],
    )
    def test_late(self, kernel, before, after, expected):
        """
        A tool that does not end may wait for the kernel.
        """
        pid = kernel.rank(1, state=before)
        state = read_state(pid)
        for path in ("stat", f"task/{pid}/stat"):
            file = kernel.path(pid, path)
            file.write_text(
                file.read_text().replace(f") {before}", f") {after}")
            )

        got = explain_failure("py-spy", pid, None, "", state)

        assert expected == got.status

    @pytest.mark.parametrize("number", [126, 127])
    @pytest.mark.parametrize(
        ("tool", "remedy"),
        [
            ("pystack", "pip install pystack"),
            ("other", "install other, or put it on PATH"),
        ],
    )
    def test_missing(self, pid, number, tool, remedy):
        """
        The status of a shell says that there is no such tool.
        """
        got = explain_failure(tool, pid, number, "", read_state(pid))

        assert ("tool_missing", remedy) == (got.status, got.remedy)

    def test_other_namespace(self, kernel, pid, become):
        """
        A tool that fails on a process of a container is to be run there; with
        the wrong /proc nothing that is said means anything.
        """
        before = read_state(pid)
        become(inside=3)

        got = explain_failure("gdb", pid, 1, "what?", read_state(pid))
        kernel.link("/proc/self", "1")
        half = explain_failure("py-spy", pid, 1, "(os error 13)", before)

        assert "other_namespace" == got.status == half.status
        assert "stacks --pid 3" in got.remedy

    @pytest.mark.parametrize(
        "library", ["libpython3.12.so.1.0", "libc.so.6", "python"]
    )
    def test_unsupported_python(self, kernel, library):
        """
        A process of Python that a tool does not know has another Python, also
        if its program has another name.
        """
        is_program = library == "python"
        exe = "/opt/bin/python3.14t" if is_program else "/opt/app/server"
        pid = kernel.rank(1, exe=exe, maps=library)

        got = explain_failure("py-spy", pid, 1, NO_PYTHON, read_state(pid))

        if library == "libc.so.6":
            assert "not_python" == got.status
        else:
            assert "unsupported_python" == got.status
            assert "pip install --upgrade py-spy" in got.remedy

    def test_gist(self, pid):
        """
        What tools always say is left out, as is what harms a terminal, and the
        middle of what has no end.
        """
        text = (
            "[New LWP 7]\nBFD: /lib/libc.so.6: unknown type\n"
            "warning: File x\n\nptrace: \x1b[31mOperation not permitted.\n"
            "Stack backtrace:\n   0: EPERM"
        )
        long = f"{'x' * 20_000}\nEPERM\n{'y' * 20_000}"

        got = explain_failure("gdb", pid, 1, text, read_state(pid))
        cut = explain_failure("gdb", pid, 1, long, read_state(pid))

        assert "ptrace: Operation not permitted." == got.detail
        assert "tool_failed" == cut.status


ROOT = "Uid:\t0\t0\t0\t0\nCapEff:\t0\nCapPrm:\t0\n"
USER = ROOT.replace("0\t0\t0\t0", "7\t7\t7\t7")
MIGHTY = ROOT.replace(":\t0\nCapPrm:\t0", ":\t80000\nCapPrm:\t80000")


class TestDenied:
    @pytest.fixture
    def why(self, kernel, pid):
        """
        Gives the reason why a tool was refused.
        """

        def give(ours, theirs, scope):
            kernel.answers |= {
                YAMA: f"{scope}\n",
                "/proc/self/status": f"{ours}Seccomp:\t0\n",
                f"/proc/{pid}/status": f"{theirs}TracerPid:\t0\n",
            }
            return explain_failure("gdb", pid, 1, "EPERM", read_state(pid))

        kernel.answers[f"/proc/{pid}/environ"] = OSError(13, "no")
        return give

    @pytest.mark.parametrize(
        "case",
        [
            (MIGHTY, USER, 3, "yama", "no process may attach"),
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
            (USER.replace("CapEff:\t0", "CapEff:\t?"), USER, 1, "yama", "=0"),
        ],
    )
    def test_reasons(self, why, case):
        """
        The kernel's own questions, in its own order, give the reason.
        """
        *question, expected, remedy = case

        got = why(*question)

        assert expected == got.status
        assert remedy in got.remedy

    def test_not_there(self, kernel, pid):
        """
        A process whose memory is gone has ended, and is not denied.
        """
        del kernel.answers[f"/proc/{pid}/mem"]

        got = explain_failure("gdb", pid, 1, "EPERM", read_state(pid))

        assert "exited" == got.status

    def test_secret(self, kernel, pid, why):
        """
        A process of ours whose files are root's does not want to be seen.
        """
        del kernel.answers[f"/proc/{pid}/environ"]
        kernel.link(f"/proc/{pid}/environ", "/etc/passwd")

        assert "not_dumpable" == why(USER, USER, 1).status

    @pytest.mark.process
    def test_filter(self, kernel, pid, tools):
        """
        Where ptrace is filtered, nothing can attach to anything.
        """
        (tools.folder / "python").unlink()
        tools.write("python", "exit 101")
        kernel.answers["/proc/self/status"] = "Seccomp:\t2\n"

        got = explain_failure("gdb", pid, 1, "EPERM", read_state(pid))

        assert "seccomp" == got.status
        assert "seccomp=unconfined" in got.remedy

    @pytest.mark.process
    def test_yama_and_children(self, kernel, sleeper):
        """
        Yama lets us look into our children, but not the tools that we start.
        """
        kernel.answers |= {
            YAMA: "1\n",
            "/proc/self/status": f"{USER}Seccomp:\t0\n",
            f"/proc/{sleeper.pid}/mem": "",
        }
        other = kernel.rank(1)
        kernel.path(other, "mem").touch()

        found = [
            explain_failure("gdb", pid, 1, "EPERM", read_state(pid)).status
            for pid in (sleeper.pid, other)
        ]

        assert ["yama", "not_permitted"] == found
