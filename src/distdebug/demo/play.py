"""
How does one go from a job that hangs to the name of the culprit?
"""

from __future__ import annotations

import os
import shutil
import tempfile

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import attrs

from ..capture.node import capture_node
from ..diagnosis import diagnose
from ..errors import DistdebugError, MissingDependencyError
from ..findings import Diagnosis
from ..flight_recorder.request import request_dumps
from .job import TrainingJob, start_job, watch_job
from .scenarios import Scenario


__all__ = ["Demo", "play_demo"]

PROGRAMS = Path(__file__).parent / "programs"


@attrs.frozen(kw_only=True)
class Demo:
    """
    What was planted, and what was found.

    Attributes:
        scenario: What was planted.

        folder: Where the program, its log, dumps, and stacks are.

        diagnosis: What was found.

        is_found: Whether it is what was planted.
    """

    scenario: Scenario
    folder: Path
    diagnosis: Diagnosis
    is_found: bool


def play_demo(
    scenario: Scenario,
    *,
    folder: Path | None = None,
    ranks: int = 4,
    tell: Callable[[str], object] = lambda _: None,
) -> Demo:
    """
    Start a job in which something is wrong, watch it, and diagnose it.

    Args:
        scenario: What is wrong.

        folder: Where everything goes, empty or not there yet; by default a
            new temporary folder.  It is kept.

        ranks: How many processes; even.

        tell: Is called with one line when something has happened.

    Returns:
        What was found.  The job has ended.

    Raises:
        MissingDependencyError: torch is not installed.

        DistdebugError: The folder is not empty, or the job did not start.
    """
    if find_spec("torch") is None:
        msg = "the demo needs torch, which is not installed"
        raise MissingDependencyError(
            msg, remedy="pip install torch (one for CPUs is enough)"
        )

    root = _make_folder(folder)
    program, dumps = root / f"{scenario.name}.py", root / "dumps"
    # Copied, because users want to read what runs, and because a line in
    # an installed package does not look like one of theirs.
    shutil.copyfile(PROGRAMS / program.name, program)
    tell(f"starting {ranks} processes of {program.name} with torchrun")
    printed = None
    with start_job(program, dumps, ranks) as job:
        outcome = watch_job(job, tell=tell)
        if outcome == "ended":
            tell("the job has ended by itself")
        else:
            how = "is stuck" if outcome == "stuck" else "is running"
            tell(f"the job {how}: asking every rank for its dump")
            _collect(job, dumps, root / "stacks", tell)
            printed = _size(root / "job.log")

    # What it printed when it was ended is our own doing.
    if printed is not None:
        os.truncate(root / "job.log", printed)
    _remove_pipes(root)
    diagnosis = diagnose(root)
    return Demo(
        scenario=scenario,
        folder=root,
        diagnosis=diagnosis,
        is_found=scenario.is_found_by(diagnosis, ranks),
    )


def _make_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="distdebug-demo-"))

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as exc:
        msg = f"cannot use this folder: {exc}"
        raise DistdebugError(msg, remedy="choose another folder") from exc
    if not is_empty:
        msg = f"{folder} is not empty"
        raise DistdebugError(msg, remedy="choose a folder that is not there")

    return folder.resolve()


def _size(log: Path) -> int | None:
    return log.stat().st_size if log.exists() else None


def _remove_pipes(folder: Path) -> None:
    # Nobody will ever answer, and ``grep -r`` would wait for it.
    for path in folder.rglob("*"):
        if path.is_fifo():
            path.unlink()


def _collect(
    job: TrainingJob,
    dumps: Path,
    stacks: Path,
    tell: Callable[[str], object],
) -> None:
    rows = request_dumps(dumps)
    done = sum(row.status == "dumped" for row in rows)
    tell(f"{done} of {len(rows)} ranks wrote a dump")
    pids = [process.pid for process in job.processes()]
    captured = capture_node(stacks, pids=pids, interval_s=0.5)
    done = len(pids) - len(captured.missing)
    tell(f"{done} of {len(pids)} stacks captured")
    if captured.missing:
        # One is told; the reason is mostly the same for all.
        first = captured.missing[0]
        tell(f"no stack of {first.source}: {first.reason}")
