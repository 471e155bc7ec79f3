"""
Schedules: written, read, and compared.
"""

from __future__ import annotations

import json

import pytest

from distdebug.__main__ import main
from distdebug.errors import DumpError, ScheduleError
from distdebug.flight_recorder import (
    Schedule,
    ScheduledCall,
    compare_schedules,
    make_schedule,
    read_dumps,
    read_schedule,
)
from distdebug.testing import SimulatedJob, make_dumps


def schedule_of(*calls, ranks=(0, 1)):
    """
    A schedule of the same calls on some ranks; lines count up.
    """
    made = tuple(
        ScheduledCall(what, f"step (train.py:{line})")
        for line, what in enumerate(calls, start=1)
    )
    return Schedule(dict.fromkeys(ranks, made))


@pytest.fixture
def dumps(tmp_path):
    """
    The folder with the dumps of a job in which rank 3 makes one call less.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce")
    job.collective("all_gather", ranks=[0, 1, 2])
    make_dumps(tmp_path / "dumps", job)
    return tmp_path / "dumps"


def test_equal_ranks_and_calls_are_folded(dumps):
    """
    Each distinct list of calls is written once.
    """
    text = str(make_schedule(read_dumps(dumps)))

    assert text.startswith("# ")
    assert ["ranks 0-2", "rank 3"] == [
        line for line in text.splitlines() if line.startswith("rank")
    ]
    assert 2 == text.count("2 x nccl:all_reduce of 'default_pg': ")
    assert 1 == text.count("nccl:all_gather of 'default_pg': ")


def test_what_is_written_is_read(dumps, tmp_path):
    """
    The text holds all of the schedule.
    """
    schedule = make_schedule(read_dumps(dumps))
    file = tmp_path / "schedule.txt"
    file.write_text(str(schedule))

    again = read_schedule(file)

    assert schedule == again
    assert str(schedule) == str(again)


@pytest.mark.parametrize(
    ("kept", "new", "difference"),
    [
        ("ab", "ab", None),
        ("ab", "axb", "call 2 is new: x at {2}"),
        ("ab", "abb", "call 3 is new: b at {3}"),
        ("axb", "ab", "call 2 is missing, after a at {1}: x at {2}"),
        ("xa", "a", "call 1 is missing: x at {1}"),
        ("ab", "ac", "call 2 is c at {2}, and was b at {2}"),
    ],
)
def test_the_first_difference_is_named(kept, new, difference):
    """
    Lines of code are not compared.
    """
    differences = compare_schedules(schedule_of(*kept), schedule_of(*new))

    places = [f"step (train.py:{line})" for line in range(4)]
    text = difference and f"ranks 0-1: {difference.format(*places)}"
    assert (() if text is None else (text,)) == differences


def test_ranks_that_only_one_has():
    """
    More and fewer ranks are differences, too.
    """
    kept = schedule_of("a", ranks=[0, 1])
    new = schedule_of("a", ranks=[1, 2])

    assert (
        "rank 0: no calls recorded",
        "rank 2: not in the schedule",
    ) == compare_schedules(kept, new)


def test_a_ring_that_lost_calls_is_refused(tmp_path):
    """
    A schedule holds all calls, or there is none.
    """
    job = SimulatedJob(2)
    for _ in range(8):
        job.collective("all_reduce")
    make_dumps(tmp_path, job, ring=4)

    with pytest.raises(DumpError, match="ranks 0-1 do not hold all"):
        make_schedule(read_dumps(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "no schedule",
        "  all_reduce of 'g': [1] Float",
        "ranks 0-3\n  999999999 x a",
        "ranks 0-99999999999",
        "\xff",
    ],
)
def test_other_files_are_refused(tmp_path, text):
    """
    The error names the file.
    """
    file = tmp_path / "kept.txt"
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(ScheduleError, match=r"kept\.txt"):
        read_schedule(file)


def test_the_command_writes_and_checks(dumps, tmp_path, capsys):
    """
    It exits with 1 if the schedule differs, and says where.
    """
    kept = tmp_path / "kept.txt"

    assert 0 == main(["schedule", str(dumps), "-o", str(kept)])
    assert 0 == main(["schedule", str(dumps), "--check", str(kept)])
    kept.write_text(kept.read_text().replace("all_gather", "broadcast"))
    assert 1 == main(["schedule", str(dumps), "--check", str(kept)])
    assert "ranks 0-2: call 3 is nccl:all_gather" in capsys.readouterr().out


def test_json(dumps, tmp_path, capsys):
    """
    As JSON, the schedule is folded as in the text, and so are differences.
    """
    kept = tmp_path / "kept.txt"

    assert 0 == main(["schedule", str(dumps), "--json", "-o", str(kept)])
    first, last = json.loads(capsys.readouterr().out)["schedule"]
    kept.write_text(kept.read_text().replace("all_gather", "broadcast"))
    assert 1 == main(["schedule", str(dumps), "--json", "--check", str(kept)])
    data = json.loads(capsys.readouterr().out)

    assert ([0, 1, 2], [3]) == (first["ranks"], last["ranks"])
    assert [2, 1] == [call["count"] for call in first["calls"]]
    assert first["calls"][1]["what"].startswith("nccl:all_gather of ")
    assert "schedule" == data["command"]
    (difference,) = data["differences"]
    assert difference.startswith("ranks 0-2: call 3 is nccl:all_gather")
