"""
``distdebug timeline``.
"""

from __future__ import annotations

import json

import pytest

from tests.timelines import read_timeline

from distdebug.__main__ import main
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(name="dumps")
def _dumps(tmp_path):
    """
    Two ranks and two groups.
    """
    job = SimulatedJob(2)
    for _ in range(3):
        job.collective("all_reduce")
        job.collective("broadcast", job.new_group([0, 1], "dp"))
    make_dumps(tmp_path / "dumps", job)
    return tmp_path / "dumps"


def test_writes(dumps, tmp_path, capsys):
    """
    The file is written, and what is in it is said.
    """
    file = tmp_path / "t.json.gz"

    status = main(["timeline", str(dumps), "-o", str(file)])

    assert 0 == status
    assert 12 == len(read_timeline(file).slices)
    assert "12 calls of ranks 0-1" in capsys.readouterr().out


def test_default_name(dumps, tmp_path, monkeypatch):
    """
    Without a name, it is written to where the command is run.
    """
    monkeypatch.chdir(tmp_path)

    main(["timeline", str(dumps)])

    assert (tmp_path / "timeline.json.gz").exists()


def test_choice(dumps, tmp_path, capsys):
    """
    Ranks, groups, and the newest calls can be chosen.
    """
    file = tmp_path / "t.json"
    choice = ["--ranks", "1", "--groups", "default_pg", "--last", "2"]

    main(["timeline", str(dumps), "-o", str(file), "--json", *choice])

    data = json.loads(capsys.readouterr().out)
    assert ("timeline", 2, [1], 4) == (
        data["command"],
        data["slices"],
        data["ranks"],
        data["records_left_out"],
    )
    assert {(1, 2), (1, 3)} == {
        (s["pid"], s["args"]["seq"]) for s in read_timeline(file).slices
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ranks", "7"], "selects no rank"),
        (["--groups", "tp"], "no process group 'tp'"),
        (["-o", "t.svg"], "no format of timelines"),
    ],
    ids=["ranks", "groups", "format"],
)
def test_refused(dumps, capsys, args, message):
    """
    What makes no sense is refused, with what to do instead.
    """
    status = main(["timeline", str(dumps), *args])

    assert 2 == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_last_is_a_number(dumps, capsys, number):
    """
    None of the newest calls are no choice.
    """
    with pytest.raises(SystemExit):
        main(["timeline", str(dumps), "--last", number])

    assert "number above zero" in capsys.readouterr().err
