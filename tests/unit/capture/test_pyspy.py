"""
Asking py-spy, with a stand-in for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from distdebug.capture import pyspy
from distdebug.capture.model import CaptureStatus
from distdebug.capture.pyspy import dump_python
from distdebug.processes import read_state


ANSWER = """\
import json, sys
pid = int(sys.argv[-1])
frame = {"name": "f", "filename": "/a.py", "line": 1}
print(json.dumps([{"pid": pid, "thread_id": 1, "thread_name": "MainThread",
                   "frames": [frame]}]))
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """
    Writes a stand-in for py-spy.
    """
    path = tmp_path / "py-spy"

    def write(code):
        path.write_text(f"#!{sys.executable} -S\n{code}")
        path.chmod(0o755)
        monkeypatch.setattr(pyspy, "find_tool", lambda _: str(path))
        return path

    return write


def dump(pid=None, *, timeout_s=20.0):
    """
    Look at a process, this one by default.
    """
    pid = os.getpid() if pid is None else pid
    return dump_python(pid, read_state(pid), timeout_s=timeout_s)[:2]


class TestDumpPython:
    def test_threads(self, tool):
        """
        What py-spy saw are threads.
        """
        tool(ANSWER)

        threads, attempt = dump()

        assert [("MainThread", "f")] == [
            (t.name, t.frames[0].name) for t in threads
        ]
        assert ("py-spy", CaptureStatus.OK) == (attempt.tool, attempt.status)
        assert attempt.seconds > 0

    def test_nobody_is_stopped(self, tool, tmp_path):
        """
        py-spy is told not to stop the process.
        """
        log = tmp_path / "log"
        tool(
            f"import sys; open({str(log)!r}, 'w').write(' '.join(sys.argv))\n"
            + ANSWER
        )

        dump()

        assert "dump --json --nonblocking" in log.read_text()

    @pytest.mark.parametrize(
        ("code", "status", "detail"),
        [
            (
                "sys.exit('Failed to find python version from target')",
                # This process is one of Python, whatever py-spy says.
                CaptureStatus.UNSUPPORTED_PYTHON,
                "python version",
            ),
            (
                "sys.exit('what?\\nStack backtrace:\\n0: x')",
                CaptureStatus.TOOL_FAILED,
                "what",
            ),
            ("print('[')", CaptureStatus.TOOL_FAILED, "unexpected"),
            ("print('')", CaptureStatus.TOOL_FAILED, "unexpected"),
        ],
    )
    def test_failures(self, tool, code, status, detail):
        """
        Each way to fail is told.
        """
        tool(f"import sys; {code}")

        threads, attempt = dump()

        assert () == threads
        assert status is attempt.status
        assert detail in attempt.detail

    def test_ended(self, tool):
        """
        A process that has ended is told so, whatever py-spy says.
        """
        tool("import sys; sys.exit('Permission denied (os error 13)')")
        ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
        ended.wait()

        threads, attempt = dump(ended.pid)

        assert ((), CaptureStatus.EXITED) == (threads, attempt.status)

    def test_slow(self, tool):
        """
        The time is limited.
        """
        tool("import time; time.sleep(600)")

        _, attempt = dump(timeout_s=0.5)

        assert CaptureStatus.TIMED_OUT is attempt.status
        assert attempt.seconds < 60

    def test_once_more(self, tool, tmp_path):
        """
        A process that changes while it is looked at is looked at again.
        """
        flag = tmp_path / "flag"
        tool(
            f"import os, sys\nif not os.path.exists({str(flag)!r}):\n"
            f"    open({str(flag)!r}, 'w'); sys.exit('changed')\n" + ANSWER
        )

        threads, attempt = dump()

        assert 1 == len(threads)
        assert CaptureStatus.OK is attempt.status

    @pytest.mark.parametrize(
        ("last", "expected"),
        [
            (["<genexpr>", "weigh", "<module>"], ["<genexpr>", "weigh"]),
            (["<genexpr>"], ["<genexpr>"]),
            ([], ["<genexpr>"]),
        ],
        ids=["whole", "always", "gone"],
    )
    def test_cut_off(self, tool, tmp_path, last, expected):
        """
        A stack whose end was lost, as a generator gave way, is read again;
        what was seen of it is kept if that never succeeds.
        """
        flag = tmp_path / "flag"
        tool(
            "import json, os, sys\n"
            f"names = {last}\n"
            f"if not os.path.exists({str(flag)!r}):\n"
            f"    open({str(flag)!r}, 'w'); names = ['<genexpr>']\n"
            "if not names: sys.exit('no such process')\n"
            "frames = [{'name': x, 'filename': '/a.py', 'line': 1}"
            " for x in names]\n"
            "print(json.dumps([{'pid': int(sys.argv[-1]), 'thread_id': 1,"
            " 'thread_name': 'MainThread', 'active': True,"
            " 'frames': frames}]))\n"
        )

        (only,), attempt = dump()

        assert expected == [f.name for f in only.frames][:2]
        assert CaptureStatus.OK is attempt.status

    def test_module_that_is_called(self, tool, tmp_path):
        """
        What python -m runs has callers, is whole, and is read once.
        """
        log = tmp_path / "log"
        names = ["step", "<module>", "_run_code", "_run_module_as_main"]
        tool(
            "import json, sys\n"
            f"open({str(log)!r}, 'a').write('.')\n"
            "frames = [{'name': x, 'filename': '/a.py', 'line': 1}"
            f" for x in {names}]\n"
            "print(json.dumps([{'pid': int(sys.argv[-1]), 'thread_id': 1,"
            " 'thread_name': 'MainThread', 'active': True,"
            " 'frames': frames}]))\n"
        )

        (only,), _ = dump()

        assert names == [f.name for f in only.frames]
        assert "." == log.read_text()

    def test_never(self, tool, tmp_path):
        """
        It is not tried for ever.
        """
        log = tmp_path / "log"
        tool(f"import sys; open({str(log)!r}, 'a').write('.'); sys.exit('no')")

        dump()

        assert "..." == log.read_text()

    def test_moving(self, tool, tmp_path):
        """
        Of a deep recursion it is tried more often, and not for ever either.
        """
        log = tmp_path / "log"
        tool(
            f"import sys; open({str(log)!r}, 'a').write('.')\n"
            "sys.exit('Error: Failed to get stack traces\\n\\nCaused by:\\n"
            "    1: Failed to copy PyCodeObject\\n    2: Bad address "
            "(os error 14)')"
        )

        _, attempt = dump()

        assert 10 * "." == log.read_text()
        assert CaptureStatus.TOOL_FAILED is attempt.status

    @pytest.mark.parametrize("tries", [2, 3])
    def test_no_python(self, tool, tmp_path, tries):
        """
        Who is in motion may look like no Python: that is asked again, too.
        """
        log = tmp_path / "log"
        tool(
            f"import os, sys; open({str(log)!r}, 'a').write('.')\n"
            f"if os.path.getsize({str(log)!r}) < {tries}:\n"
            "    sys.exit('Error: Failed to find python version from target "
            "process')\n" + ANSWER
        )

        threads, attempt = dump()

        assert tries * "." == log.read_text()
        assert 1 == len(threads)
        assert CaptureStatus.OK is attempt.status

    def test_never_python(self, tool, tmp_path):
        """
        What is no Python, is told to be none.
        """
        log = tmp_path / "log"
        tool(
            f"import sys; open({str(log)!r}, 'a').write('.')\n"
            "sys.exit('Error: Failed to find python version from target "
            "process')"
        )

        threads, attempt = dump()

        assert "..." == log.read_text()
        assert () == threads
        assert CaptureStatus.UNSUPPORTED_PYTHON is attempt.status

    def test_no_tool(self, monkeypatch):
        """
        Without py-spy there is a way to get it.
        """
        monkeypatch.setattr(pyspy, "find_tool", lambda _: None)

        _, attempt = dump()

        assert (CaptureStatus.TOOL_MISSING, "pip install py-spy") == (
            attempt.status,
            attempt.remedy,
        )

    def test_broken_tool(self, tool):
        """
        A tool that cannot be started is told.
        """
        tool(ANSWER).write_text("#!/none\n")

        _, attempt = dump()

        assert CaptureStatus.TOOL_FAILED is attempt.status
        assert "cannot be run" in attempt.detail


SECRET = "correct horse battery staple"
LOCALS = """\
import json, sys
if "--locals" in sys.argv and {fails}: sys.exit("panic: correct horse")
local = {{"name": "key", "addr": 7, "repr": "correct horse battery staple"}}
frame = {{"name": "f", "filename": "/a.py", "line": 1, "locals": [local]}}
print(json.dumps([{{"pid": 1, "thread_id": 1, "thread_name": "MainThread",
                   "frames": [frame]}}]))
"""


class TestValues:
    """
    Whether variables change can be asked, but not what they hold.
    """

    def dump(self, *, values=True):
        """
        Look at this process.
        """
        pid = os.getpid()
        state = read_state(pid)
        return dump_python(pid, state, timeout_s=20.0, values=values)

    def test_digest(self, tool):
        """
        Of the values one number per thread is kept, if it is asked for.
        """
        tool(LOCALS.format(fails=False))

        got, plain = self.dump(), self.dump(values=False)

        assert got.threads == plain.threads
        assert 1 == len(got.values)
        assert () == plain.values
        assert SECRET not in repr(got)

    def test_without(self, tool):
        """
        If py-spy cannot read the variables, the stacks come without them.
        """
        tool(LOCALS.format(fails=True))

        got = self.dump()

        assert (1, CaptureStatus.OK, ()) == (
            len(got.threads),
            got.attempt.status,
            got.values,
        )
        assert "horse" not in repr(got.attempt)

    def test_no_file(self, tool, tmp_path, monkeypatch):
        """
        Values never come near a disk.
        """
        tool(LOCALS.format(fails=False))
        calls = []
        real = tempfile.TemporaryFile
        monkeypatch.setattr(
            tempfile, "TemporaryFile", lambda: calls.append(1) or real()
        )

        self.dump()

        # That is for what py-spy complains about.
        assert 1 == len(calls)
