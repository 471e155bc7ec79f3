"""
Asking py-spy, with a stand-in for it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest

from distdebug.capture import CaptureStatus, capture_process


pytestmark = pytest.mark.process


FRAMES = (("f", "/a.py", 1),)
NO_PYTHON = "Error: Failed to find python version from target process"
MOVING = (
    "Error: Failed to get stack traces\n\nCaused by:\n"
    "    1: Failed to copy PyCodeObject\n    2: Bad address (os error 14)"
)

SHORT = "Error: Failed to get stack traces 2: Bad address (os error 14)"


@pytest.fixture
def dump(py_spy):
    """
    Looks at this process once, with these answers of py-spy.
    """

    def give(*answers, timeout_s=20.0):
        py_spy.sees(os.getpid(), *answers)
        return capture_process(os.getpid(), timeout_s=timeout_s)

    return give


def frames(*names):
    """
    The stack of a thread that runs.
    """
    thread = {"pid": 1, "thread_id": 1, "thread_name": "MainThread"}
    shown = [{"name": x, "filename": "/a.py", "line": 1} for x in names]
    return [{**thread, "active": True, "frames": shown}]


class TestDump:
    def test_threads(self, dump, py_spy):
        """
        What py-spy saw are threads; it is asked not to stop the process.
        """
        got = dump(FRAMES)

        assert "f" == got.stacks.main_thread.frames[0].name
        (attempt,) = got.attempts
        assert ("py-spy", CaptureStatus.OK) == (attempt.tool, attempt.status)
        assert attempt.seconds > 0
        assert "dump --json --nonblocking" in py_spy.calls[0]

    @pytest.mark.parametrize(
        ("says", "detail", "expected"),
        [
            # This process is one of Python, whatever py-spy says.
            (NO_PYTHON, NO_PYTHON, ("unsupported_python", 3)),
            ("what?\nStack backtrace:\n0: x", "what?", ("tool_failed", 3)),
            (MOVING, SHORT, ("tool_failed", 10)),
        ],
    )
    def test_failures(self, dump, py_spy, says, detail, expected):
        """
        Each way to fail is reported, and none is tried for ever; of a deep
        recursion it is tried more often.
        """
        got = dump(says)

        assert expected == (got.attempts[0].status, len(py_spy.calls))
        assert detail == got.attempts[0].detail

    @pytest.mark.parametrize("text", ["[", ""])
    def test_nonsense(self, tools, text):
        """
        What cannot be parsed is a failure.
        """
        tools.say("py-spy", text)

        (attempt, _) = capture_process(os.getpid()).attempts

        assert CaptureStatus.TOOL_FAILED is attempt.status
        assert "unexpected" in attempt.detail

    @pytest.mark.parametrize("says", ["changed", NO_PYTHON])
    @pytest.mark.parametrize("tries", [1, 2])
    def test_once_more(self, dump, py_spy, says, tries):
        """
        A process that changes while it is looked at is looked at again, also
        if it seemed to be no Python.
        """
        got = dump(*[says] * tries, FRAMES)

        assert tries + 1 == len(py_spy.calls)
        assert CaptureStatus.OK is got.status

    @pytest.mark.parametrize(
        ("last", "expected"),
        [
            (frames("<genexpr>", "weigh", "<module>"), ["<genexpr>", "weigh"]),
            (frames("<genexpr>"), ["<genexpr>"]),
            ("no such process", ["<genexpr>"]),
        ],
        ids=["whole", "always", "gone"],
    )
    def test_cut_off(self, dump, last, expected):
        """
        A stack whose end was lost, as a generator gave way, is read again;
        what was seen of it is kept if that never succeeds.
        """
        got = dump(frames("<genexpr>"), last)

        seen = got.stacks.main_thread.frames
        assert expected == [f.name for f in seen][:2]
        assert CaptureStatus.OK is got.status

    def test_module_that_is_called(self, dump, py_spy):
        """
        What python -m runs has callers, is whole, and is read once.
        """
        names = ["step", "<module>", "_run_code", "_run_module_as_main"]

        got = dump(frames(*names))

        assert names == [f.name for f in got.stacks.main_thread.frames]
        assert 1 == len(py_spy.calls)

    def test_slow(self, tools):
        """
        The time is limited.
        """
        tools.write("py-spy", "exec sleep 600")

        got = capture_process(os.getpid(), timeout_s=0.3)

        assert CaptureStatus.TIMED_OUT is got.attempts[0].status
        assert got.attempts[0].seconds < 60

    def test_ended(self, py_spy):
        """
        A process that has ended is reported as such, whatever py-spy says.
        """
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
            pid = process.pid
            py_spy.sees(pid, "Permission denied (os error 13)")
            # A killed process takes a moment to become a zombie.
            ended = f"grep -q '^State:.*zombie' /proc/{pid}/status"
            py_spy.does(pid, 0, f"kill -9 {pid}\nuntil {ended}; do :; done")

            got = capture_process(pid)

        assert "zombie" == got.status

    @pytest.mark.parametrize(
        ("code", "status", "shown"),
        [
            (None, CaptureStatus.TOOL_MISSING, "pip install py-spy"),
            ("#!/none\n", CaptureStatus.TOOL_FAILED, "cannot be run"),
        ],
    )
    def test_no_tool(self, tools, code, status, shown):
        """
        Without py-spy there is a way to get it; one that does not start is
        reported.
        """
        if code:
            tools.write("py-spy", "").write_text(code)

        (attempt, _) = capture_process(os.getpid()).attempts

        assert status is attempt.status
        assert shown in attempt.detail + attempt.remedy


SECRET = "correct horse battery staple"


class TestValues:
    """
    Whether variables change can be asked, but not what they hold.
    """

    @pytest.fixture
    def capture(self, kernel, tools, tmp_path):
        """
        Looks twice at a process that runs, and has a secret.
        """
        pid = kernel.rank(0, state="R")
        local = {"name": "key", "addr": 7, "repr": SECRET}
        (only,) = frames("f", "<module>")
        only["frames"][0]["locals"] = [local]

        def give(*, fails=False):
            tools.python(
                "py-spy",
                f"if '--locals' in sys.argv and {fails}:\n"
                f"    sys.exit('panic: {SECRET}')\n"
                f"import json; print(json.dumps({[only]}))",
            )
            return capture_process(pid, samples=2, interval_s=0)

        return give

    @pytest.mark.parametrize(
        ("fails", "is_known"), [(False, False), (True, None)]
    )
    def test_kept(self, capture, fails, is_known):
        """
        Of the values only that they changed is kept; and if py-spy cannot read
        them, the stacks come without.
        """
        got = capture(fails=fails)

        main = got.stacks.main_thread
        assert CaptureStatus.OK is got.status
        assert "f" == main.frames[0].name
        assert is_known is main.activity.has_new_values
        assert "horse" not in repr(got)

    def test_no_file(self, capture, monkeypatch):
        """
        Values never come near a disk.
        """
        calls = []
        real = tempfile.TemporaryFile
        monkeypatch.setattr(
            tempfile, "TemporaryFile", lambda: calls.append(1) or real()
        )

        capture()

        assert [] == calls
