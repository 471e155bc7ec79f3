"""
Run jobs with faults, take a snapshot of each, and judge the verdicts.

``python -m tests.jobs [NAME …]`` runs each program of ``programs`` with torchrun,
as it is and with its calls on record, and takes a snapshot as somebody would who
has never seen it; what the launcher printed goes to the diagnosis, too.  A line
``# expect:`` says which ranks are at fault (behind ``|`` stands what else is right,
as stacks alone may not tell more), which causes are right, and whether a line marked
``HERE`` must be named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil


PROGRAMS = Path(__file__).parent / "programs"
RECORD = "import distdebug; distdebug.enable_flight_recorder()\n"
_RANKS = 3
# Importing torch takes each rank longer than this.
_LEAST_START_S = 3.0
# A job stands still if it uses this share of a processor for so many seconds.
_STILL_SHARE, _STILL_S = 0.05, 6


@attrs.frozen
class Expected:
    """
    What is to be said of a job.

    Attributes:
        ranks: The ranks at fault, in each right way; empty for a healthy job.

        causes: Causes that are right, of the verdict or of its detail.

        lines: The lines of which one must be named; empty if none must.
    """

    ranks: tuple[tuple[int, ...], ...]
    causes: frozenset[str]
    lines: frozenset[int] = frozenset()


@attrs.frozen
class Outcome:
    """
    What was said of a job.

    Attributes:
        wrong: What of it is wrong: ``"cause"``, ``"ranks"``, ``"line"``.

        summary: The first sentence.
    """

    name: str
    mode: str
    wrong: tuple[str, ...]
    summary: str


def parse_expected(text: str) -> Expected:
    """
    Parse what a program says of itself.
    """
    (found,) = re.findall(r"^# expect: (.+)$", text, re.MULTILINE)
    if found == "none":
        return Expected((), frozenset({"healthy", "progressing"}))
    ranks, causes, line = found.split("; ")
    numbered = enumerate(text.split("\n"), 1)
    marked = frozenset(n for n, x in numbered if "# HERE" in x)
    ways = ranks.removeprefix("ranks ").split("|")
    return Expected(
        tuple(tuple(map(int, way.split())) for way in ways),
        frozenset(causes.split()[1:]),
        marked if line == "line" else frozenset(),
    )


def missing_packages(text: str) -> list[str]:
    """
    Return the packages that a program imports, and that are not installed.
    """
    names = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    return sorted({x for x in names if importlib.util.find_spec(x) is None})


def judge(expected: Expected, verdict: dict[str, Any]) -> tuple[str, ...]:
    """
    Return what of a verdict is wrong.
    """
    causes = {verdict["cause"], verdict["detail_cause"]}
    wrong = [] if causes & expected.causes else ["cause"]
    if expected.ranks and tuple(verdict["ranks"]) not in expected.ranks:
        wrong.append("ranks")
    location = verdict["location"] or {}
    if expected.lines and location.get("line") not in expected.lines:
        wrong.append("line")
    return tuple(wrong)


def run(program: Path, mode: str, seconds: float, keep: Path) -> Outcome:
    """
    Run one job, and take its snapshot while it hangs.
    """
    folder = keep / f"{program.stem}.{mode}"
    folder.mkdir(parents=True)
    copy = folder / "train.py"
    prologue = RECORD if mode == "prepared" else "\n"
    text = prologue + program.read_text()
    copy.write_text(text)
    dumps = folder / "dumps"
    environ = {
        **os.environ,
        "DISTDEBUG_DUMP_DIR": str(dumps),
        "OMP_NUM_THREADS": "1",
        "WORK": str(folder),
    }
    launch = ["-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(_RANKS), str(copy)]
    with (folder / "train.log").open("w") as log:
        job = subprocess.Popen(
            [sys.executable, *launch],
            cwd=folder,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until_still(job, seconds)
        asked = ["--dump-dir", str(dumps)] if mode == "prepared" else []
        asked += ["--pattern", re.escape(str(copy))]
        call(folder, "snapshot", *asked, "snapshot")
        told = call(folder, "diagnose", "--json", "snapshot", "train.log")
    finally:
        end(job)
    (folder / "verdict.json").write_text(told.stdout)
    if not told.stdout.startswith("{"):
        return Outcome(program.stem, mode, ("error",), told.stderr.strip())
    verdict = find_verdict(json.loads(told.stdout))
    wrong = judge(parse_expected(text), verdict)
    return Outcome(program.stem, mode, wrong, verdict["summary"])


def replay(folder: Path) -> str:
    """
    Play the fault of a recorded job again, and compare the verdicts.
    """
    told = call(folder, "analyze", "--json", "snapshot")
    written = call(
        folder, "replay", "--run", "--json", "-o", "repro.py", "snapshot"
    )
    if not written.stdout.startswith("{"):
        return f"not replayed: {written.stderr.splitlines()[0]}"
    was, now = (
        find_verdict(json.loads(text.stdout)) for text in (told, written)
    )
    same = was["cause"] == now["cause"] and (
        was["collective"]["op"] == now["collective"]["op"]
    )
    lines = len((folder / "repro.py").read_text().splitlines())
    return (
        f"replayed in {lines} lines, {'same' if same else 'other'} verdict: "
        f"{was['cause']} of {was['ranks']}, {now['cause']} of {now['ranks']}"
    )


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """
    Run a command of distdebug.
    """
    return subprocess.run(
        [sys.executable, "-m", "distdebug", *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )


def wait_until_still(job: subprocess.Popen[bytes], seconds: float) -> None:
    """
    Wait until the ranks use no processor any more, or as long as is allowed.
    """
    deadline = time.monotonic() + seconds
    used: list[float] = []
    while time.monotonic() < deadline:
        time.sleep(1)
        used.append(processor_seconds(job))
        if (
            len(used) > _STILL_S
            and used[-1] > _LEAST_START_S
            and used[-1] - used[-1 - _STILL_S] < _STILL_SHARE * _STILL_S
        ):
            return


def processor_seconds(job: subprocess.Popen[bytes]) -> float:
    """
    Return the processor time of the ranks of a job so far.
    """
    total = 0.0
    for process in psutil.Process(job.pid).children(recursive=True):
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def find_verdict(result: dict[str, Any]) -> dict[str, Any]:
    """
    Return the verdict of a snapshot.
    """
    verdict: dict[str, Any] = result.get("diagnosis", result)["verdict"]
    return verdict


def end(job: subprocess.Popen[bytes]) -> None:
    """
    Kill a launcher with all that it started, also what is stopped.
    """
    family = psutil.Process(job.pid).children(recursive=True)
    for process in (*family, psutil.Process(job.pid)):
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    job.wait(60)


def outcomes(options: argparse.Namespace, keep: Path) -> Iterator[Outcome]:
    """
    Run the chosen jobs, each unprepared and prepared.
    """
    for program in sorted(PROGRAMS.glob("*.py")):
        if options.names and program.stem not in options.names:
            continue
        if missing := missing_packages(program.read_text()):
            print(f"{program.stem:28} not run: needs {', '.join(missing)}")
            continue
        for mode in options.modes:
            yield run(program, mode, options.seconds, keep)


def main() -> int:
    """
    Print one line a job, and how many verdicts are right.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--modes", nargs="+", default=["unprepared", "prepared"]
    )
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument(
        "--replay", action="store_true", help="replay what dumps show, too"
    )
    parser.add_argument("--keep", type=Path, help="keep everything here")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix="jobs-"))
    done = []
    for outcome in outcomes(options, keep):
        done.append(outcome)
        wrong = ", ".join(outcome.wrong) or "right"
        print(f"{outcome.name:28} {outcome.mode:10} {wrong:20}", end=" ")
        print(outcome.summary[:160], flush=True)
        if options.replay and outcome.mode == "prepared":
            print(f"  {replay(keep / f'{outcome.name}.prepared')}", flush=True)
    for mode in options.modes:
        same = [x for x in done if x.mode == mode]
        right = sum(not x.wrong for x in same)
        print(f"{mode}: {right} of {len(same)} right")
    if options.keep is None:
        shutil.rmtree(keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
