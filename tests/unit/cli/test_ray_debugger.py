"""
The command for Ray's own debugger.
"""

from __future__ import annotations

import json

import pytest

from distdebug.__main__ import main
from distdebug.capture import Check
from distdebug.findings import Location
from distdebug.ray import RayDebuggerCheck, RayDebugSession


SESSION = RayDebugSession(
    kind="debugpy",
    host="10.0.0.1",
    port=50001,
    node="node-1",
    task="evaluate",
    locations=(Location(function="evaluate", file="/w/e.py", line=3),),
)


@pytest.fixture
def waiting(monkeypatch):
    """
    Let these sessions wait; what was asked for.
    """

    def make(*found):
        asked = {}

        def answer(address, **options):
            asked.update(options, address=address)
            return found

        # It asks a cluster of Ray, which is not here.
        monkeypatch.setattr(
            "distdebug.ray.ray_debug_sessions",
            answer,
        )
        return asked

    return make


@pytest.mark.parametrize("ok", [True, False])
def test_check(monkeypatch, capsys, ok):
    """
    The checks are shown, and the status says whether one failed.
    """
    asked = {}

    def answer(address, **options):
        asked.update(options, address=address)
        return RayDebuggerCheck(checks=(Check("debugpy", ok, "found"),))

    monkeypatch.setattr("distdebug.ray.check_ray_debugger", answer)
    options = ["--ray", "h:1", "--slurm", "7", "--login", "l", "--port", "5"]

    status = main(["ray-debugger", *options, "--timeout", "9"])
    shown = capsys.readouterr().out
    main(["ray-debugger", "check", "--json"])
    data = json.loads(capsys.readouterr().out)

    assert (0 if ok else 1) == status
    assert "debugpy" in shown
    assert (ok, "ray-debugger") == (data["ready"], data["command"])
    assert {
        "address": None,
        "job": None,
        "dashboard": None,
        "login": None,
        "local_port": None,
        "timeout_s": 120.0,
    } == asked


def test_sessions(waiting, capsys):
    """
    Sessions that wait are listed, with their place, for people and for
    programs; if there is none, it is no success.
    """
    asked = waiting(SESSION)

    status = main(["ray-debugger", "sessions", "--ray", "h:1"])
    shown = capsys.readouterr().out
    main(["ray-debugger", "sessions", "--json"])
    data = json.loads(capsys.readouterr().out)

    assert 0 == status
    assert "evaluate (/w/e.py:3)" in shown
    assert "10.0.0.1:50001" in shown
    assert [SESSION.to_dict()] == data["sessions"]
    assert 120.0 == asked["timeout_s"]

    waiting()
    assert 1 == main(["ray-debugger", "sessions"])
    assert "no task is waiting" in capsys.readouterr().err


def test_launch(waiting, capsys, tmp_path):
    """
    A launch.json is printed, or put where it was asked for.
    """
    waiting(SESSION)
    base = ["ray-debugger", "launch-json"]

    printed = main([*base, "--map", "/here=/there"])
    launch = json.loads(capsys.readouterr().out)
    written = main([*base, "--output", str(tmp_path)])
    said = capsys.readouterr().out
    main([*base, "--output", str(tmp_path / "l.json"), "--json"])
    data = json.loads(capsys.readouterr().out)

    assert (0, 0) == (printed, written)
    (configuration,) = launch["configurations"]
    assert [{"localRoot": "/here", "remoteRoot": "/there"}] == (
        configuration["pathMappings"]
    )
    path = tmp_path / ".vscode" / "launch.json"
    assert f"{path}: 1 configurations\n" == said
    assert str(tmp_path / "l.json") == data["path"]
    assert 1 == len(json.loads(path.read_text())["configurations"])


@pytest.mark.parametrize("text", ["", "x", "=x", "x="])
def test_wrong_map(waiting, capsys, text):
    """
    A mapping that is none is refused.
    """
    with pytest.raises(SystemExit):
        main(["ray-debugger", "launch-json", "--map", text])

    assert "LOCAL=REMOTE" in capsys.readouterr().err
