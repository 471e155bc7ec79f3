"""
With which ``runtime_env`` does Ray start a worker under nsys?
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import subprocess
import sys

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from distdebug.errors import NsightError
from distdebug.nsight import (
    merge_runtime_env,
    nsight_runtime_env,
    ray_nsight_status,
)


pytestmark = pytest.mark.process


SAFE = {
    "t": "cuda,nvtx",
    "s": "none",
    "cpuctxsw": "none",
    "x": "true",
    "cuda-graph-trace": "node",
}


@pytest.fixture(autouse=True)
def ray(monkeypatch, tmp_path, program, make_ray):
    """
    A Ray that starts workers by their Python, and an nsys that prints.
    """
    nsys = program('[ "$2" = --help ] && exit\nprintf "%s\\n" "$@"')
    monkeypatch.setenv("PATH", f"{Path(nsys).parent}:/usr/bin:/bin")
    plugin = make_ray(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    plugin.with_name("py_executable.py").touch()
    return plugin.parents[2]


def started(env, **more):
    """
    What nsys gets when Ray starts a worker with this ``runtime_env``.
    """
    command = f"exec {env['py_executable']} {shlex.quote('default worker.py')}"
    return subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.splitlines()


class TestWanted:
    def test_not_wanted(self):
        """
        A worker that does not match gets what it would have got.
        """
        base = {"env_vars": {"A": "1"}}

        assert {} == nsight_runtime_env("value", patterns="*policy*")
        assert base == nsight_runtime_env("value", patterns="p", base=base)
        assert {} == nsight_runtime_env("value", mode="none")

    def test_environment(self, monkeypatch):
        """
        The variables of NeMo RL decide without a change to its scripts.
        """
        monkeypatch.setenv("NRL_NSYS_WORKER_PATTERNS", "*policy*")
        monkeypatch.setenv("NRL_NSYS_PROFILE_STEP_RANGE", "3:6")
        monkeypatch.setenv("NRL_NSYS_EXTRA_OPTIONS", '{"sample": "none"}')

        got = nsight_runtime_env("dtensor_policy_worker", mode="nsight")

        assert {
            "env_vars": {"DISTDEBUG_NSYS_PROFILE_STEP_RANGE": "3:6"},
            "nsight": {
                **SAFE,
                "c": "cudaProfilerApi",
                "capture-range-end": "stop",
                "o": "dtensor_policy_worker_3-6_%p",
            },
        } == got

    @pytest.mark.parametrize(
        ("known", "said"),
        [
            ({"mode": "nsys"}, "no mode 'nsys'"),
            ({"output_dir": "out"}, "reports cannot go to"),
            ({"output_dir": "/x%h"}, "reports cannot go to"),
            ({"output_dir": "/x\ny"}, "reports cannot go to"),
            ({"mode": "nsight", "output_dir": "/x"}, "where it wants"),
            (
                {"mode": "nsight", "extra_options": {"env-var": "A=$(x)"}},
                "in this mode",
            ),
            ({"base": {"image_uri": "x"}}, "container"),
            ({"base": {"container": {"image": "x"}}}, "container"),
            (
                {"base": {"py_executable": "nsys profile python"}},
                "under nsys already",
            ),
            (
                {"base": {"py_executable": "/o/nsys profile x"}},
                "under nsys already",
            ),
        ],
        ids=repr,
    )
    def test_refused(self, known, said):
        """
        A mode or a folder that is none, what Ray's plugin could not pass on
        unharmed, and what cannot start under nsys as well is refused.
        """
        with pytest.raises(NsightError, match=said) as caught:
            nsight_runtime_env("worker", patterns="*", **known)

        assert caught.value.remedy


def report_name(worker, **known):
    """
    What the report of a worker is called.
    """
    env = nsight_runtime_env(worker, patterns="*", mode="nsight", **known)
    return env["nsight"]["o"]


class TestNames:
    @pytest.mark.parametrize(
        ("worker", "expected"),
        [
            ("dtensor_policy_worker", "dtensor_policy_worker_%p"),
            ("a b/c:d%q{HOME}$(x)`y`'\"", "a_b_c_d_q_HOME___x__y____%p"),
            ("-o", "o_%p"),
            ("../x", "_x_%p"),
            ("x" * 500, f"{'x' * 120}_%p"),
            ("größe", "gr__e_%p"),
        ],
        ids=ascii,
    )
    def test_worker(self, worker, expected):
        """
        The name of a report is safe for shells, for nsys, and to be copied;
        steps stand in it without a colon.
        """
        steps = expected.replace("_%p", "_3-6_%p")

        assert expected == report_name(worker)
        assert steps == report_name(worker, step_range="3:6")

    @pytest.mark.parametrize("worker", ["", "..."])
    def test_none(self, worker):
        """
        Without a name, reports could not be distinguished.
        """
        with pytest.raises(NsightError, match="no name of a worker"):
            report_name(worker)


class TestCommand:
    def test_words(self, tmp_path):
        """
        The worker starts under nsys by its own Python, with safe options.
        """
        env = nsight_runtime_env(
            "worker", patterns="*", output_dir=tmp_path / "out"
        )

        host = socket.gethostname()
        assert [
            "profile",
            *("-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none"),
            *("-x", "true", "--cuda-graph-trace=node"),
            *("-o", f"{tmp_path}/out/{host}/worker_%p"),
            *(sys.executable, "default worker.py"),
        ] == started(env)
        assert (tmp_path / "out" / host).is_dir()

    def test_hostile(self, tmp_path):
        """
        No name, folder, or option is ever evaluated by the shell.
        """
        mark = tmp_path / "mark"
        evil = f"$(touch {mark})`touch {mark}`'\"; touch {mark} #"
        folder = tmp_path / "a $(touch mark) 'b' \"c\""

        env = nsight_runtime_env(
            f"w {evil}",
            patterns="*",
            output_dir=folder,
            extra_options={"env-var": f"A={evil}"},
            python=f"/no/{evil}",
        )
        words = started(env)

        assert not mark.exists()
        assert not (tmp_path / "mark").exists()
        assert f"A={evil}" in words
        assert f"/no/{evil}" == words[-2]
        assert folder.is_dir()
        assert any(word.startswith(f"{folder}/") for word in words)

    def test_session(self, tmp_path):
        """
        By default, the raylet that starts the worker decides the folder.
        """
        env = nsight_runtime_env("worker", patterns="*")
        raylet = (
            "import subprocess, sys; print(subprocess.run(sys.argv[1:3] + "
            "['exec ' + sys.argv[3]], capture_output=True, text=True).stdout)"
        )
        session = tmp_path / "my session_1"

        for option in ("--session_dir", "--session-dir"):
            printed = subprocess.run(
                [
                    *(sys.executable, "-c", raylet, "bash", "-c"),
                    *(env["py_executable"], f"{option}={session}"),
                ],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            ).stdout.splitlines()

            expected = session / "logs" / "nsight"
            assert f"{expected}/worker_%p" in printed
            expected.rmdir()

    def test_extra(self):
        """
        Options of the user win over ours.
        """
        env = nsight_runtime_env(
            "worker", patterns="*", extra_options={"trace": "nvtx", "delay": 5}
        )

        words = started(env)
        assert "nvtx" == words[words.index("-t") + 1]
        assert "5" == words[words.index("-y") + 1]
        assert "cuda,nvtx" not in words


class TestPython:
    @pytest.mark.parametrize(
        ("base", "options", "expected"),
        [
            ({}, {}, [sys.executable]),
            ({}, {"python": "/o p/python"}, ["/o p/python"]),
            (
                {"py_executable": "/v/python -X 'a b'"},
                {"python": "/other"},
                ["/v/python", "-X", "a b"],
            ),
            ({"py_executable": " "}, {}, [sys.executable]),
            ({"py_executable": "uv run"}, {}, ["uv", "run"]),
            ({"pip": ["x"]}, {}, ["python"]),
            ({"uv": ["x"]}, {}, ["python"]),
            ({"conda": "x"}, {}, ["python"]),
            ({"conda": "x"}, {"python": "/p"}, ["/p"]),
        ],
        ids=[
            *("driver", "given", "base", "blank", "uv run", "pip", "uv"),
            *("conda", "conda and given"),
        ],
    )
    def test_which(self, base, options, expected, tmp_path):
        """
        The worker keeps its Python, and that keeps its options.
        """
        env = nsight_runtime_env(
            "w", patterns="*", base=base, output_dir=tmp_path, **options
        )

        words = started(env)
        start = words.index("-o") + 2
        assert expected == words[start:-1]

    def test_old_ray(self, ray):
        """
        A Ray that would ignore it is refused.
        """
        (ray / "_private" / "runtime_env" / "py_executable.py").unlink()

        with pytest.raises(NsightError, match="too old"):
            nsight_runtime_env("worker", patterns="*")

    @pytest.mark.parametrize(
        "spec",
        [
            None,
            ModuleSpec("ray", None),
            ModuleSpec("ray", None, origin="/no/such/ray.zip/ray/__init__.py"),
        ],
        ids=["none", "namespace", "archive"],
    )
    def test_no_ray(self, spec, monkeypatch):
        """
        Where there is no package of files, Ray has no say.
        """
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

        assert nsight_runtime_env("worker", patterns="*")
        assert "absent" == ray_nsight_status().state


class TestPlugin:
    def test_merged(self):
        """
        What else the worker has is kept, and its Python, too.
        """
        base = {
            "py_executable": "/v/python -X dev",
            "_nsight": "default",
            "env_vars": {"A": "1"},
        }

        got = nsight_runtime_env(
            "w", patterns="*", mode="nsight", base=base, step_range="1:2"
        )

        assert "/v/python -X dev" == got["py_executable"]
        assert {
            "A": "1",
            "DISTDEBUG_NSYS_PROFILE_STEP_RANGE": "1:2",
        } == got["env_vars"]
        assert "w_1-2_%p" == got["nsight"]["o"]
        assert "_nsight" not in got

    def test_other_way(self):
        """
        A worker that starts by its Python does not start by the plugin too.
        """
        for key in ("nsight", "_nsight"):
            got = nsight_runtime_env(
                "w", patterns="*", base={key: {"t": "cuda"}}
            )
            assert {"py_executable"} == set(got)


class TestMerge:
    def test_rules(self):
        """
        The new one wins, and what holds several things is merged.
        """
        base = {
            "env_vars": {"A": "1", "B": "1"},
            "config": {"setup_timeout_seconds": 1},
            "pip": ["x"],
            "_nsight": {"t": "cuda"},
        }
        new = {"env_vars": {"B": "2"}, "pip": ["y"]}

        got = merge_runtime_env(base, new)

        assert {
            "env_vars": {"A": "1", "B": "2"},
            "config": {"setup_timeout_seconds": 1},
            "pip": ["y"],
            "nsight": {"t": "cuda"},
        } == got
        assert {"A": "1", "B": "1"} == base["env_vars"]

    @pytest.mark.parametrize("none", [None, {}])
    def test_none(self, none):
        """
        None at all is an empty one.
        """
        assert {} == merge_runtime_env(none, none)
        assert {"nsight": 1} == merge_runtime_env(none, {"_nsight": 1})
        assert {"env_vars": None} == merge_runtime_env(
            {"env_vars": {"A": "1"}}, {"env_vars": None}
        )
