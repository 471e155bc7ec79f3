"""
What the tests of the documentation share: its blocks, and a job such as its
pages speak of.
"""

from __future__ import annotations

import re
import shutil
import textwrap

from pathlib import Path
from typing import NamedTuple

import pytest

from distdebug.flight_recorder import Sidecar, write_sidecar
from distdebug.testing import SimulatedJob, make_dumps


REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY / "tests" / "data"

# Where the pages say that dumps, logs, and the like lie.
DUMPS = ("dumps", "collected", "hang", "hangs", "shared/dumps", "shared/hang")
DUMPS += (
    "hangs-1234",
    "shared/hangs",
    "shared/job-17",
    "shared/job-17/stacks",
)
SESSIONS = ("ray-sessions", "ray-of-node-1", "ray-of-node-2", "tmp/ray")
SESSIONS += ("collected/node-12", "shared/logs-of-all-nodes")
LOGS = ("train.log", "job.log", "driver.log", "slurm-1234.out")
LOGS += ("logs/rank_0.log",)
LOGS += ("shared/logs/rank_0.log", "shared/job-17/logs/rank_0.log")
LOGS += ("running_logs/train.log", "running_logs/kimi25_3node.log")
STACKS = ("traces", "stacks")

# Files that a page writes down, for the commands and the Python of any page.
WRITTEN = {
    "job.yaml": ("catch-the-next-hang.md", "debug:"),
    "ourtrainer.toml": ("which-phase.md", "[framework]"),
    "our-rules.toml": ("logs.md", "[[rule]]"),
}

_LINE = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
)
_FENCE = re.compile(
    r"^(?P<indent>[ >]*)(?P<fence>`{3,})(?P<language>[^\s`]*)[^\n`]*\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
# Code within a sentence, which may go on in the next line.
_INLINE = re.compile(r"(?<!`)`([^`\n]{1,300}(?:\n[^`\n]{1,300})?)`(?!`)")


class Block(NamedTuple):
    """
    A piece of code in a page.

    Attributes:
        page: The name of the page, from the folder of the repository.

        line: Where it begins.

        language: What the fence says; ``""`` within a sentence.

        text: What stands there.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """
        Where it is, as an editor opens it.
        """
        return f"{self.page}:{self.line}"


def _blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    name = page.relative_to(REPOSITORY).as_posix()

    def line(found: re.Match[str]) -> int:
        return text.count("\n", 0, found.start()) + 1

    fenced = [
        Block(name, line(x), x["language"], textwrap.dedent(x["text"]))
        for x in _FENCE.finditer(text)
    ]
    # Lines keep their numbers.
    prose = _FENCE.sub(lambda x: re.sub(r"[^\n]", " ", x[0]), text)
    inline = [
        Block(name, line(x), "", x[1].replace("\n", " "))
        for x in _INLINE.finditer(prose)
    ]
    return fenced + inline


PAGES = {
    page.relative_to(REPOSITORY).as_posix(): _blocks(page)
    for page in [
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]
    if "_build" not in page.parts
}


def pytest_generate_tests(metafunc):
    """
    Ask for ``page`` to be run once for each.
    """
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES)


@pytest.fixture
def blocks(page):
    """
    The blocks of a page, and after them the code within its sentences.
    """
    return PAGES[page]


@pytest.fixture(name="all_blocks")
def of_all_pages():
    """
    Those of all pages.
    """
    return [block for blocks in PAGES.values() for block in blocks]


@pytest.fixture
def world(tmp_path, monkeypatch):
    """
    A folder with all that the pages speak of; the process works there.
    """
    job = _job()
    for name in DUMPS:
        _write_dumps(tmp_path / name, job)
    (tmp_path / "hang" / "node1").mkdir()
    (tmp_path / "hang" / "node1" / "node.json").write_text("{}")
    session = next((DATA / "ray_sessions" / "2.40.0" / "deaths").glob("s*"))
    for name in SESSIONS:
        shutil.copytree(session, tmp_path / name / "session_latest")
    for name in LOGS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{_LINE} 20 GiB\n", encoding="utf-8")
    for name in STACKS:
        shutil.copytree(DATA / "stacks", tmp_path / name)
    inspected = DATA / "recorders" / "nccl-inspector-2.30-verbose"
    shutil.copytree(inspected, tmp_path / "inspector")
    for name, (page, start) in WRITTEN.items():
        (tmp_path / name).write_text(_written(page, start), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Nor is what Ray left on this machine looked at.
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / SESSIONS[0]))
    return tmp_path


def _job() -> SimulatedJob:
    """
    Ranks 0, 1, and 3 wait for rank 2.
    """
    job = SimulatedJob(4)
    groups = [job.new_group(x, "mesh_dp") for x in ((0, 2), (1, 3))]
    for _ in range(3):
        job.wait(1)
        for group in (job.world, *groups):
            job.collective("all_reduce", group)
    job.collective("all_reduce", ranks=[0, 1, 3])
    job.wait(60)
    return job


def _write_dumps(folder: Path, job: SimulatedJob) -> None:
    for rank, dump in make_dumps(folder, job).items():
        sidecar = Sidecar(
            path="",
            rank=rank,
            world_size=len(job.records),
            host="node1",
            pid=4711 + rank,
            started=job.clock - 100,
            written=job.clock,
            reason="request",
            dump=dump.name,
            mesh=(("pp", 1), ("dp", 2), ("tp", 2)),
        )
        write_sidecar(sidecar, dump)


def _written(page: str, start: str) -> str:
    """
    The first block of a page that has *start* in it.
    """
    found = [
        block.text
        for name, blocks in PAGES.items()
        for block in blocks
        if name.endswith(page) and block.language and start in block.text
    ]
    assert found, f"{page} has no block with {start!r}"
    return found[0]
