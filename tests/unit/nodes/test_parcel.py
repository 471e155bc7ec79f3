"""
Sending a function to a node, and what comes back.
"""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import subprocess
import sys
import threading

from pathlib import Path

import pytest

import distdebug

from distdebug.errors import NodesError
from distdebug.nodes import child, parcel, unpack_answer
from distdebug.nodes.parcel import pack


def answer_of(function, *, data=None, version=None):
    """
    What the child answers to a function, and all that it prints.
    """
    sent = pack(function, 60)
    arguments = list(sent.arguments[4:])
    if version:
        arguments[0] = version
    out = io.StringIO()
    stdin = io.BytesIO(sent.data if data is None else data)

    status = child.main(arguments, stdin, out)

    assert 0 == status
    answer, rest = unpack_answer(sent.mark, f"before{out.getvalue()}after")
    assert "before\nafter" == rest
    return answer


class TestAnswer:
    def test_value(self):
        """
        What the function returns comes back as JSON data.
        """
        assert {"value": {"a": [1, None]}} == answer_of(
            lambda: {"a": (1, None)}
        )

    @pytest.mark.parametrize("kind", [ValueError, SystemExit])
    def test_exception(self, kind, capfd):
        """
        An exception is told in one line; its traceback is printed.
        """

        def function():
            raise kind(*["no such thing"])

        got = answer_of(function)

        assert f"{kind.__name__}: no such thing" == got["reason"]
        assert "in function" in capfd.readouterr().err

    @pytest.mark.parametrize("value", [object, {1, 2}])
    def test_no_json(self, value):
        """
        Only JSON data comes back, never an object.
        """
        got = answer_of(lambda: value)

        assert "is no JSON data" in got["reason"]
        assert "return numbers" in got["remedy"]

    def test_too_much(self, monkeypatch):
        """
        What is too long to be kept is refused where it is made.
        """
        monkeypatch.setattr(child, "_MOST", 100)

        got = answer_of(lambda: "x" * 200)

        assert "takes 213 bytes" in got["reason"]

    def test_other_python(self):
        """
        Another Python runs no code of ours: it would crash.
        """
        got = answer_of(lambda: 1, version="3.1")

        assert "was sent by Python 3.1; here is" in got["reason"]

    @pytest.mark.parametrize("data", [b"", b"gASVAAAA", b"cos\nsystem\n"])
    def test_digest(self, data):
        """
        Nothing is loaded but what the command line vouches for.
        """
        got = answer_of(lambda: 1, data=data)

        assert "the function did not arrive whole" == got["reason"]

    def test_no_answer(self):
        """
        Without the mark everything is output.
        """
        assert (None, "text\n") == unpack_answer(pack(int, 1).mark, "text\n")

    @pytest.mark.parametrize("line", ["", "{", "[" * 100000, "3"])
    def test_damaged(self, line):
        """
        A damaged answer is none.
        """
        sent = pack(int, 1)

        got, _ = unpack_answer(sent.mark, f"\n{sent.mark} {line}\n")

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
        monkeypatch.syspath_prepend(tmp_path)
        import user_module

        yield user_module
        del sys.modules["user_module"]

    @staticmethod
    def run_elsewhere(function, folder="/"):
        """
        Run a function in a Python that knows only distdebug.
        """
        sent = pack(function, 60)
        root = Path(distdebug.__file__).parents[1]
        done = subprocess.run(
            [sys.executable, *sent.arguments],
            input=sent.data,
            env={**os.environ, "PYTHONPATH": str(root)},
            cwd=folder,
            capture_output=True,
            timeout=60,
        )
        return unpack_answer(sent.mark, done.stdout.decode())[0]

    def test_user_code(self, module):
        """
        A function brings what it needs of its own module along.
        """
        assert {"value": 42} == self.run_elsewhere(module.work)

    def test_partial(self, module):
        """
        A partial function does so too.
        """
        got = self.run_elsewhere(functools.partial(module.work, 2))

        assert {"value": 6} == got

    def test_shadow(self, module, tmp_path):
        """
        A file of the job that is named like a module does not get in.
        """
        (tmp_path / "json.py").write_text("raise SystemExit(1)\n")

        assert {"value": 42} == self.run_elsewhere(module.work, tmp_path)

    def test_registered(self, module):
        """
        What the user had registered stays so.
        """
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)

        pack(module.work, 60)

        registered = cloudpickle.list_registry_pickle_by_value()
        cloudpickle.unregister_pickle_by_value(module)
        assert "user_module" in registered

    def test_library(self):
        """
        What every Python has travels by its name.
        """
        sent = pack(platform.node, 60)

        assert len(sent.data) < 200

    def test_cannot_travel(self):
        """
        What cannot travel is told before anybody is asked.
        """
        lock = threading.Lock()

        with pytest.raises(NodesError, match="the function cannot travel"):
            pack(lambda: lock, 60)

    def test_arguments(self, monkeypatch):
        """
        The command line holds nothing of the function.
        """
        monkeypatch.setattr(parcel.secrets, "token_hex", lambda _: "42")

        got = pack(lambda: "secret", 90.4)

        assert ("-P", "-u", "-m") == got.arguments[:3]
        assert ("distdebug-42", "90") == got.arguments[6:]
        assert "secret" not in json.dumps(got.arguments)
