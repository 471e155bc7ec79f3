"""
What the tutorial of the debugger shows is what one sees.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time

from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.debugger import connect, run_shell
from distdebug.errors import DebuggerError


pytest.importorskip("torch.distributed")

SOURCE = Path(distdebug.__file__).parents[1]
PAGE = (
    Path(__file__).parents[2] / "docs" / "tutorial" / "debug-four-ranks.md"
).read_text(encoding="utf-8")
PROMPT = re.compile(r"(distdebug> |\(rank \d\) |\$ (?=distdebug ))")
ROW = re.compile(r"(#\d+)? +job +(\d) .* train\.py:(\d+)")
PATIENCE_S = 120


def steps():
    """
    The prompts of the page, what is typed there, and what is shown then.
    """
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if match := PROMPT.match(line):
                found.append((match[0], line[match.end() :], []))
            elif found:
                found[-1][2].append(line)
    return found


def places(lines):
    """
    Which ranks are stopped, and at which line, according to a table.
    """
    rows = filter(None, map(ROW.match, lines))
    return {int(m[2]): (m[1] is not None, int(m[3])) for m in rows}


def wait_for(folder, wanted, job):
    """
    Wait until the ranks are where the page says.
    """
    end = time.monotonic() + PATIENCE_S
    found = {}
    while found != wanted:
        assert time.monotonic() < end, found
        assert job.poll() is None
        time.sleep(0.1)
        with contextlib.suppress(DebuggerError), connect(folder) as client:
            found = {
                p.rank: (
                    p.is_stopped,
                    p.sessions[0].line if p.sessions else p.line,
                )
                for p in client.list()
            }


@pytest.fixture
def job(tmp_path):
    """
    The program of the page, under torchrun.
    """
    (program,) = re.findall(
        r"as `train\.py`.*?```python\n(.*?)```", PAGE, re.DOTALL
    )
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = subprocess.Popen(
        [*command, "--nproc-per-node", "4", "train.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "DISTDEBUG_DIR": str(tmp_path / "s"),
        },
    )
    yield job
    family = [job]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += psutil.Process(job.pid).children(recursive=True)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.wait(PATIENCE_S)


def test_page(job, tmp_path):
    """
    Each command of the page gives the lines that stand there, in that order.
    """
    (_, _, opening), *todo = steps()
    folder = tmp_path / "s"
    wait_for(folder, places(opening), job)
    shown, prompts = [[]], []
    left = iter(todo)

    def ask(prompt):
        prompts.append(prompt)
        _, line, expected = next(left)
        if table := places(expected):
            wait_for(folder, table, job)
        shown.append([])
        return line

    def show(text):
        plain = text.replace(str(tmp_path), "…")
        shown[-1] += plain.splitlines()

    with connect(folder, timeout_s=20) as client:
        run_shell(client, ask=ask, show=show)

    assert [prompt for prompt, _, _ in todo] == prompts
    for (_, line, expected), found in zip(steps(), shown, strict=True):
        rest = iter(found)
        for wanted in expected:
            if wanted.strip() != "…":
                assert wanted in rest, (line, wanted, found)
    assert 0 != job.wait(PATIENCE_S)
