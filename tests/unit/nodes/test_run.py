"""
Running one command on every node.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import NodeStatus, Ssh, run_on_nodes


pytestmark = pytest.mark.process


HOSTS = ("a", "b", "c")


@pytest.fixture
def run(ssh):
    """
    Runs something on every node, and gives the results by host.
    """

    def give(work, *, hosts=HOSTS, python=sys.executable, **options):
        engine = Ssh(hosts, python=python, at_once=3)
        results = run_on_nodes(work, engine=engine, **options)
        return {result.host: result for result in results}

    return give


def sh(code):
    """
    A command for the shell.
    """
    return ["sh", "-c", code]


class TestFunction:
    def test_values(self, run):
        """
        Each node answers for itself.
        """
        told = []

        got = run(
            lambda: os.environ["HOST"] * 2, tell=lambda *x: told.append(x)
        )

        assert {"a": "aa", "b": "bb", "c": "cc"} == {
            host: result.value for host, result in got.items()
        }
        assert {"ok"} == {result.status for result in got.values()}
        assert [(1, 3), (2, 3), (3, 3)] == told
        assert all(result.seconds > 0 for result in got.values())

    def test_here(self, monkeypatch):
        """
        Without an engine, this node answers.
        """
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

        (got,) = run_on_nodes(lambda: print("shown") or os.getpid())

        assert NodeStatus.OK == got.status
        assert "shown" == got.output
        assert os.getpid() != got.value

    def test_exception(self, run):
        """
        A node that fails costs its own result only.
        """

        def function():
            if os.environ["HOST"] == "a":
                raise OSError(*["disk \x1b[31mfull"])
            return 1

        got = run(function, hosts=("a", "c"))

        assert ("failed", "OSError: disk full") == (
            got["a"].status,
            got["a"].reason,
        )
        assert "Traceback" in got["a"].output
        assert ("ok", 1) == (got["c"].status, got["c"].value)

    def test_died(self, run):
        """
        A function that ends its process leaves no answer.
        """
        got = run(lambda: os._exit(0))["a"]

        assert ("failed", "it ended with status 0") == (got.status, got.reason)

    def test_not_installed(self, run):
        """
        A node without distdebug is shown a remedy.
        """
        code = "echo No module named distdebug >&2; exit 1"

        got = run(sh(code))["a"]

        assert "status 1: No module named distdebug" in got.reason
        assert "install distdebug" in got.remedy
        assert "status 1" in run(int, python="/bin/false")["a"].reason


class TestCommand:
    def test_output(self, run):
        """
        A command is what it prints, without what only a terminal understands.
        """
        got = run(sh(r"printf '\033[31m'; echo $HOST; echo err >&2"))["b"]

        assert ("ok", "b\nerr", None) == (got.status, got.output, got.value)

    def test_tail(self, run):
        """
        Only the end of a long output is shown.
        """
        got = run(sh("yes | head -n 100000; echo last"))["a"]

        assert 8000 == len(got.output)
        assert got.output.endswith("last")

    def test_killed(self, run):
        """
        The signal that ended a command is reported.
        """
        assert "it ended with signal 9" == run(sh("kill -9 $$"))["a"].reason

    def test_hangs(self, run):
        """
        A node that hangs costs its own result only, and what it said is kept.
        """
        code = "echo so far; test $HOST = b && sleep 600; exit 0"

        got = run(sh(code), timeout_s=1)

        assert ("timed_out", "no answer after 1 s", "so far") == (
            got["b"].status,
            got["b"].reason,
            got["b"].output,
        )
        assert "ok" == got["a"].status == got["c"].status

    def test_no_such_command(self):
        """
        A command that cannot be started is a result.
        """
        (got,) = run_on_nodes(["/nonexistent/command"])

        assert NodeStatus.FAILED == got.status
        assert got.reason.startswith("it could not be started")

    def test_closed(self, ssh):
        """
        A closed iterator ends what still runs, and starts no more.
        """
        begin = time.monotonic()
        engine = Ssh(tuple("abcdef"), at_once=2)
        results = run_on_nodes(
            sh("test $HOST = a || sleep 600"), engine=engine, timeout_s=300
        )

        first = next(results)
        results.close()

        assert "a" == first.host
        assert time.monotonic() - begin < 60

    def test_no_nodes(self, run):
        """
        A job without nodes has no results.
        """
        assert {} == run(["true"], hosts=())

    @pytest.mark.parametrize("work", ["hostname", []])
    def test_no_command(self, work):
        """
        A text is no command: it is unknown where to split it.
        """
        with pytest.raises(NodesError, match="is no command"):
            run_on_nodes(work)

    def test_no_engine(self):
        """
        An engine that does not exist is reported.
        """
        with pytest.raises(NodesError, match="no engine 'cloud'"):
            run_on_nodes(["true"], engine="cloud")
