"""
Programs that are written from dumps; that they hang is shown by running them, in
``tests/integration/test_replay.py``.
"""

from __future__ import annotations

import ast
import json

import pytest

from distdebug import write_replay
from distdebug.__main__ import main
from distdebug.errors import DumpError, NoDumpsError, OutputError
from distdebug.flight_recorder import make_replay
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(name="dumps")
def _dumps(tmp_path):
    """
    Dumps of 16 ranks, of which rank 9 is absent from a call of its pair.
    """
    job = SimulatedJob(16)
    pairs = [job.new_group([n, n + 1]) for n in range(0, 16, 2)]
    for _ in range(6):
        job.collective("all_reduce")
        for pair in pairs:
            job.collective("_all_gather_base", pair, sizes=((50_000,),))
    job.collective("all_reduce")
    job.collective("_all_gather_base", pairs[4], ranks=[8], sizes=((50_000,),))
    make_dumps(tmp_path / "dumps", job)
    return tmp_path / "dumps"


def constants_of(text):
    """
    The tables of a program.
    """
    tree = ast.parse(text)
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.isupper()
    }


def test_folded(dumps):
    """
    Only ranks and calls around the fault are in it; tensors are small, and there
    is no more text than one can read.
    """
    made = make_replay(dumps)

    known = constants_of(made.text)
    call = ("all_gather", "5", 4097, "float32")
    assert (8, 9) == made.ranks
    assert {"5": [0, 1]} == known["GROUPS"]
    assert {(0,): [call] * 3, (1,): [call] * 2} == known["CALLS"]
    assert "ENDS, AHEAD = {1: 'is elsewhere'}, False" in made.text
    assert len(made.text.splitlines()) <= 60
    assert "rank 9 never entered _all_gather_base #7" in ast.get_docstring(
        ast.parse(made.text)
    )


def test_long_ago(tmp_path):
    """
    Of a fault of long ago, only the first calls are replayed; sizes that differ do
    so in the program.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce", ranks=[0, 1, 2], sizes=((70_000,),))
    job.collective("all_reduce", ranks=[3], sizes=((70_509,),))
    for _ in range(400):
        job.collective("all_reduce")
    make_dumps(tmp_path, job)

    known = constants_of(make_replay(tmp_path).text)

    sizes = {calls[0][2] for calls in known["CALLS"].values()}
    assert {4097, 4098} == sizes
    assert all(len(calls) == 12 for calls in known["CALLS"].values())


def test_rings(tmp_path):
    """
    Where rings begin at different calls, all ranks begin with the same one.
    """
    job = SimulatedJob(4)
    pair = job.new_group([0, 1])
    for _ in range(300):
        job.collective("all_reduce")
    for _ in range(900):
        job.collective("all_reduce", pair)
    job.collective("all_reduce", ranks=[0, 1, 3])
    make_dumps(tmp_path, job, ring=50)

    made = make_replay(tmp_path)

    calls = constants_of(made.text)["CALLS"]
    absent = made.ranks.index(2)
    counts = {rank: len(own) for ranks, own in calls.items() for rank in ranks}
    assert counts.pop(absent) == 0
    assert {*counts.values()} == {1}


@pytest.mark.parametrize("missing", [[2], [0, 1]])
def test_no_dump(tmp_path, missing):
    """
    A rank without a dump makes the calls that others saw complete; the others are
    ranks with dumps.
    """
    job = SimulatedJob(5)
    for _ in range(6):
        job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3, 4])
    make_dumps(tmp_path, job, missing=missing)

    made = make_replay(tmp_path)

    calls = constants_of(made.text)["CALLS"]
    counts = {
        made.ranks[rank]: len(own)
        for ranks, own in calls.items()
        for rank in ranks
    }
    assert 2 == counts.pop(2)
    assert {3} == {*counts.values()}
    assert not {0, 1}.intersection(missing) or {3, 4} == {*counts}


def test_root(tmp_path):
    """
    Of a call with a root, which is not on record, all wait for an absent rank.
    """
    job = SimulatedJob(3)
    job.collective("broadcast")
    job.collective("broadcast", ranks=[0, 1])
    make_dumps(tmp_path, job)

    text = make_replay(tmp_path).text

    assert "root = next((r for r in members if r in ENDS), members[0])" in text
    assert "ENDS, AHEAD = {2: 'is elsewhere'}, False" in text


def test_hostile(tmp_path):
    """
    What stands in a dump is data in the program, and nothing else.
    """
    name = 'x"""\nimport os; os.abort()\n"""\\'
    job = SimulatedJob(3)
    group = job.new_group([0, 1, 2], name)
    job.collective("all_reduce", group)
    job.collective(name, group, ranks=[0, 1])
    make_dumps(tmp_path, job)

    tree = ast.parse(make_replay(tmp_path).text)

    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "abort"
    ]


def test_write(dumps, tmp_path, capsys):
    """
    The command writes it, and says how to run it.
    """
    path = tmp_path / "hang.py"

    assert 0 == main(["replay", str(dumps), "-o", str(path)])

    assert make_replay(dumps).text == path.read_text("utf-8")
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: plays ranks 8-9 of the job",
        f"run it: torchrun --nproc-per-node 2 {path}",
        "run it until it hangs, and diagnose that: add --run",
    ]
    assert 0 == main(["replay", str(dumps), "-o", str(path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (str(path), [8, 9]) == (told["path"], told["ranks"])


def test_nothing_wrong(tmp_path, capsys):
    """
    Dumps of a healthy job, or none, are refused, as is a place that cannot be
    written.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    make_dumps(tmp_path, job)

    with pytest.raises(DumpError, match="nothing to replay: nothing is stuck"):
        make_replay(tmp_path)
    with pytest.raises(NoDumpsError):
        write_replay(tmp_path / "none", tmp_path / "repro.py")
    assert 2 == main(["replay", str(tmp_path)])
    assert "nothing to replay" in capsys.readouterr().err


def test_no_output(dumps, tmp_path):
    """
    A place that cannot be written is named.
    """
    with pytest.raises(OutputError, match=r"repro\.py"):
        write_replay(dumps, tmp_path / "none" / "repro.py")
