"""
How VS Code attaches to those who wait in Ray's debugger.
"""

from __future__ import annotations

import json
import os
import stat

import pytest

from distdebug.errors import LaunchFileError
from distdebug.findings import Location
from distdebug.ray import (
    RayDebuggerCheck,
    RayDebugSession,
    launch_json,
    write_launch_json,
)


UNPACKED = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_7"


def session(port, *, file="/home/me/train.py", **changes):
    """
    One that waits.
    """
    place = Location(function="step", file=file, line=41)
    return RayDebugSession(
        **{
            "kind": "debugpy",
            "host": "10.0.0.1",
            "port": port,
            "node": "node-1",
            "task": "Trainer.step",
            "actor": "tr",
            "locations": (place,) if file else (),
            **changes,
        }
    )


ONE = "distdebug Ray: Trainer.step (tr) train.py:41, node-1 10.0.0.1:50001"
ALL = "distdebug Ray: all"


def test_launch():
    """
    Each session has a configuration, and a compound starts all; the older
    debugger has none.
    """
    legacy = session(4444, kind="legacy")

    got = launch_json([session(50001), legacy, session(50002, file="")])

    first, second = got["configurations"]
    assert {
        "name": ONE,
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "10.0.0.1", "port": 50001},
        "justMyCode": False,
    } == first
    assert second["name"].endswith("(tr), node-1 10.0.0.1:50002")
    assert [
        {"name": ALL, "configurations": [first["name"], second["name"]]}
    ] == got["compounds"]


def test_launch_check():
    """
    A check holds the sessions that wait; without any, there is nothing to
    start.
    """
    check = RayDebuggerCheck(checks=(), sessions=(session(50001),))

    assert 1 == len(launch_json(check)["configurations"])
    assert {"version": "0.2.0", "configurations": [], "compounds": []} == (
        launch_json([])
    )


def test_long_names():
    """
    However long names are, each configuration has one of its own.
    """
    long = [session(port, task="x" * 900) for port in (50001, 50002)]

    names = {c["name"] for c in launch_json(long)["configurations"]}

    assert 2 == len(names)
    assert all(len(name) < 300 for name in names)


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        ({}, None, None),
        ({"file": f"{UNPACKED}/a/train.py"}, None, UNPACKED),
        ({"file": "", "cwd": UNPACKED}, None, UNPACKED),
        ({"cwd": f"{UNPACKED}/deeper"}, None, UNPACKED),
        ({"cwd": UNPACKED}, {}, None),
        ({}, {"${workspaceFolder}": "/app"}, "/app"),
    ],
    ids=["same", "file", "folder", "deeper", "none", "given"],
)
def test_mappings(changes, given, expected):
    """
    A copy that Ray unpacked stands for the opened folder; all else lies at the
    same path, unless a mapping is given.
    """
    (got,) = launch_json([session(1, **changes)], path_mappings=given)[
        "configurations"
    ]

    pair = {"localRoot": "${workspaceFolder}", "remoteRoot": expected}
    assert ([pair] if expected else None) == got.get("pathMappings")


def test_merge(tmp_path):
    """
    What a user has there stays, in its order; what was ours is replaced.
    """
    path = tmp_path / "launch.json"
    theirs = {"name": "mine", "type": "debugpy", "args": ["ä"]}
    old = {
        "inputs": [1],
        "version": "0.1",
        "configurations": [{"name": f"{ALL} old"}, theirs, 7, {"name": 7}],
        "compounds": [{"name": "both"}, {"name": ALL}],
    }
    path.write_text(f"\ufeff{json.dumps(old)}", encoding="utf-8")
    path.chmod(0o640)

    write_launch_json(path, launch_json([session(50001)]))

    got = json.loads(path.read_text())
    assert ["inputs", "version", "configurations", "compounds"] == list(got)
    assert "0.1" == got["version"]
    assert [theirs, 7, {"name": 7}] == got["configurations"][:3]
    assert [ONE] == [c["name"] for c in got["configurations"][3:]]
    assert ["both", ALL] == [c["name"] for c in got["compounds"]]
    assert 0o640 == stat.S_IMODE(path.stat().st_mode)
    assert "ä" in path.read_text()


def test_again(tmp_path):
    """
    In a folder, it is the launch.json of its .vscode; written twice, nothing
    is there twice; at the end, nothing is left.
    """
    launch = launch_json([session(50001)])

    path = write_launch_json(tmp_path, launch)
    write_launch_json(path, launch)
    twice = json.loads(path.read_text())
    path.write_text('{"configurations": []}')
    write_launch_json(path, launch_json([]))

    assert tmp_path / ".vscode" / "launch.json" == path
    assert launch == twice
    assert {"configurations": [], "version": "0.2.0", "compounds": []} == (
        json.loads(path.read_text())
    )


def test_link(tmp_path):
    """
    A link stays one, and what it points to is written.
    """
    (tmp_path / "real.json").write_text("{}")
    link = tmp_path / "launch.json"
    link.symlink_to("real.json")

    write_launch_json(link, launch_json([session(50001)]))

    assert link.is_symlink()
    assert ONE in (tmp_path / "real.json").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"configurations": []} // mine', "perhaps for its comments"),
        ('{"configurations": [],}', "perhaps for its comments"),
        ("", "not plain JSON"),
        ("[]", "not a launch.json"),
        ("[" * 100000, "not plain JSON"),
        ('{"compounds": {}}', "'compounds' is not a list"),
        ("x" * (1 << 21), "cannot be read: larger than"),
    ],
    ids=["comment", "comma", "empty", "list", "deep", "compounds", "large"],
)
def test_refused(tmp_path, text, message):
    """
    What would be lost or is not understood is left as it is.
    """
    path = tmp_path / "launch.json"
    path.write_text(text)

    with pytest.raises(LaunchFileError, match=message) as caught:
        write_launch_json(path, launch_json([session(50001)]))

    assert text == path.read_text()
    assert caught.value.remedy


@pytest.mark.parametrize("kind", ["pipe", "no folder", "loop", "full disk"])
def test_not_written(tmp_path, monkeypatch, kind):
    """
    A pipe is not waited for; a folder that is none, a link that leads nowhere,
    and a full disk are errors.
    """
    path = tmp_path / "launch.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "no folder":
        path = tmp_path / "file" / "launch.json"
        path.parent.write_text("")
    elif kind == "loop":
        path.symlink_to("launch.json")
    else:

        def fail(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        monkeypatch.setattr(os, "replace", fail)
        monkeypatch.setattr(os, "rename", fail)

    with pytest.raises(LaunchFileError) as caught:
        write_launch_json(path, launch_json([session(50001)]))

    assert kind != "full disk" or "No space left" in str(caught.value)
