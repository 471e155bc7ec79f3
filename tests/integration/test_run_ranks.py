"""
Functions on local ranks without *pytest*: how they end, and what is left.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
import time

import pytest

from distdebug.errors import DistdebugError
from distdebug.testing import run_ranks


pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed",
    ),
    pytest.mark.process,
]


def run(tmp_path, function, **options):
    """
    Run a function of this module on two ranks.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    here = {sys.modules[__name__]}
    return folder, run_ranks(
        function, 2, folder=folder, modules=here, timeout_s=20.0, **options
    )


def agree(expected):
    """
    Sum the ranks, and compare.
    """
    import torch.distributed as dist

    total = torch_of(dist.get_rank())
    dist.all_reduce(total)
    print("the sum is", int(total))
    assert expected == int(total)


def torch_of(value):
    """
    Return a tensor.
    """
    import torch

    return torch.tensor(value)


def test_success_leaves_nothing(tmp_path):
    """
    Ranks that return have no failure, and their folder is removed.
    """
    folder, outcome = run(tmp_path, agree, arguments={"expected": 1})

    assert not outcome.failure
    assert {0: "the sum is 1\n", 1: "the sum is 1\n"} == outcome.outputs
    assert ["returned"] * 2 == [x.kind for x in outcome.ends.values()]
    assert not folder.exists()


def test_failure_without_pytest(tmp_path, monkeypatch):
    """
    Where *pytest* is not installed, the traceback is Python's own, and the
    evidence is kept.
    """
    lost = tmp_path / "lost"
    lost.mkdir()
    lost.joinpath("pytest.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(lost)

    folder, outcome = run(tmp_path, agree, arguments={"expected": 2})

    assert outcome.failure.startswith("rank ")
    assert "AssertionError" in outcome.failure.splitlines()[0]
    assert "Traceback (most recent call last)" in outcome.failure
    assert "assert expected == int(total)" in outcome.failure
    assert f"the evidence is in {folder}" in outcome.failure
    assert [*folder.glob("dumps/*")]


def generate():
    """
    Do nothing when called.
    """
    yield


@pytest.mark.parametrize(
    ("function", "count", "timeout_s", "message"),
    [
        (agree, 0, 60.0, "on 0 ranks"),
        (agree, 2, math.nan, "for nan s"),
        (generate, 2, 60.0, "generator function"),
    ],
)
def test_nothing_to_run(function, count, timeout_s, message):
    """
    What would run on no rank, without a limit, or not at all is refused.
    """
    with pytest.raises(DistdebugError, match=message):
        run_ranks(function, count, timeout_s=timeout_s)


class Odd:
    """
    Is called, but has neither code nor an end of what it wraps.
    """

    def __getattr__(self, name):
        if name == "__wrapped__":
            return self
        raise AttributeError(name)

    def __call__(self):
        raise ValueError("x" * (1 << 25))


def test_odd_functions_are_described(tmp_path):
    """
    The exception is known of a function without code, and of any size.
    """
    _, outcome = run(tmp_path, Odd())

    assert outcome.failure.startswith("rank ")
    assert "ValueError: xxx" in outcome.failure[:100]
    assert ["raised"] * 2 == [x.kind for x in outcome.ends.values()]
    assert len(outcome.failure) < 1 << 23


def linger():
    """
    Return, but keep the process from ending.
    """
    threading.Thread(target=time.sleep, args=(500,)).start()


def test_a_process_that_does_not_end(tmp_path):
    """
    The failure does not blame the time limit of the function.
    """
    _, outcome = run(tmp_path, linger)

    assert (
        "returned on all ranks, but ranks 0-1 did not end" in outcome.failure
    )
    assert "the time limit" not in outcome.failure


def test_a_folder_in_use(tmp_path):
    """
    A folder that has files is refused, and keeps them.
    """
    kept = tmp_path / "mine.txt"
    kept.write_text("")

    with pytest.raises(DistdebugError, match="is not empty"):
        run_ranks(agree, 2, folder=tmp_path)

    assert kept.exists()
