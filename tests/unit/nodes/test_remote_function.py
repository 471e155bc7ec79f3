"""
Sending a function to a node, and what comes back.
"""

from __future__ import annotations

import functools
import io
import json
import platform
import sys
import threading

from pathlib import Path

import pytest

import distdebug

from distdebug.errors import NodesError
from distdebug.nodes import (
    CompletedCommand,
    NodeReply,
    child,
    run_on_nodes,
    unpack_answer,
)


class Child:
    """
    A node whose Python is this one.

    Args:
        data: What arrives there in place of the function.

        version: The Python that the function says it is from.
    """

    python = "python"

    def __init__(self, data=None, version=None):
        self.other, self.version = data, version

    def run(self, argv, *, data, timeout_s):
        """
        What does the child answer?
        """
        self.argv, self.data = argv, data
        return self._arrivals(list(argv[5:]))

    def _arrivals(self, arguments):
        if self.version:
            arguments[0] = self.version
        out = io.StringIO()
        data = self.data if self.other is None else self.other
        status = child.main(arguments, io.BytesIO(data), out)
        said = f"before{out.getvalue()}after".encode()
        yield NodeReply("node", CompletedCommand(status, said), 1, 0.5)


def result_of(function, **options):
    """
    What the child makes of a function.
    """
    (result,) = run_on_nodes(function, engine=Child(**options))
    assert "before\nafter" == result.output
    return result


class TestAnswer:
    def test_value(self):
        """
        What the function returns comes back as JSON data.
        """
        assert {"a": [1, None]} == result_of(lambda: {"a": (1, None)}).value

    @pytest.mark.parametrize("kind", [ValueError, SystemExit])
    def test_exception(self, kind, capfd):
        """
        An exception is reported in one line; its traceback is printed.
        """

        def function():
            raise kind(*["no such thing"])

        got = result_of(function)

        assert ("failed", f"{kind.__name__}: no such thing") == (
            got.status,
            got.reason,
        )
        assert "in function" in capfd.readouterr().err

    @pytest.mark.parametrize("value", [object, {1, 2}])
    def test_no_json(self, value):
        """
        Only JSON data comes back, never an object.
        """
        got = result_of(lambda: value)

        assert "is not JSON data" in got.reason
        assert "return numbers" in got.remedy

    def test_too_much(self):
        """
        What is too long to be kept is refused where it is made.
        """
        got = result_of(lambda: "x" * (1 << 24))

        assert "takes 16,777,229 bytes" in got.reason

    def test_other_python(self):
        """
        Another Python runs no code of ours: it would crash.
        """
        got = result_of(lambda: 1, version="3.1")

        assert "was sent by Python 3.1; here is" in got.reason

    @pytest.mark.parametrize("data", [b"", b"gASVAAAA", b"cos\nsystem\n"])
    def test_digest(self, data):
        """
        Nothing is loaded but what the command line vouches for.
        """
        got = result_of(lambda: 1, data=data)

        assert "the function did not arrive whole" == got.reason

    def test_no_answer(self):
        """
        Without the mark everything is output.
        """
        assert (None, "x 3\n") == unpack_answer("distdebug-42", "x 3\n")

    @pytest.mark.parametrize("line", ["", "{", "[" * 100000, "3"])
    def test_damaged(self, line):
        """
        A damaged answer is none.
        """
        got, _ = unpack_answer("distdebug-42", f"\ndistdebug-42 {line}\n")

        assert got is None


class TestByValue:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        """
        A module of a user, that no other Python can import.
        """
        (tmp_path / "user_module.py").write_text(
            "N = 3\n"
            "def helper(x): return x * N\n"
            "def work(x=14): return helper(x)\n"
        )
        root = Path(distdebug.__file__).parents[1]
        monkeypatch.setenv("PYTHONPATH", str(root))
        monkeypatch.syspath_prepend(tmp_path)
        import user_module

        yield user_module
        del sys.modules["user_module"]

    @pytest.mark.process
    def test_user_code(self, module, tmp_path, monkeypatch):
        """
        A function, also a partial one, brings what it needs of its own module
        along.
        """
        monkeypatch.chdir("/")
        work = functools.partial(functools.partial(module.work), 2)

        assert [42, 6] == [
            result.value
            for function in (module.work, work)
            for result in run_on_nodes(function)
        ]

    @pytest.mark.process
    def test_shadow(self, module, tmp_path, monkeypatch):
        """
        A file of the job that is named like a module does not get in.
        """
        (tmp_path / "json.py").write_text("raise SystemExit(1)\n")
        monkeypatch.chdir(tmp_path)

        (result,) = run_on_nodes(module.work)

        assert 42 == result.value

    def test_registered(self, module):
        """
        What the user had registered stays so.
        """
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)

        run_on_nodes(module.work)

        registered = cloudpickle.list_registry_pickle_by_value()
        cloudpickle.unregister_pickle_by_value(module)
        run_on_nodes(module.work)
        assert "user_module" in registered
        assert "user_module" not in cloudpickle.list_registry_pickle_by_value()

    def test_library(self):
        """
        What every Python has travels by its name.
        """
        engine = Child()

        run_on_nodes(platform.node, engine=engine)

        assert len(engine.data) < 200

    def test_cannot_travel(self):
        """
        What cannot travel is reported before any node is asked.
        """
        lock = threading.Lock()

        with pytest.raises(NodesError, match="the function cannot travel"):
            run_on_nodes(lambda: lock)

    def test_arguments(self):
        """
        The command line holds nothing of the function, and a new mark each
        time.
        """
        first, second = Child(), Child()

        for engine in (first, second):
            run_on_nodes(lambda: "secret", engine=engine, timeout_s=90.4)

        assert ("python", "-P", "-u", "-m") == first.argv[:4]
        assert "90" == first.argv[8]
        assert len(first.argv[7]) >= len("distdebug-") + 32
        assert first.argv[7] != second.argv[7]
        assert "secret" not in json.dumps(first.argv)
