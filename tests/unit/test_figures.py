"""
The figures in the documentation are those that its commands printed.
"""

from __future__ import annotations

import re

from pathlib import Path

import pytest

from figures import FIGURES, RUNS


PAGE = Path(FIGURES).with_name("evidence.md").read_text()


@pytest.mark.parametrize("name", [x.stem for x in FIGURES.iterdir()])
def test_figure(name):
    """
    Each is on the page, and says its command, its day, and its machine.
    """
    command, circumstances, *lines = (
        (FIGURES / f"{name}.txt").read_text().splitlines()
    )

    assert f"figures/{name}.txt" in PAGE
    assert _without_day(RUNS[name].command) == _without_day(command[2:])
    assert re.match(
        r"# 20\d\d-\d\d-\d\d, commit \w+.*, Python 3", circumstances
    )
    assert lines


def _without_day(command):
    return re.sub(r"--seed \d{8}", "--seed DAY", command)
