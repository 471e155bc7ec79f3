"""
``diagnose`` and ``analyze`` on the dumps of simulated jobs, and the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.__main__ import main
from distdebug.testing import SimulatedJob, make_dumps


SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture
def healthy(tmp_path):
    """
    The dumps of a job in which all is well.
    """
    job = SimulatedJob(2)
    for _ in range(3):
        job.collective("all_reduce")
    make_dumps(tmp_path, job)
    return str(tmp_path)


@pytest.mark.parametrize("command", ["diagnose", "analyze"])
class TestBoth:
    def test_text(self, command, stuck, capsys):
        """
        The verdict comes first, and something was found.
        """
        status = main([command, stuck])

        first = capsys.readouterr().out.splitlines()[0]
        assert 1 == status
        assert "rank 2 never entered all_reduce #2" in first

    def test_json(self, command, stuck, capsys):
        """
        JSON has the agreed layout.
        """
        status = main([command, "--json", stuck])

        got = json.loads(capsys.readouterr().out)
        assert 1 == status
        assert command == got["command"]
        assert ("rank_not_arrived", [2]) == (
            got["verdict"]["cause"],
            got["verdict"]["ranks"],
        )
        assert [0, 1, 3] == got["victims"]
        assert {"findings", "missing", "groups"} <= set(got)

    def test_healthy(self, command, healthy, capsys):
        """
        Where nothing is wrong, the status says so.
        """
        assert 0 == main([command, healthy])
        assert "cause: healthy" in capsys.readouterr().out

    def test_nothing_there(self, command, tmp_path, capsys):
        """
        Where there is nothing to look at, nothing is said to be well.
        """
        assert 2 == main([command, str(tmp_path)])
        got = capsys.readouterr()
        assert "" == got.out
        assert "Try: " in got.err


class TestFilters:
    def test_ranks(self, stuck, capsys):
        """
        Ranks are chosen in either way of writing.
        """
        assert 1 == main(["analyze", stuck, "--ranks", "ranks(2)"])
        assert 1 == main(["analyze", stuck, "--ranks", "1-2"])

    def test_groups(self, stuck, capsys):
        """
        Groups are chosen by name or description.
        """
        assert 1 == main(["analyze", stuck, "--groups", "default_pg, 0"])

    @pytest.mark.parametrize(
        ("option", "text"),
        [
            ("--ranks", "7"),
            ("--ranks", "ranks(tp=0)"),
            ("--ranks", "ranks("),
            ("--groups", "nonsense"),
            ("--groups", "0,nonsense"),
        ],
    )
    def test_nobody(self, option, text, stuck, capsys):
        """
        A choice of no rank is a mistake, and not a healthy job.
        """
        assert 2 == main(["analyze", stuck, option, text])
        assert "Try: " in capsys.readouterr().err


class TestEntries:
    def test_tables(self, stuck, capsys):
        """
        Each rank has its table, each call a row.
        """
        assert 0 == main(["analyze", stuck, "--entries", "--ranks", "0,2"])

        lines = capsys.readouterr().out.splitlines()
        assert ["rank 0", "rank 2"] == [x for x in lines if "rank" in x]
        assert 3 == sum("nccl:all_reduce #" in line for line in lines)

    def test_stacks(self, stuck, capsys):
        """
        The stack of a call stands below it.
        """
        assert 0 == main(["analyze", stuck, "--stack-traces", "--ranks", "2"])

        lines = capsys.readouterr().out.splitlines()
        assert lines[2].startswith("0 ")
        assert lines[3].startswith("    ")

    def test_json(self, stuck, capsys):
        """
        As JSON there is one line per call.
        """
        assert 0 == main(["analyze", stuck, "--entries", "--json"])

        rows = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
        assert 7 == len(rows)
        assert (0, "nccl:all_reduce", 1, False) == tuple(
            rows[0][key] for key in ("rank", "op", "seq", "p2p")
        )


class TestPage:
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
    def test_no_place(self, command, name, complaint, capsys):
        """
        A file that cannot be written is refused before anything is read.
        """
        with pytest.raises(SystemExit) as caught:
            main([*command.split(), name])

        assert 2 == caught.value.code
        assert complaint in capsys.readouterr().err

    @pytest.mark.process
    def test_nobody_reads(self, stuck, tmp_path):
        """
        The page is there also if the reader of the diagnosis has gone.
        """
        page = tmp_path / "report.html"
        reading, writing = os.pipe()
        os.close(reading)

        subprocess.run(
            [
                sys.executable,
                "-m",
                "distdebug",
                "diagnose",
                stuck,
                "--html",
                page,
            ],
            stdout=writing,
            stderr=subprocess.DEVNULL,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )
        os.close(writing)

        assert "</html>" in page.read_text("utf-8")

    def test_no_room_for_page(self, stuck, tmp_path, monkeypatch, capsys):
        """
        The diagnosis is printed also if its page cannot be written.
        """

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", fail)

        status = main(["diagnose", stuck, "--html", str(tmp_path / "x.html")])

        told = capsys.readouterr()
        assert 2 == status
        assert "rank 2 never entered" in told.out
        assert "No space left" in told.err
        assert not (tmp_path / "x.html").exists()
