"""
Running one command on every node.
"""

from __future__ import annotations

import os
import sys
import time

import attrs
import pytest

from distdebug.errors import NodesError
from distdebug.nodes import Bound, run_on_nodes
from distdebug.nodes.model import NodeStatus, Trouble
from distdebug.nodes.process import run_errand
from distdebug.nodes.side_by_side import side_by_side


@attrs.frozen(kw_only=True)
class Pretended:
    """
    Nodes that are all this one, known by the variable ``NODE``.
    """

    hosts: tuple[str, ...] = ("a", "b", "c")
    python: str = sys.executable
    at_once: int = 3

    def run(self, argv, *, data, timeout_s):
        """
        What does a command leave on each node?
        """
        bound = Bound(timeout_s=timeout_s)

        def ask(node):
            ended = run_errand(
                argv,
                data=data,
                environment={
                    **os.environ,
                    "NODE": node,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                bound=bound,
            )
            if b"is gone" in ended.complaint:
                trouble = Trouble(NodeStatus.DEAD, "nobody there", "wait")
                return ended._replace(trouble=trouble)
            return ended

        yield from side_by_side(
            ask,
            {h: h for h in self.hosts},
            at_once=self.at_once,
            stop=bound.stop,
        )


def run(work, *, timeout_s=60.0, engine=None, **options):
    """
    The results by host.
    """
    results = run_on_nodes(
        work, engine=engine or Pretended(), timeout_s=timeout_s, **options
    )
    return {result.host: result for result in results}


def sh(code):
    """
    A command for the shell.
    """
    return ["sh", "-c", code]


class TestFunction:
    def test_values(self):
        """
        Each node answers for itself.
        """
        told = []

        got = run(
            lambda: os.environ["NODE"] * 2, tell=lambda *x: told.append(x)
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

    def test_partial(self):
        """
        A node that fails, and one that hangs, cost their own results only.
        """

        def function():
            if os.environ["NODE"] == "a":
                raise OSError(*["disk \x1b[31mfull"])
            if os.environ["NODE"] == "b":
                print("so far")
                time.sleep(600)
            return 1

        begin = time.monotonic()

        got = run(function, timeout_s=5)

        assert ("failed", "OSError: disk full") == (
            got["a"].status,
            got["a"].reason,
        )
        assert "Traceback" in got["a"].output
        assert ("timed_out", "no answer after 5 s", "so far") == (
            got["b"].status,
            got["b"].reason,
            got["b"].output,
        )
        assert ("ok", 1) == (got["c"].status, got["c"].value)
        assert time.monotonic() - begin < 30

    def test_died(self):
        """
        A function that ends its process leaves no answer.
        """
        got = run(lambda: os._exit(0))["a"]

        assert ("failed", "it ended with status 0") == (got.status, got.reason)

    def test_not_installed(self):
        """
        A node without distdebug is told how to help it.
        """
        code = "echo No module named distdebug >&2; exit 1"
        engine = Pretended(python="/bin/false")

        got = run(sh(code))["a"]

        assert "status 1: No module named distdebug" in got.reason
        assert "install distdebug" in got.remedy
        assert "status 1" in run(int, engine=engine)["a"].reason


class TestCommand:
    def test_output(self):
        """
        A command is what it prints, without what only a terminal understands.
        """
        got = run(sh(r"printf '\033[31m'; echo $NODE; echo err >&2"))["b"]

        assert ("ok", "b\nerr", None) == (got.status, got.output, got.value)

    def test_tail(self):
        """
        Only the end of a long output is shown.
        """
        got = run(sh("yes | head -n 100000; echo last"))["a"]

        assert 8000 == len(got.output)
        assert got.output.endswith("last")

    def test_killed(self):
        """
        The signal that ended a command is told.
        """
        assert "it ended with signal 9" == run(sh("kill -9 $$"))["a"].reason

    def test_dead(self):
        """
        What the engine knows of a node is its result, also after the time.
        """
        code = "echo $NODE is gone >&2; test $NODE = a || sleep 600; exit 1"

        got = run(sh(code), timeout_s=3)

        assert {("dead", "nobody there", "wait")} == {
            (result.status, result.reason, result.remedy)
            for result in got.values()
        }

    def test_no_such_command(self):
        """
        A command that cannot be started is a result.
        """
        (got,) = run_on_nodes(["/nonexistent/command"])

        assert NodeStatus.FAILED == got.status
        assert got.reason.startswith("it could not be started")

    def test_closed(self):
        """
        Who closes the iterator ends what still runs, and starts no more.
        """
        begin = time.monotonic()
        engine = Pretended(hosts=tuple("abcdef"), at_once=2)
        results = run_on_nodes(
            sh("test $NODE = a || sleep 600"), engine=engine, timeout_s=300
        )

        first = next(results)
        results.close()

        assert "a" == first.host
        assert time.monotonic() - begin < 60

    def test_no_nodes(self):
        """
        A job without nodes has no results.
        """
        assert {} == run(["true"], engine=Pretended(hosts=()))

    @pytest.mark.parametrize("work", ["hostname", []])
    def test_no_command(self, work):
        """
        A text is no command: nobody knows where to split it.
        """
        with pytest.raises(NodesError, match="is no command"):
            run_on_nodes(work)

    def test_no_engine(self):
        """
        An engine that does not exist is told.
        """
        with pytest.raises(NodesError, match="no engine 'cloud'"):
            run_on_nodes(["true"], engine="cloud")
