"""
A timeline of a real job over Gloo.
"""

import os
import subprocess
import sys

from pathlib import Path

import pytest

from tests.timelines import read_timeline

from distdebug import read_dumps, write_timeline


PROGRAM = Path(__file__).parent / "programs" / "timeline_rank.py"
RANKS = 3
CALLS = 12


@pytest.fixture(name="dumps", scope="module")
def _dumps(tmp_path_factory):
    """
    The dumps of three ranks, of which rank 1 is slow and then absent.
    """
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("job")
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, folder],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [rank.stdout.readline() for rank in ranks]
        assert RANKS * ["ready\n"] == said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return folder / "dumps"


def test_every_call_is_drawn(dumps, tmp_path):
    """
    Every record of the real dumps is one slice, in one process per rank.
    """
    made = write_timeline(dumps, tmp_path / "t.json.gz")

    drawn = read_timeline(tmp_path / "t.json.gz")
    expected = sum(len(dump.entries) for dump in read_dumps(dumps))
    assert expected == made.slices == len(drawn.slices)
    assert RANKS == len(drawn.processes)
    host = os.uname().nodename
    assert {f"rank {r} ({host})" for r in range(RANKS)} == set(
        drawn.processes.values()
    )


def test_the_slow_rank_is_marked(dumps, tmp_path):
    """
    The rank that sleeps is the last to arrive, nearly always; the others
    wait for as long as it sleeps.
    """
    write_timeline(dumps, tmp_path / "t.json")

    drawn = read_timeline(tmp_path / "t.json")
    late = [m["pid"] for m in drawn.marks if m["name"] == "arrived last"]
    assert late.count(1) >= CALLS - 4
    waits = sorted(
        s["dur"] / 1000
        for s in drawn.slices
        if s["pid"] == 0 and s["name"] == "all_reduce"
    )
    assert waits[len(waits) // 2] > 50


def test_the_absent_rank_is_marked(dumps, tmp_path):
    """
    Who waits is not complete, and who does not come is told so.
    """
    made = write_timeline(dumps, tmp_path / "t.json")

    drawn = read_timeline(tmp_path / "t.json")
    is_open = [s["pid"] for s in drawn.slices if "not complete" in s["name"]]
    assert [0, 2] == sorted(is_open)
    assert 2 == made.open
    absent = {m["pid"] for m in drawn.marks if m["name"] == "did not arrive"}
    # A dump that was taken at once may show nothing but a job that runs.
    assert absent <= {1}


def test_from_a_shell(dumps, tmp_path):
    """
    The command writes the same file.
    """
    file = tmp_path / "t.json"
    done = subprocess.run(
        [sys.executable, "-m", "distdebug", "timeline", dumps, "-o", file],
        capture_output=True,
        text=True,
        check=True,
    )
    write_timeline(dumps, tmp_path / "u.json")

    assert (tmp_path / "u.json").read_bytes() == file.read_bytes()
    assert "not complete" in done.stdout
