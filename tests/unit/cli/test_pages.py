"""
What ``diagnose --html`` writes, and when.
"""

from __future__ import annotations

import os
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.__main__ import main
from distdebug.testing import SimulatedJob, make_dumps


SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture(name="dumps")
def _dumps(tmp_path):
    """
    A job of which one rank is missing.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce", ranks=[0, 2, 3])
    make_dumps(tmp_path / "dumps", job)
    return tmp_path / "dumps"


@pytest.mark.parametrize("command", ["diagnose x --html", "timeline x -o"])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "no name of a file"),
        (".", "is a folder"),
        ("none/x.json", "there is no folder"),
    ],
    ids=["empty", "folder", "nowhere"],
)
def test_no_place(command, name, complaint, capsys):
    """
    A file that cannot be written is told of before anything is read.
    """
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), name])

    assert 2 == caught.value.code
    assert complaint in capsys.readouterr().err


def test_no_jinja(monkeypatch, capsys):
    """
    So is a package that is missing.
    """
    monkeypatch.setitem(sys.modules, "jinja2", None)

    status = main(["diagnose", "no such dumps", "--html", "x.html"])

    assert 2 == status
    assert "needs jinja2" in capsys.readouterr().err


def test_nobody_reads(dumps, tmp_path):
    """
    The page is there also if whoever reads the diagnosis has gone.
    """
    pytest.importorskip("jinja2")
    page = tmp_path / "report.html"
    reading, writing = os.pipe()
    os.close(reading)

    subprocess.run(
        [sys.executable, "-m", "distdebug", "diagnose", dumps, "--html", page],
        stdout=writing,
        stderr=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    os.close(writing)

    assert "</html>" in page.read_text("utf-8")


def test_no_room_for_page(dumps, monkeypatch, capsys):
    """
    The diagnosis is printed also if its page cannot be written.
    """
    pytest.importorskip("jinja2")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distdebug.report.page.write_report", fail)

    status = main(["diagnose", str(dumps), "--html", str(dumps / "x.html")])

    told = capsys.readouterr()
    assert 2 == status
    assert "rank 1 never entered" in told.out
    assert "No space left" in told.err
