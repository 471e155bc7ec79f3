"""
``env``: what to export.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess

import pytest

from distdebug.__main__ import main


@pytest.fixture(autouse=True)
def environ(monkeypatch):
    """
    No variable is set yet.
    """
    for name in list(os.environ):
        if name.startswith(("TORCH_", "DISTDEBUG_")):
            monkeypatch.delenv(name)


@pytest.mark.process
def test_exports(tmp_path, capsys):
    """
    A shell that evaluates the output has the variables; the folder is there.
    """
    folder = tmp_path / "my dumps"

    status = main(["env", "--dump-dir", str(folder), "--torch", "2.13.0"])

    exports = capsys.readouterr().out
    shell = f"{exports}\nenv"
    got = subprocess.run(
        ["sh", "-c", shell], check=True, capture_output=True, text=True
    ).stdout
    assert 0 == status
    assert folder.is_dir()
    assert f"\nTORCH_FR_DUMP_TEMP_FILE={folder}/" in f"\n{got}"


def test_json(tmp_path, capsys):
    """
    As JSON every variable says what becomes of it, and why.
    """
    status = main(
        ["env", "--dump-dir", str(tmp_path), "--buffer-size", "7", "--json"]
    )

    got = json.loads(capsys.readouterr().out)
    assert 0 == status
    assert str(tmp_path) == got["dump_dir"]
    assert "7" in {v["value"] for v in got["variables"]}
    assert all(v["reason"] for v in got["variables"])


def test_warnings(tmp_path, capsys, monkeypatch):
    """
    What keeps recording from working is said beside the exports.
    """
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")

    assert 0 == main(["env", "--dump-dir", str(tmp_path)])
    assert "TORCH_FR_BUFFER_SIZE=0" in capsys.readouterr().err


def test_nonsense(tmp_path, capsys):
    """
    An option that makes no sense is refused.
    """
    argv = ["env", "--dump-dir", str(tmp_path), "--buffer-size", "0"]

    assert 2 == main(argv)
    assert "buffer_size" in capsys.readouterr().err


def test_installed_torch(tmp_path, capsys, monkeypatch):
    """
    The variables are those of the installed torch, or else of any.
    """

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    def told(*options):
        main(["env", "--dump-dir", str(tmp_path), "--json", *options])
        variables = json.loads(capsys.readouterr().out)["variables"]
        return {v["name"] for v in variables if v["action"] == "set"}

    old, new = told("--torch", "2.6.0"), told("--torch", "2.13.0")

    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.6.0")
    assert old == told()
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert old | new == told()
    assert old != new


@pytest.mark.parametrize("is_json", [False, True], ids=["shell", "JSON"])
def test_debugger(capsys, monkeypatch, is_json):
    """
    What lets ranks be debugged is printed alone.
    """
    monkeypatch.setenv("PYTHONPATH", "/my code")

    status = main(["env", "--debugger", *(["--json"] * is_json)])

    printed = capsys.readouterr().out
    assert 0 == status
    if is_json:
        assert "1" == json.loads(printed)["variables"]["DISTDEBUG"]
    else:
        assert "export DISTDEBUG=1\n" in printed
        assert printed.count("export ") == 3
        assert "on_path:/my code'\n" in printed


def test_post_mortem(capsys):
    """
    Waiting after a crash is a part of debugging, and of nothing else.
    """
    assert 2 == main(["env", "--post-mortem"])
    assert "--post-mortem goes with --debugger" in capsys.readouterr().err
