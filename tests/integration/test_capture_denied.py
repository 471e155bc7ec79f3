"""
Each way to be refused has its own name and its own remedy.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.capture.attach import read_native_stacks
from distdebug.processes import read_state


PROGRAMS = Path(__file__).parent / "programs"
NOBODY = "65534"

WAIT = "import time; print(flush=True); time.sleep(600)"
# Waits inside the kernel for a child that never becomes another program.
FORK = (
    "import ctypes; libc = ctypes.CDLL(None); print(flush=True); "
    "libc.vfork() or libc.pause()"
)
SECRET = "import ctypes; ctypes.CDLL(None).prctl(4, 0); " + WAIT
TRACE = (
    "import ctypes, sys; libc = ctypes.CDLL(None); "
    "libc.ptrace(0x4206, int(sys.argv[1]), None, None); " + WAIT
)

# Another user, who may still read this Python wherever it is installed.
AS_NOBODY = (
    *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)
WITHOUT_RIGHT = (
    *("setpriv", "--bounding-set", "-sys_ptrace"),
    *("--inh-caps", "-sys_ptrace"),
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("gdb"), reason="needs root and gdb"
)


def works(*prefix: str) -> bool:
    """
    Whether a program can be run that way here.
    """
    if shutil.which(prefix[0]) is None:
        return False
    argv = [*prefix, sys.executable, "-I", "-S", "-c", ""]
    return 0 == subprocess.run(argv, capture_output=True).returncode


def needs(*prefix: str):
    """
    Skip where a program cannot be run that way.
    """
    return pytest.mark.skipif(
        os.geteuid() != 0 or not works(*prefix),
        reason=f"{' '.join(prefix)} does not work here",
    )


@contextmanager
def running(code: str, *arguments: object, prefix: tuple[str, ...] = ()):
    """
    Run a program, and end it and its children in the end.
    """
    argv = [*prefix, sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(
        [*argv, *map(str, arguments)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def ask(pid: int, *prefix: str) -> dict:
    """
    Ask, with as few rights, what keeps us from looking into a process.
    """
    argv = [*prefix, sys.executable, PROGRAMS / "ask_rights.py", str(pid)]
    path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    got = subprocess.run(
        argv,
        env={**os.environ, **path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "" == got.stderr
    return json.loads(got.stdout)


def assert_refused(answer: dict, status: str, remedy: str) -> None:
    """
    Before and after the attempt, the same is told, and how to go on.
    """
    assert status == answer["hindrance"][0]
    assert remedy in answer["hindrance"][1]
    assert [answer["hindrance"]] == answer["native"]


@pytest.fixture
def target():
    """
    A process of Python that waits.
    """
    with running(WAIT) as pid:
        yield pid


class TestRights:
    def test_all(self, target):
        """
        Who has every right is not refused.
        """
        answer = ask(target)

        assert "none" == answer["hindrance"][0]
        assert ["ok", ""] == answer["python"]
        assert [["ok", ""]] == answer["native"]

    @needs(*AS_NOBODY)
    def test_other_user(self, target):
        """
        Somebody else's process needs that user, or root.
        """
        answer = ask(target, *AS_NOBODY)

        assert_refused(answer, "other_user", "sudo -u '#0'")
        assert answer["hindrance"] == answer["python"]

    @needs(*WITHOUT_RIGHT)
    def test_no_capability(self, target):
        """
        Root of a container needs the capability.
        """
        answer = ask(target, *WITHOUT_RIGHT)

        assert_refused(answer, "no_capability", "--cap-add SYS_PTRACE")
        assert answer["hindrance"] == answer["python"]

    @needs(*AS_NOBODY)
    def test_not_dumpable(self):
        """
        A process may have asked not to be looked into.
        """
        with running(SECRET, prefix=AS_NOBODY) as pid:
            answer = ask(pid, *AS_NOBODY)

        assert_refused(answer, "not_dumpable", "sudo python -m distdebug")
        assert answer["hindrance"] == answer["python"]

    def test_seccomp(self, target):
        """
        Where a filter refuses ptrace, Python stacks can still be read.
        """
        filtered = sys.executable, str(PROGRAMS / "refuse_ptrace.py")
        if not works(*filtered):
            pytest.skip("seccomp does not work here")

        answer = ask(target, *filtered)

        assert_refused(answer, "seccomp", "--cap-add SYS_PTRACE")
        assert ["ok", ""] == answer["python"]

    @needs("unshare", "--user", "--map-root-user")
    def test_user_namespace(self, target):
        """
        Root of a user namespace has no rights outside of it.
        """
        answer = ask(target, "unshare", "--user", "--map-root-user")

        assert_refused(answer, "not_permitted", "nsenter -t")

    @needs("unshare", "--mount")
    @needs(*AS_NOBODY)
    def test_hidden(self, target):
        """
        A process that is not shown is not taken for one that has ended.
        """
        # A mount of its own: remounting would change the one of everybody.
        script = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
        prefix = "unshare", "--mount", "sh", "-c", script, "sh"
        if not works(*prefix):
            pytest.skip("/proc cannot be mounted here")

        answer = ask(target, *prefix, *AS_NOBODY)

        assert_refused(answer, "other_user", "hidepid")


class TestNamespaces:
    @needs("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    def test_from_outside(self):
        """
        A process in a container is looked into from inside that.
        """
        prefix = "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"
        with running(WAIT, prefix=prefix) as parent:
            children = Path(f"/proc/{parent}/task/{parent}/children")
            pid = int(children.read_text())
            answer = ask(pid)
            found = read_native_stacks(pid, tools=("gdb",))

        status, remedy = answer["hindrance"]
        assert "other_namespace" == status
        assert f"nsenter -t {pid} -p -m" in remedy
        assert "kubectl debug" in remedy
        assert [["ok", ""]] == answer["native"]
        assert [pid] == [t.thread_id for t in found.threads]

    @needs("unshare", "--pid", "--fork")
    def test_half_inside(self, target):
        """
        Numbers of processes mean nothing if /proc is that of another
        container.
        """
        answer = ask(target, "unshare", "--pid", "--fork")

        assert_refused(answer, "other_namespace", "-p -m")


class TestStates:
    def test_stopped(self, target):
        """
        A stopped process is read, not attached to.
        """
        os.kill(target, signal.SIGSTOP)
        while read_state(target).letter != "T":
            time.sleep(0.001)

        answer = ask(target)

        assert_refused(answer, "stopped", f"kill -CONT {target}")
        assert ["ok", ""] == answer["python"]
        assert "T" == read_state(target).letter

    def test_zombie(self):
        """
        A process that has ended is not attached to.
        """
        with running("") as pid:
            while read_state(pid).letter != "Z":
                time.sleep(0.001)

            answer = ask(pid)

        assert_refused(answer, "zombie", f"ps -o ppid= -p {pid}")
        assert answer["hindrance"] == answer["python"]

    def test_gone(self):
        """
        A process that is not there is told.
        """
        with running("") as pid:
            pass

        answer = ask(pid)

        assert_refused(answer, "exited", "exit status")
        assert answer["hindrance"] == answer["python"]

    def test_traced(self, target):
        """
        There is one debugger at a time, and the other one is named.
        """
        with running(TRACE, target) as tracer:
            answer = ask(target)

        assert_refused(answer, "traced_by_other", f"process {tracer} (python")
        assert ["ok", ""] == answer["python"]

    def test_uninterruptible(self):
        """
        Whoever waits inside the kernel is not attached to.
        """
        with running(FORK) as pid:
            while read_state(pid).letter != "D":
                time.sleep(0.001)

            answer = ask(pid)

        assert_refused(answer, "uninterruptible", f"/proc/{pid}/stack")
        assert ["ok", ""] == answer["python"]

    def test_not_python(self):
        """
        gdb looks into any program; py-spy says what it is for.
        """
        with subprocess.Popen(["sleep", "600"]) as process:
            answer = ask(process.pid)
            process.kill()

        assert "not_python" == answer["python"][0]
        assert [["ok", ""]] == answer["native"]
